from __future__ import annotations

import gc
import sys

import ml_dtypes
import numpy as np
import pytest

import triton_python_backend_utils as pb_utils
from shoal.backends.python.api import dlpack
from shoal.backends.python.api.tensor import Tensor
from shoal.core import dtypes
from shoal.core.tensor import Tensor as CoreTensor

NUMERIC = [kind for kind in dtypes.ALL if kind not in (dtypes.BYTES, dtypes.BF16)]
ROW = np.arange(6, dtype=np.float32).reshape(2, 3)
LARGE = 1 << 17


def received(array, raw):
    return Tensor._from_core(CoreTensor("x", dtypes.from_numpy(array.dtype), array.shape, raw=raw))


# ---- making one


@pytest.mark.parametrize("kind", NUMERIC, ids=str)
def test_every_numeric_type_goes_in_and_comes_out(kind):
    array = np.ones((2, 3), kind.numpy)
    tensor = pb_utils.Tensor("x", array)
    assert tensor.name() == "x"
    assert tensor.shape() == [2, 3]
    assert tensor.triton_dtype() == kind.number
    assert tensor.is_cpu()
    assert tensor.as_numpy() is array
    assert tensor._to_core().datatype is kind


@pytest.mark.parametrize("array", [None, [1, 2], 3.0])
def test_only_numpy_arrays_are_taken(array):
    with pytest.raises(TypeError):
        pb_utils.Tensor("x", array)


def test_a_name_is_text_and_not_empty():
    with pytest.raises(TypeError):
        pb_utils.Tensor(None, ROW)
    with pytest.raises(pb_utils.TritonModelException, match="cannot be an empty string"):
        pb_utils.Tensor("", ROW)


def test_a_type_that_the_protocol_lacks_is_named():
    with pytest.raises(
        pb_utils.TritonModelException, match=r"NumPy dtype is not supported.*complex"
    ):
        pb_utils.Tensor("x", np.ones(2, np.complex64))


def test_what_is_not_contiguous_is_copied():
    tensor = pb_utils.Tensor("x", ROW.T)
    assert tensor.as_numpy().flags.c_contiguous
    assert np.array_equal(tensor.as_numpy(), ROW.T)


def test_big_endian_numbers_are_turned():
    tensor = pb_utils.Tensor("x", np.array([1, 2], ">i4"))
    assert tensor.as_numpy().dtype == np.dtype("<i4")
    assert tensor.as_numpy().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("array", "elements"),
    [
        (np.array([b"a", "b", 3, 1.5], object), [b"a", b"b", b"3", b"1.5"]),
        (np.array([b"ab", b"c"]), [b"ab", b"c"]),
        (np.array(["naïve", "x"]), ["naïve".encode(), b"x"]),
        (np.array([], object), []),
        (np.array([[b"a"], [b"b"]], object), [[b"a"], [b"b"]]),
    ],
)
def test_strings_leave_as_bytes(array, elements):
    core = pb_utils.Tensor("x", array)._to_core()
    assert core.datatype is dtypes.BYTES
    assert core.array.tolist() == elements


# ---- what a request brings


def test_nothing_is_decoded_before_the_model_asks():
    core = CoreTensor("x", dtypes.FP32, (2, 3), raw=ROW.tobytes())
    tensor = Tensor._from_core(core)
    assert tensor.shape() == [2, 3]
    assert core._array is None


def test_small_inputs_may_be_written_to():
    raw = ROW.tobytes()
    array = received(ROW, raw).as_numpy()
    array += 1
    assert raw == ROW.tobytes()


def test_the_buffer_of_the_request_itself_is_not_copied():
    memory = np.arange(LARGE, dtype=np.float32)
    array = received(memory, memory.data.cast("B")).as_numpy()
    array[0] = 42
    assert memory[0] == 42


@pytest.mark.parametrize("size", [4, LARGE])
def test_memory_that_others_see_is_copied(size):
    theirs = np.zeros(size, np.float32)
    for raw in (theirs.tobytes(), theirs.data.cast("B").toreadonly()):
        mine = received(theirs, raw).as_numpy()
        mine += 1
        assert not np.frombuffer(raw, np.float32).any()


def test_another_models_array_is_not_shared_for_writing():
    theirs = np.zeros(LARGE, np.float32)
    core = CoreTensor.from_array("x", theirs)
    Tensor._from_core(core).as_numpy()[:] = 1
    assert core.raw is not None  # asked for by somebody: a view of the array
    Tensor._from_core(core, shared=True).as_numpy()[:] = 1
    assert not theirs.any()


# ---- what is sent


def test_a_fresh_array_is_sent_without_a_copy():
    tensor = pb_utils.Tensor("x", np.zeros(4, np.float32))
    assert tensor._to_core().array is tensor._array


def test_an_array_that_the_model_keeps_is_copied():
    kept = np.zeros(4, np.float32)
    core = pb_utils.Tensor("x", kept)._to_core()
    kept += 1
    assert core.array.tolist() == [0, 0, 0, 0]


def test_a_view_of_an_array_that_the_model_keeps_is_copied():
    kept = np.zeros((2, 4), np.float32)
    core = pb_utils.Tensor("x", kept[0])._to_core()
    kept += 1
    assert core.array.tolist() == [0, 0, 0, 0]


def test_memory_that_something_else_owns_is_copied():
    kept = bytearray(16)
    core = pb_utils.Tensor("x", np.frombuffer(kept, np.float32))._to_core()
    kept[:] = b"x" * 16
    assert core.array.tolist() == [0, 0, 0, 0]


def test_memory_of_another_library_is_copied():
    kept = np.zeros(4, np.float32)
    core = pb_utils.Tensor.from_dlpack("y", pb_utils.Tensor("x", kept).to_dlpack())._to_core()
    kept += 1
    assert core.array.tolist() == [0, 0, 0, 0]


def test_memory_of_torch_is_copied():
    torch = pytest.importorskip("torch")
    kept = torch.zeros(4)
    sent = [pb_utils.Tensor("x", kept.numpy()), pb_utils.Tensor.from_dlpack("y", kept)]
    cores = [tensor._to_core() for tensor in sent]
    kept += 1
    assert [core.array.tolist() for core in cores] == [[0, 0, 0, 0]] * 2


def test_a_received_tensor_can_be_passed_on_as_it_is():
    core = CoreTensor("x", dtypes.FP32, (2, 3), raw=ROW.tobytes())
    assert Tensor._from_core(core)._to_core() is core


def test_what_was_passed_on_is_not_changed_by_the_model():
    memory = np.zeros(LARGE, np.float32)
    tensor = received(memory, memory.data.cast("B"))
    sent = tensor._to_core()
    tensor.as_numpy()[:] = 1
    assert not sent.array.any()


# ---- DLPack


@pytest.mark.parametrize("kind", NUMERIC, ids=str)
def test_dlpack_goes_both_ways_without_a_copy(kind):
    array = np.ones((2, 3), kind.numpy)
    other = np.from_dlpack(pb_utils.Tensor("x", array))
    assert np.shares_memory(other, array)
    back = pb_utils.Tensor.from_dlpack("y", pb_utils.Tensor("x", array).to_dlpack())
    assert back.name() == "y"
    assert back.triton_dtype() == kind.number
    assert np.array_equal(back.as_numpy(), array)
    assert np.shares_memory(back.as_numpy(), array)


def test_read_only_memory_can_be_exported():
    array = ROW.copy()
    array.flags.writeable = False
    assert np.array_equal(np.from_dlpack(pb_utils.Tensor("x", array)), ROW)


def test_memory_lives_as_long_as_whoever_took_it():
    before = len(dlpack._exported)
    taken = pb_utils.Tensor.from_dlpack("y", pb_utils.Tensor("x", ROW.copy()).to_dlpack())
    view = taken.as_numpy()
    del taken
    gc.collect()
    assert np.array_equal(view, ROW)
    assert len(dlpack._exported) == before + 1
    del view
    gc.collect()
    assert len(dlpack._exported) == before


def test_a_capsule_that_nobody_takes_gives_its_memory_back():
    before = len(dlpack._exported)
    capsule = pb_utils.Tensor("x", ROW.copy()).to_dlpack()
    assert len(dlpack._exported) == before + 1
    del capsule
    assert len(dlpack._exported) == before


def test_a_capsule_can_be_taken_once():
    capsule = pb_utils.Tensor("x", ROW).to_dlpack()
    pb_utils.Tensor.from_dlpack("y", capsule)
    with pytest.raises(pb_utils.TritonModelException, match="taken already"):
        pb_utils.Tensor.from_dlpack("y", capsule)


def test_a_tensor_lives_as_long_as_its_capsules():
    tensor = pb_utils.Tensor("x", ROW)
    before = sys.getrefcount(tensor)
    capsule = tensor.to_dlpack()
    assert sys.getrefcount(tensor) == before + 1
    del capsule
    assert sys.getrefcount(tensor) == before


def test_bf16_travels_through_dlpack_only():
    bits = np.array([1.0, 2.5], ml_dtypes.bfloat16)
    tensor = pb_utils.Tensor.from_dlpack("y", pb_utils.Tensor("x", bits))
    assert tensor.triton_dtype() == dtypes.BF16.number
    assert tensor._to_core().array.tolist() == bits.view(np.uint16).tolist()
    with pytest.raises(pb_utils.TritonModelException, match="Tensor dtype is BF16"):
        tensor.as_numpy()


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (None, "must be a DLPack capsule"),
        (ROW.T, "not contiguous"),
        (np.array([b"a"], object), None),
    ],
)
def test_what_dlpack_cannot_carry(tensor, text):
    if text is None:
        strings = pb_utils.Tensor("x", tensor)
        with pytest.raises(pb_utils.TritonModelException, match="string tensors"):
            strings.to_dlpack()
        return
    with pytest.raises(pb_utils.TritonModelException, match=text):
        pb_utils.Tensor.from_dlpack("x", tensor)


class Strided:
    """Another library's tensor that is not contiguous."""

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_):
        return ROW.T.__dlpack__()


class Elsewhere(Strided):
    def __dlpack_device__(self):
        return (8, 0)


def test_other_libraries_tensors_are_checked_too():
    with pytest.raises(pb_utils.TritonModelException, match="not contiguous"):
        pb_utils.Tensor.from_dlpack("x", Strided())
    with pytest.raises(pb_utils.TritonModelException, match="DLDevice type 8"):
        pb_utils.Tensor.from_dlpack("x", Elsewhere())


def test_empty_and_scalar_tensors():
    for array in (np.zeros((0, 3), np.float32), np.array(7, np.int64)):
        back = pb_utils.Tensor.from_dlpack("y", pb_utils.Tensor("x", array).to_dlpack())
        assert back.shape() == list(array.shape)
        assert np.array_equal(back.as_numpy(), array)
