"""DLPack: tensors exchanged with other libraries without a copy.

    Tensor --export--> PyCapsule "dltensor" --torch.from_dlpack--> ...
    torch tensor --__dlpack__--> PyCapsule "dltensor" --take--> Tensor

numpy's own DLPack has no BF16 and rejects read-only memory, so the few structures of the protocol
are defined here with ctypes. A capsule's memory lives until its consumer
calls the deleter.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal.backends.python.api.errors import TritonModelException
from shoal.core import dtypes
from shoal.core.dtypes import DataType

CPU = 1
CUDA = 2
CUDA_HOST = 3

_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_CODES: dict[DataType, int] = {
    dtypes.BOOL: _BOOL,
    dtypes.UINT8: _UINT,
    dtypes.UINT16: _UINT,
    dtypes.UINT32: _UINT,
    dtypes.UINT64: _UINT,
    dtypes.INT8: _INT,
    dtypes.INT16: _INT,
    dtypes.INT32: _INT,
    dtypes.INT64: _INT,
    dtypes.FP16: _FLOAT,
    dtypes.FP32: _FLOAT,
    dtypes.FP64: _FLOAT,
    dtypes.BF16: _BFLOAT,
}
_TYPES = {(code, kind.itemsize * 8): kind for kind, code in _CODES.items()}

# Names must outlive the capsules that point at them.
_FRESH = b"dltensor"
_USED = b"used_dltensor"


class _DLDevice(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (
        ("dl_tensor", _DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.restype = ctypes.c_int
_rename.argtypes = (ctypes.py_object, ctypes.c_char_p)
# The same two for a capsule that is being destroyed: touching its reference count would revive it.
_dying_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_dying_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

# Exported tensors that are still in use, by address: keeps structure, shape and memory alive.
_exported: dict[int, tuple[Any, ...]] = {}


def _give_back(address: int) -> None:
    _exported.pop(address, None)


def _capsule_dies(capsule: int) -> None:
    if _dying_is_valid(capsule, _FRESH):  # it was not consumed
        _exported.pop(_dying_pointer_of(capsule, _FRESH), None)


# As C functions, kept for as long as a capsule may call them.
_c_give_back = _Deleter(_give_back)
_c_capsule_dies = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_capsule_dies)
_GIVE_BACK = ctypes.cast(_c_give_back, ctypes.c_void_p)
_CAPSULE_DIES = ctypes.cast(_c_capsule_dies, ctypes.c_void_p)


class Taken(NamedTuple):
    """The content of a capsule. `array` is flat bytes on a CPU, None for GPU memory."""

    datatype: DataType
    shape: tuple[int, ...]
    device: tuple[int, int]
    array: np.ndarray | None


class Described(NamedTuple):
    """Type, shape and memory of a tensor that its producer keeps."""

    datatype: DataType
    shape: tuple[int, ...]
    device: tuple[int, int]
    address: int

    @property
    def nbytes(self) -> int:
        """The size of its memory."""
        return math.prod(self.shape) * self.datatype.itemsize


def export(array: np.ndarray, datatype: DataType, owner: object = None) -> object:
    """A capsule of a contiguous array's memory, which lives as long as the capsule's taker does,
    and with it the `owner`."""
    shape = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
    managed = _DLManagedTensor()
    tensor = managed.dl_tensor
    tensor.data = array.ctypes.data
    tensor.device.device_type = CPU
    tensor.ndim = array.ndim
    tensor.dtype.code = _CODES[datatype]
    tensor.dtype.bits = datatype.itemsize * 8
    tensor.dtype.lanes = 1
    tensor.shape = shape
    managed.deleter = _GIVE_BACK
    address = ctypes.addressof(managed)
    _exported[address] = (managed, shape, array, owner)
    capsule: object = _new_capsule(address, _FRESH, _CAPSULE_DIES)
    return capsule


def is_capsule(candidate: object) -> bool:
    """Whether this is a PyCapsule."""
    return type(candidate) is _Capsule


def peek(capsule: object) -> Described:
    """The content of a capsule, which stays with its producer.

    Raises TritonModelException for a capsule that was taken already, and for memory that is not
    contiguous or of a type the protocol does not have.
    """
    if not _is_valid(capsule, _FRESH):
        raise TritonModelException("The capsule holds no DLPack tensor, or it was taken already.")
    tensor = _DLManagedTensor.from_address(_pointer_of(capsule, _FRESH)).dl_tensor
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    _check_contiguous(shape, tensor.strides[: tensor.ndim] if tensor.strides else None)
    device = (tensor.device.device_type, tensor.device.device_id)
    check_device(device[0])
    datatype = _TYPES.get((tensor.dtype.code, tensor.dtype.bits))
    if datatype is None or tensor.dtype.lanes != 1:
        raise TritonModelException(
            f"The DLPack tensor's type (code {tensor.dtype.code}, {tensor.dtype.bits} bits, "
            f"{tensor.dtype.lanes} lanes) has no counterpart among Triton's."
        )
    return Described(datatype, shape, device, (tensor.data or 0) + tensor.byte_offset)


def take(capsule: object) -> Taken:
    """Take the content of a capsule; on a GPU only read its description, to pass it on.

    Raises as `peek`.
    """
    found = peek(capsule)
    if found.device[0] == CUDA:
        return Taken(found.datatype, found.shape, found.device, None)
    address = _pointer_of(capsule, _FRESH)
    _rename(capsule, _USED)
    array = memory_at(found.address, found.nbytes, _Owner(address))
    return Taken(found.datatype, found.shape, found.device, array)


def memory_at(address: int, size: int, owner: object) -> np.ndarray:
    """Memory of the CPU as an array of bytes, which keeps `owner`."""
    if not size:
        return np.empty(0, np.uint8)
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    memory.owner = owner
    array: np.ndarray = np.frombuffer(memory, np.uint8)
    return array


def check_device(device_type: int) -> None:
    """Reject memory on devices other than CPUs and CUDA."""
    if device_type not in (CPU, CUDA, CUDA_HOST):
        raise TritonModelException(f"DLDevice type {device_type} is not support by Python backend.")


class _Owner:
    """Calls a producer's deleter once its memory is unused."""

    __slots__ = ("_address",)

    def __init__(self, address: int) -> None:
        self._address = address

    def __del__(self) -> None:
        deleter = _DLManagedTensor.from_address(self._address).deleter
        if deleter:
            _Deleter(deleter)(self._address)


def _check_contiguous(shape: Sequence[int], strides: Sequence[int] | None) -> None:
    if strides is None or math.prod(shape) == 0:
        return
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            raise TritonModelException(
                "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored "
                "in C-Order are supported."
            )
        expected *= size


_Capsule = type(export(np.zeros(1, np.uint8), dtypes.UINT8))  # Python has no name for the type
