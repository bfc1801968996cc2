"""Ragged batches: what the model is given, and how its outputs find their way back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.config.schema import message_type
from shoal.core import dtypes
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.errors import BackendFailure
from shoal.scheduler.assembly import Assembly
from shoal.scheduler.ragged import KINDS, MadeInput
from tests.support.fakes import make_request

ITEMS = TensorSpec("items", dtypes.FP32, (-1, -1), ragged=True)


def request(*shapes, spec=ITEMS, outputs=()):
    """A request with one input, whose elements count from 0."""
    (shape,) = shapes
    array = np.arange(np.prod(shape)).astype(spec.datatype.numpy).reshape(shape)
    return make_request(
        Tensor.from_array(spec.name, array, spec.datatype),
        rows=shape[0],
        requested_outputs=outputs,
    )[0]


# The shapes are those of Triton's own description: a request of two rows and one of one row.
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [6, 4]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [6, 10]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 6, 10]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0] * 6),
        ("BATCH_ITEM_SHAPE", [[3, 1], [3, 1], [2, 2]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [3, 1, 3, 1, 2, 2]),
    ],
)
@pytest.mark.parametrize("datatype", [dtypes.INT32, dtypes.FP32])
def test_kinds(kind, expected, datatype):
    made = MadeInput(kind, ("extra",), datatype, ITEMS).make(
        [request((2, 3, 1)), request((1, 2, 2))]
    )
    assert made.tolist() == expected
    assert made.dtype == datatype.numpy
    assert made.shape == np.array(expected).shape


def test_every_kind_of_the_schema_is_known():
    kind = message_type("inference.BatchInput").fields["kind"]
    assert set(kind.enum.names) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_that_was_left_out_has_no_elements(kind):
    nothing = make_request(rows=1)[0]
    made = MadeInput(kind, ("extra",), dtypes.INT32, ITEMS).make([nothing])
    assert not made.any()


def assembly(outputs, scattered=None, inputs=(ITEMS,), max_batch_size=8):
    signature = Signature(
        "m",
        max_batch_size,
        {spec.name: spec for spec in inputs},
        {spec.name: spec for spec in outputs},
    )
    ends = MadeInput("BATCH_ACCUMULATED_ELEMENT_COUNT", ("ends", "also"), dtypes.INT32, ITEMS)
    return Assembly(signature, [ends], scattered)


def test_ragged_inputs_are_one_row_whatever_their_shapes():
    plain = TensorSpec("plain", dtypes.INT32, (1,))
    made = assembly([], inputs=(ITEMS, plain))
    batch = [request((2, 3, 1)), request((1, 2, 2))]
    for number, one in enumerate(batch):
        one.inputs["plain"] = Tensor.from_array("plain", np.full((one.rows, 1), number, np.int32))
    joined = made.join(batch)
    assert joined["items"].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert joined["items"].dtype == np.float32
    assert joined["plain"].tolist() == [[0], [0], [1]]
    assert joined["ends"].tolist() == joined["also"].tolist() == [6, 10]
    assert made.made_inputs == {"ends", "also"}


def test_a_lone_request_is_flat_too_and_not_copied():
    one = request((2, 3, 1))
    joined = assembly([]).join([one])
    assert joined["items"].shape == (6,)
    assert np.shares_memory(joined["items"], one.inputs["items"].array)


def test_ragged_strings():
    words = TensorSpec("words", dtypes.BYTES, (-1,), ragged=True)
    batch = []
    for texts in ([b"a", b"b"], [b"c"]):
        array = np.array([texts], dtype=object)
        batch.append(
            make_request(Tensor("words", dtypes.BYTES, array.shape, array=array), rows=1)[0]
        )
    made = Assembly(Signature("m", 8, {"words": words}, {}))
    assert made.join(batch)["words"].tolist() == [b"a", b"b", b"c"]


SAME = TensorSpec("same", dtypes.FP32, (-1, -1))
WIDE = TensorSpec("wide", dtypes.FP32, (-1, 2))
SUM = TensorSpec("sum", dtypes.FP32, (1,))


def test_an_output_is_scattered_by_the_shapes_of_its_source():
    made = assembly([SAME, WIDE, SUM], {"same": "items", "wide": "items"})
    batch = [request((2, 3, 1)), request((1, 2, 2), outputs=("wide", "same"))]
    same = np.arange(10, dtype=np.float32)
    wide = np.arange(16, dtype=np.float32).reshape(4, 4)  # its own shape does not matter
    sums = np.array([[1], [2], [3]], np.float32)
    first, second = made.split(batch, ["same", "wide", "sum"], [same, wide, sums])
    assert [tensor.name for tensor in first] == ["same", "wide", "sum"]
    assert [tensor.shape for tensor in first] == [(2, 3, 1), (2, 3, 2), (2, 1)]
    assert first[0].array.reshape(-1).tolist() == [0, 1, 2, 3, 4, 5]
    assert [tensor.name for tensor in second] == ["wide", "same"]
    assert second[1].array.tolist() == [[[6, 7], [8, 9]]]
    assert second[0].array.reshape(-1).tolist() == [12, 13, 14, 15]
    assert np.shares_memory(second[1].array, same)


def test_a_scattered_output_with_a_reshape_is_given_in_the_clients_shape():
    spec = TensorSpec("same", dtypes.FP32, (-1, 1, -1), reshape=(-1, -1))
    made = assembly([spec], {"same": "items"})
    (answer,) = made.split([request((1, 2, 3))], ["same"], [np.arange(6, dtype=np.float32)])[0]
    assert answer.shape == (1, 2, 1, 3)


def test_a_scattered_output_without_a_batch_dimension():
    spec = TensorSpec("same", dtypes.FP32, (-1, 2))
    source = TensorSpec("items", dtypes.FP32, (-1, 4))
    made = assembly([spec], {"same": "items"}, inputs=(source,), max_batch_size=0)
    one = request((3, 4))
    one.rows = 1
    (answer,) = made.split([one], ["same"], [np.arange(6, dtype=np.float32)])[0]
    assert answer.shape == (3, 2)


@pytest.mark.parametrize("size", [9, 11])
def test_an_output_of_another_size_is_refused(size):
    made = assembly([SAME], {"same": "items"})
    batch = [request((2, 3, 1)), request((1, 2, 2))]
    with pytest.raises(BackendFailure) as caught:
        made.split(batch, ["same"], [np.zeros(size, np.float32)])
    assert str(caught.value) == (
        f"output 'same' has {size} elements, but by the shapes of input 'items' the requests of "
        "its batch have 10: [2,3,1], [1,2,2]"
    )


shapes = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=5
)


@given(shapes=shapes)
def test_what_goes_in_comes_out(shapes):
    made = assembly([SAME], {"same": "items"})
    batch = [request(shape) for shape in shapes]
    joined = made.join(batch)["items"]
    assert joined.ndim == 1
    for one, (answer,) in zip(batch, made.split(batch, ["same"], [joined]), strict=True):
        assert answer.shape == one.inputs["items"].shape
        assert np.array_equal(answer.array, one.inputs["items"].array)
        assert bytes(answer.raw) == one.inputs["items"].array.tobytes()
