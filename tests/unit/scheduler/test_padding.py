"""Padding: what a padded batch looks like, and that everybody gets back what is theirs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core import dtypes
from shoal.core.padding import Padding
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.errors import BackendFailure
from shoal.scheduler.assembly import Assembly
from shoal.scheduler.batch import POOLED_BYTES
from tests.support.fakes import make_request


def signature(
    inputs, outputs=(), *, lengths, fills=None, follow=None, masks=(), multiple=1, batch=16
):
    return Signature(
        "m",
        batch,
        {spec.name: spec for spec in inputs},
        {spec.name: spec for spec in outputs},
        padding=Padding(
            inputs=lengths,
            fills={**dict.fromkeys(lengths, 0), **(fills or {})},
            outputs=follow or {},
            masks=frozenset(masks),
            multiple=multiple,
        ),
    )


IDS = TensorSpec("ids", dtypes.INT64, (-1,))
MASK = TensorSpec("mask", dtypes.FP32, (-1,), optional=True)
N = ((1, "n"),)


def request(**arrays):
    made = [Tensor.from_array(name, np.asarray(array)) for name, array in arrays.items()]
    return make_request(*made, rows=made[0].shape[0])[0]


def received(**arrays):
    """A request as it comes from a client: bytes."""
    made = [
        Tensor(name, dtypes.from_numpy(array.dtype), array.shape, raw=array.tobytes())
        for name, array in arrays.items()
    ]
    return make_request(*made, rows=made[0].shape[0])[0]


def test_inputs_are_filled_up_to_the_longest():
    made = Assembly(signature([IDS], lengths={"ids": N}, fills={"ids": 7}))
    batch = [request(ids=[[1, 2]]), request(ids=[[3, 4, 5], [6, 7, 8]]), request(ids=[[9]])]
    joined = made.join(batch)["ids"]
    assert joined.tolist() == [[1, 2, 7], [3, 4, 5], [6, 7, 8], [9, 7, 7]]
    assert joined.dtype == np.int64
    assert made.padded() == (12, 3)


def test_a_multiple_rounds_up_even_a_lone_request():
    made = Assembly(signature([IDS], lengths={"ids": N}, multiple=4))
    assert made.join([request(ids=[[1, 2, 3]])])["ids"].tolist() == [[1, 2, 3, 0]]
    assert made.padded() == (4, 1)


def test_what_needs_no_padding_is_not_copied_more_than_ever():
    made = Assembly(signature([IDS], lengths={"ids": N}))
    one = received(ids=np.arange(4)[None])
    assert np.shares_memory(made.join([one])["ids"], one.inputs["ids"].array)
    same = [received(ids=np.full((1, 4), number)) for number in range(3)]
    assert made.join(same)["ids"].tolist() == [[0] * 4, [1] * 4, [2] * 4]
    assert made.padded() == (4 + 12, 0)


def test_several_lengths_and_several_dimensions():
    image = TensorSpec("image", dtypes.FP32, (2, -1, -1))
    axes = ((2, "h"), (3, "w"))
    made = Assembly(signature([image], lengths={"image": axes}, fills={"image": -1.0}))
    first, second = np.ones((1, 2, 3, 1), np.float32), np.full((1, 2, 1, 4), 2, np.float32)
    joined = made.join([request(image=first), request(image=second)])["image"]
    assert joined.shape == (2, 2, 3, 4)
    assert np.array_equal(joined[:1, :, :3, :1], first)
    assert np.array_equal(joined[1:, :, :1, :4], second)
    assert (joined == -1).sum() == joined.size - first.size - second.size


def test_strings_and_booleans():
    words = TensorSpec("words", dtypes.BYTES, (-1,))
    flags = TensorSpec("flags", dtypes.BOOL, (-1,))
    made = Assembly(
        signature([words, flags], lengths={"words": N, "flags": N}, fills={"words": b"-"})
    )
    batch = [
        request(words=np.array([[b"a", b"b"]], object), flags=[[True, True]]),
        request(words=np.array([[b"c"]], object), flags=[[True]]),
    ]
    joined = made.join(batch)
    assert joined["words"].tolist() == [[b"a", b"b"], [b"c", b"-"]]
    assert joined["flags"].tolist() == [[True, True], [True, False]]


def test_large_inputs_use_memory_that_was_used_before():
    made = Assembly(signature([IDS], lengths={"ids": N}))
    half = POOLED_BYTES // 8
    joined = made.join([request(ids=np.ones((1, half), np.int64)), request(ids=[[5]])])["ids"]
    assert joined.ctypes.data % 64 == 0
    assert joined[1].tolist() == [5] + [0] * (half - 1)


def test_a_mask_is_made_for_those_who_sent_none():
    made = Assembly(signature([IDS, MASK], lengths={"ids": N, "mask": N}, masks={"mask"}))
    sent = np.array([[1, 0, 1]], np.float32)
    batch = [request(ids=[[1, 2]]), request(ids=[[3, 4, 5]], mask=sent), request(ids=[[6], [7]])]
    joined = made.join(batch)
    assert joined["mask"].tolist() == [[1, 1, 0], [1, 0, 1], [1, 0, 0], [1, 0, 0]]
    assert joined["mask"].dtype == np.float32
    assert made.join([request(ids=[[1, 2]])])["mask"].tolist() == [[1, 1]]


def test_inputs_that_are_not_padded_are_joined_as_ever():
    other = TensorSpec("other", dtypes.INT64, (1,))
    ragged = TensorSpec("ragged", dtypes.INT64, (-1,), ragged=True)
    made = Assembly(signature([IDS, other, ragged], lengths={"ids": N}))
    batch = [
        request(ids=[[1, 2]], other=[[1]], ragged=[[1, 2, 3]]),
        request(ids=[[3]], other=[[2]], ragged=[[4]]),
    ]
    joined = made.join(batch)
    assert joined["other"].tolist() == [[1], [2]]
    assert joined["ragged"].tolist() == [1, 2, 3, 4]
    assert joined["ids"].tolist() == [[1, 2], [3, 0]]


# ---- and back

STATES = TensorSpec("states", dtypes.FP32, (-1, 2))
POOLED = TensorSpec("pooled", dtypes.FP32, (2,))
SCORES = TensorSpec("scores", dtypes.FP32, (-1, -1))
FOLLOW = {"states": N, "scores": ((1, "n"), (2, "n"))}
BOTH_WAYS = signature([IDS], [STATES, POOLED, SCORES], lengths={"ids": N}, follow=FOLLOW)


def test_outputs_are_cut_back_to_each_requests_own_length():
    batch = [request(ids=[[1, 2]]), request(ids=[[3], [4]])]
    states = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    pooled = np.arange(6, dtype=np.float32).reshape(3, 2)
    scores = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    names = ["states", "pooled", "scores"]
    first, second = Assembly(BOTH_WAYS).split(batch, names, [states, pooled, scores])
    assert [tensor.shape for tensor in first] == [(1, 2, 2), (1, 2), (1, 2, 2)]
    assert [tensor.shape for tensor in second] == [(2, 1, 2), (2, 2), (2, 1, 1)]
    assert second[0].array.tolist() == [[[4, 5]], [[8, 9]]]
    assert second[1].array.tolist() == [[2, 3], [4, 5]]
    assert second[2].array.tolist() == [[[4]], [[8]]]
    assert bytes(second[2].raw) == np.array([4, 8], np.float32).tobytes()


def test_only_what_was_asked_for():
    one, _ = make_request(
        Tensor.from_array("ids", np.array([[1]])), rows=1, requested_outputs=("scores", "pooled")
    )
    arrays = [np.zeros((1, 2), np.float32), np.zeros((1, 1, 1), np.float32)]
    (first,) = Assembly(BOTH_WAYS).split([one], ["pooled", "scores"], arrays)
    assert [tensor.name for tensor in first] == ["scores", "pooled"]


def test_a_cut_output_with_a_reshape_is_given_in_the_clients_shape():
    spec = TensorSpec("states", dtypes.FP32, (-1, 2), reshape=(1, -1, 2))
    made = Assembly(signature([IDS], [spec], lengths={"ids": N}, follow={"states": ((2, "n"),)}))
    array = np.arange(16, dtype=np.float32).reshape(2, 1, 4, 2)
    batch = [request(ids=[[1, 2, 3, 4]]), request(ids=[[1, 2, 3]])]
    (first,), (second,) = made.split(batch, ["states"], [array])
    assert first.shape == (1, 4, 2)
    assert second.shape == (1, 3, 2)
    assert second.array.tolist() == [[[8, 9], [10, 11], [12, 13]]]


def test_an_output_that_does_not_follow_is_refused_rather_than_guessed_at():
    batch = [request(ids=[[1, 2, 3]]), request(ids=[[4]])]
    with pytest.raises(BackendFailure) as caught:
        Assembly(BOTH_WAYS).split(batch, ["states"], [np.zeros((2, 5, 2), np.float32)])
    assert str(caught.value) == (
        "output 'states' of model 'm' has shape [2, 5, 2] in a batch whose length 'n' was padded "
        "to 3, and its dimension 1 should follow that. If it does not, write states[_] in "
        "parameters['padding_axes']"
    )


def test_where_nothing_was_padded_nothing_is_cut():
    batch = [request(ids=[[1, 2]]), request(ids=[[3, 4]])]
    array = np.zeros((2, 5, 2), np.float32)  # whatever it is, it is theirs
    first, second = Assembly(BOTH_WAYS).split(
        [_only(one, "states") for one in batch], ["states"], [array]
    )
    assert first[0].shape == second[0].shape == (1, 5, 2)
    assert np.shares_memory(first[0].array, array)


def _only(one, *names):
    one.requested_outputs = names
    return one


@given(
    shapes=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6)), min_size=1, max_size=6),
    multiple=st.integers(1, 5),
    as_bytes=st.booleans(),
)
def test_what_goes_in_comes_out(shapes, multiple, as_bytes):
    """A model that returns its input: every request gets its own numbers, and only those."""
    echo = TensorSpec("echo", dtypes.INT64, (-1,))
    made = Assembly(
        signature([IDS], [echo], lengths={"ids": N}, follow={"echo": N}, multiple=multiple)
    )
    make = received if as_bytes else request
    batch = [
        make(ids=np.arange(1000 * number, 1000 * number + rows * n).reshape(rows, n))
        for number, (rows, n) in enumerate(shapes)
    ]
    joined = made.join(batch)["ids"]
    longest = max(n for _, n in shapes)
    assert joined.shape == (sum(rows for rows, _ in shapes), -(-longest // multiple) * multiple)
    for one, (answer,) in zip(batch, made.split(batch, ["echo"], [joined]), strict=True):
        assert answer.shape == one.inputs["ids"].shape
        assert np.array_equal(answer.array, one.inputs["ids"].array)
        assert bytes(answer.raw) == one.inputs["ids"].array.tobytes()
