"""Lengths: what a request's are, which requests share a batch, and what fills the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core import dtypes
from shoal.core.padding import Buckets, Padding, fill_value
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.core.validate import validate
from shoal.errors import InvalidArgument
from tests.support.fakes import make_request

PADDING = Padding(
    inputs={"ids": ((1, "n"),), "mask": ((1, "n"),), "image": ((2, "h"), (3, "w"))},
    fills={"ids": 0, "mask": 0, "image": 0.0},
    outputs={},
)


def tensors(**shapes):
    return {
        name: Tensor.from_array(name, np.zeros(shape, np.int32)) for name, shape in shapes.items()
    }


@pytest.mark.parametrize(
    ("buckets", "numbers"),
    [
        (Buckets(), {0: 0, 1: 0, 2: 1, 3: 2, 4: 2, 5: 3, 8: 3, 9: 4, 512: 9, 513: 10}),
        (Buckets(width=32), {0: 0, 1: 1, 32: 1, 33: 2, 64: 2, 65: 3}),
        (Buckets(edges=(16, 64)), {0: 0, 16: 0, 17: 1, 64: 1, 65: 2, 10**6: 2}),
    ],
)
def test_buckets(buckets, numbers):
    assert {size: buckets.of(size) for size in numbers} == numbers


@given(left=st.integers(0, 5000), right=st.integers(0, 5000), width=st.integers(0, 64))
def test_larger_sizes_are_never_in_a_smaller_bucket(left, right, width):
    for buckets in (Buckets(width=width), Buckets(edges=(3, 70, 900))):
        low, high = sorted((left, right))
        assert buckets.of(low) <= buckets.of(high)


def test_sizes():
    assert PADDING.lengths == ("n", "h", "w")
    sizes = PADDING.sizes(tensors(ids=(2, 5), mask=(2, 5), image=(2, 3, 7, 9)))
    assert sizes == {"n": 5, "h": 7, "w": 9}
    assert PADDING.sizes(tensors(mask=(1, 4))) == {"n": 4}


def test_inputs_that_disagree_are_refused():
    with pytest.raises(InvalidArgument) as caught:
        PADDING.sizes(tensors(ids=(2, 5), mask=(2, 4)))
    assert str(caught.value) == (
        "the inputs disagree about the length 'n', which must be equal in all of them: "
        "'ids' 5, 'mask' 4"
    )


def test_targets_are_the_longest_rounded_up():
    batch = [{"n": 5}, {"n": 9, "h": 1}, {"n": 2}]
    assert PADDING.targets(batch) == {"n": 9, "h": 1}
    assert replace(PADDING, multiple=8).targets(batch) == {"n": 16, "h": 8}
    assert replace(PADDING, multiple=8).targets([{"n": 8}, {"n": 0}]) == {"n": 8}


def test_keys_are_equal_for_all_lengths_unless_there_are_buckets():
    short, long = tensors(ids=(1, 3)), tensors(ids=(1, 300))
    assert PADDING.key(short) == PADDING.key(long) == ()
    bucketed = replace(PADDING, buckets=Buckets())
    assert bucketed.key(short) == (2, None, None)
    assert bucketed.key(long) == (9, None, None)
    # Sizes that are computed alike are in one bucket.
    rounded = replace(PADDING, buckets=Buckets(), multiple=64)
    assert rounded.key(tensors(ids=(1, 3))) == rounded.key(tensors(ids=(1, 64)))


@pytest.mark.parametrize(
    ("datatype", "text", "value"),
    [
        (dtypes.INT64, "", 0),
        (dtypes.INT64, "-3", -3),
        (dtypes.UINT8, "255", 255),
        (dtypes.FP32, "", 0.0),
        (dtypes.FP16, "-1e4", -10000.0),
        (dtypes.FP32, "-inf", float("-inf")),
        (dtypes.BOOL, "", False),
        (dtypes.BOOL, "True", True),
        (dtypes.BYTES, "", b""),
        (dtypes.BYTES, "[PAD]", b"[PAD]"),
        (dtypes.BF16, "1", 0x3F80),
        (dtypes.BF16, "", 0),
    ],
)
def test_fill_value(datatype, text, value):
    assert fill_value(datatype, text) == value


@pytest.mark.parametrize(
    ("datatype", "text"),
    [
        (dtypes.INT64, "one"),
        (dtypes.INT64, "1.5"),
        (dtypes.UINT8, "256"),
        (dtypes.UINT8, "-1"),
        (dtypes.INT8, "128"),
        (dtypes.FP32, "a"),
        (dtypes.BOOL, "2"),
        (dtypes.BF16, "x"),
    ],
)
def test_no_fill_value(datatype, text):
    with pytest.raises(ValueError, match=r"."):
        fill_value(datatype, text)


# ---- at the door

SIGNATURE = Signature(
    "m",
    8,
    {
        "ids": TensorSpec("ids", dtypes.INT32, (-1,)),
        "mask": TensorSpec("mask", dtypes.INT32, (-1,), optional=True),
        "other": TensorSpec("other", dtypes.INT32, (-1,)),
    },
    {},
    padding=Padding(
        inputs={"ids": ((1, "n"),), "mask": ((1, "n"),)},
        fills={"ids": 0, "mask": 0},
        outputs={},
        masks=frozenset({"mask"}),
    ),
)


def key(signature=SIGNATURE, **shapes):
    request, _ = make_request(*tensors(**shapes).values())
    validate(request, signature)
    return request.batch_key


def test_lengths_are_not_in_the_way_and_other_shapes_are():
    assert key(ids=(1, 3), other=(1, 2)) == key(ids=(2, 9), other=(2, 2))
    assert key(ids=(1, 3), other=(1, 2)) != key(ids=(1, 3), other=(1, 4))


def test_whether_the_mask_was_sent_makes_no_difference():
    assert key(ids=(1, 3), other=(1, 2)) == key(ids=(1, 4), mask=(1, 4), other=(1, 2))


def test_buckets_keep_short_and_long_apart():
    signature = replace(SIGNATURE, padding=replace(SIGNATURE.padding, buckets=Buckets()))
    assert key(signature, ids=(1, 5), other=(1, 2)) == key(signature, ids=(1, 8), other=(1, 2))
    assert key(signature, ids=(1, 5), other=(1, 2)) != key(signature, ids=(1, 9), other=(1, 2))


def test_the_door_refuses_lengths_that_disagree():
    with pytest.raises(InvalidArgument, match=r"disagree about the length 'n'"):
        key(ids=(1, 3), mask=(1, 4), other=(1, 2))


def test_lengths_are_measured_in_the_models_own_dimensions():
    ids = TensorSpec("ids", dtypes.INT32, (2, -1), reshape=(1, 2, -1))
    padding = Padding(
        inputs={"ids": ((3, "n"),)}, fills={"ids": 0}, outputs={}, buckets=Buckets(width=1)
    )
    signature = Signature("m", 8, {"ids": ids}, {}, padding=padding)
    assert key(signature, ids=(1, 2, 7)) == ((), (7,))
