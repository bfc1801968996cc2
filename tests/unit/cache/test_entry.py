"""A cached answer is a copy that nothing can change, in memory and as bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cache.entry import CachedResponse
from shoal.core import dtypes
from shoal.core.buffers import BufferPool
from shoal.core.response import Response
from shoal.core.tensor import Tensor
from tests.support.fakes import make_request

ASKED, _ = make_request(id="second")


def entry_of(*tensors, **parameters):
    return CachedResponse.of(Response("m", 1, "first", list(tensors), parameters))


def test_the_answer_is_given_again_to_another_request():
    array = np.array([[1, 2]], np.int32)
    entry = entry_of(Tensor.from_array("Y", array), cost=2, mode="slow")
    response = entry.response(ASKED, "m", 3)
    assert (response.model_name, response.model_version, response.request_id) == ("m", 3, "second")
    assert response.final
    assert response.error is None
    assert response.parameters == {"cost": 2, "mode": "slow"}
    (tensor,) = response.outputs
    assert (tensor.name, tensor.datatype, tensor.shape) == ("Y", dtypes.INT32, (1, 2))
    np.testing.assert_array_equal(tensor.array, array)


def test_it_does_not_change_with_the_memory_it_came_from():
    pool = BufferPool()
    lent = pool.take(8)
    lent[:] = b"original"
    batch = np.frombuffer(lent, np.uint8)
    entry = entry_of(Tensor("Y", dtypes.UINT8, (4,), raw=lent[:4]), Tensor.from_array("Z", batch))
    lent[:] = b"used new"
    outputs = entry.response(ASKED, "m", 1).outputs
    assert [bytes(tensor.raw) for tensor in outputs] == [b"orig", b"original"]


def test_nor_with_what_somebody_does_to_an_answer():
    entry = entry_of(Tensor.from_array("Y", np.array([1, 2], np.int32)), a=1)
    first = entry.response(ASKED, "m", 1)
    first.parameters["a"] = 2
    first.outputs.clear()
    with pytest.raises(ValueError, match="read-only"):
        entry.response(ASKED, "m", 1).outputs[0].array[0] = 5
    again = entry.response(ASKED, "m", 1)
    assert again.parameters == {"a": 1}
    assert again.outputs[0].array.tolist() == [1, 2]


def test_it_knows_what_it_costs():
    small, large = (entry_of(Tensor("Y", dtypes.UINT8, (n,), raw=bytes(n))) for n in (1, 1001))
    assert large.nbytes - small.nbytes == 1000
    assert small.nbytes > 500  # the objects around it are the larger part


tensors = st.builds(
    lambda name, raw: Tensor(name, dtypes.UINT8, (len(raw),), raw=raw),
    st.text(max_size=5),
    st.binary(max_size=20),
)
values = st.one_of(
    st.text(max_size=5),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
)


@given(st.lists(tensors, max_size=3), st.dictionaries(st.text(max_size=5), values, max_size=3))
def test_what_is_packed_is_unpacked(outputs, parameters):
    entry = CachedResponse.of(Response("m", 1, "", outputs, parameters))
    again = CachedResponse.unpack(entry.pack())
    assert again == entry
    assert [type(value) for _, value in again.parameters] == [
        type(value) for _, value in entry.parameters
    ]


def test_every_datatype_can_be_packed():
    texts = Tensor.from_array("T", np.array([b"a", b"", b"\xff"], object))
    others = [
        Tensor(datatype.name, datatype, (2,), raw=bytes(2 * datatype.itemsize))
        for datatype in dtypes.ALL
        if datatype is not dtypes.BYTES
    ]
    entry = entry_of(texts, *others)
    assert CachedResponse.unpack(entry.pack()) == entry


PACKED = entry_of(Tensor("Y", dtypes.UINT8, (3,), raw=b"abc"), a=1).pack()


@given(st.binary(max_size=60))
def test_anything_else_is_refused(data):
    with pytest.raises(ValueError, match="not a cached response"):
        CachedResponse.unpack(data)


@pytest.mark.parametrize("size", range(len(PACKED)))
def test_a_part_of_one_is_refused(size):
    with pytest.raises(ValueError, match="not a cached response"):
        CachedResponse.unpack(PACKED[:size])


def test_more_than_one_is_refused():
    with pytest.raises(ValueError, match="it has bytes after its end"):
        CachedResponse.unpack(PACKED + b"x")


def test_a_type_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="not a cached response"):
        CachedResponse.unpack(PACKED.replace(b"UINT8", b"UINT9"))
