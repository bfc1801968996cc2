"""`pb_utils.Tensor`: a name and elements, as numpy, as DLPack or still as received bytes.

A request's tensor is converted to numpy only when the model reads it. The model may write to the
array: it uses the request's buffer if nothing else does, and is a copy if the same memory is used
elsewhere: a client's region, another model's array, an input of other steps of an ensemble. Such
memory is marked read-only.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from shoal.backends.python.api import arguments, dlpack
from shoal.backends.python.api.errors import TritonModelException
from shoal.core import dtypes
from shoal.core.dtypes import BF16, BYTES, DataType
from shoal.core.tensor import Tensor as CoreTensor

_known: dict[np.dtype[Any], DataType] = {
    kind.numpy: kind for kind in dtypes.ALL if kind not in (BF16, BYTES)
}


class Tensor:
    """An input or an output of a model."""

    __slots__ = ("__weakref__", "_array", "_core", "_datatype", "_name", "_on_gpu")

    def __init__(self, name: str | bytes, array: np.ndarray, /) -> None:
        """A numpy array with a name. It is copied only if it is not contiguous."""
        if not isinstance(name, str):
            name = arguments.text("a Tensor's name", name)
        if not isinstance(array, np.ndarray):
            raise TypeError(f"Tensor needs a numpy array, not {type(array)}")
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        datatype = _known.get(array.dtype)
        if datatype is None:
            array, datatype = _converted(array)
        elif not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        self._name = name
        self._array: np.ndarray | None = array
        self._datatype = datatype
        self._core: CoreTensor | None = None
        self._on_gpu: _GpuMemory | None = None

    @classmethod
    def _from_core(cls, core: CoreTensor, *, shared: bool = False) -> Tensor:
        """Wrap a tensor of the server; nothing is decoded or copied yet.

        `shared` if its memory is used elsewhere too.
        """
        tensor: Tensor = cls.__new__(cls)
        tensor._name = core.name
        tensor._array = None
        tensor._datatype = core.datatype
        tensor._core = _shared(core) if shared else core
        tensor._on_gpu = None
        return tensor

    # ---- what models ask

    def name(self) -> str:
        """The tensor's name in the config."""
        return self._name

    def shape(self) -> list[int]:
        """The shape, with the batch dimension if there is one."""
        if self._core is not None:
            return list(self._core.shape)
        if self._on_gpu is not None:
            return list(self._on_gpu.shape)
        assert self._array is not None
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        """The datatype's number; `triton_to_numpy_type` converts it to a numpy type."""
        return self._datatype.number

    def is_cpu(self) -> bool:
        """Whether the elements are in the CPU's memory, so that numpy can read them."""
        return self._on_gpu is None

    def as_numpy(self) -> np.ndarray:
        """The elements as numpy; strings are `bytes` in an object array."""
        array = self._array
        if array is None:
            if self._on_gpu is not None:
                raise TritonModelException(
                    "Tensor is stored in GPU and cannot be converted to NumPy."
                )
            if self._datatype is BF16:
                raise TritonModelException(
                    "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and "
                    "from_dlpack() instead."
                )
            assert self._core is not None
            array = self._array = _private(self._core)
        elif self._datatype is BF16:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and "
                "from_dlpack() instead."
            )
        return array

    # ---- DLPack

    def to_dlpack(self) -> object:
        """The elements as a DLPack capsule, without a copy."""
        if self._datatype is BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        if self._on_gpu is not None:
            return self._on_gpu.capsule()
        if self._array is None:
            assert self._core is not None
            self._array = _private(self._core)
        return dlpack.export(self._array, self._datatype, self)

    def __dlpack__(self, **_options: Any) -> object:
        """For `torch.from_dlpack(tensor)` and its like."""
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CPU, 0) if self._on_gpu is None else self._on_gpu.device

    @staticmethod
    def from_dlpack(name: str | bytes, tensor: object, /) -> Tensor:
        """A named tensor from a DLPack capsule, or from anything with `__dlpack__`."""
        name = arguments.text("a Tensor's name", name)
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        if isinstance(tensor, np.ndarray):  # numpy itself does not export read-only arrays
            if not tensor.flags.c_contiguous:
                raise TritonModelException(
                    "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are "
                    "stored in C-Order are supported."
                )
            return Tensor(name, tensor)
        source = tensor
        if not dlpack.is_capsule(tensor):
            if not hasattr(tensor, "__dlpack__") or not hasattr(tensor, "__dlpack_device__"):
                raise TritonModelException(
                    "Provided tensor is not supported. Tensor must be a DLPack capsule or have "
                    "`__dlpack__` and `__dlpack_device__` attributes"
                )
            dlpack.check_device(tensor.__dlpack_device__()[0])
            tensor = tensor.__dlpack__()
        taken = dlpack.take(tensor)
        made: Tensor = Tensor.__new__(Tensor)
        made._name = name
        made._datatype = taken.datatype
        made._core = None
        made._array = None
        made._on_gpu = None
        if taken.array is None:
            made._on_gpu = _GpuMemory(source, tensor, taken.shape, taken.device)
        else:
            made._array = taken.array.view(taken.datatype.numpy).reshape(taken.shape)
        return made

    # ---- on the way out

    def _to_core(self, *, keep: bool = False) -> CoreTensor:
        """For the server. Memory that the model could change is copied, unless `keep`."""
        if self._core is not None and self._array is None:
            core = self._core = _shared(self._core)
            return core if core.name == self._name else _renamed(core, self._name)
        if self._on_gpu is not None:
            array = self._on_gpu.on_cpu(self._name)
        else:
            array = self._array  # type: ignore[assignment]
            # Other holders of the array, or of the one it is a view of, may write to it later; so
            # may the owner of memory that is not an array's: a buffer, a torch tensor.
            if self._datatype is BYTES:
                array = _as_bytes(array)
            elif not keep and (
                sys.getrefcount(array) > _SOLE
                or (array.base is not None and not _owns_data(array.base))
                or (array.base is not None and sys.getrefcount(array.base) > _SOLE_BASE)
            ):
                array = array.copy()
        return CoreTensor(self._name, self._datatype, array.shape, array=array)

    def __repr__(self) -> str:
        return f"Tensor({self._name!r}, {self._datatype}, {self.shape()})"


class _GpuMemory:
    """A tensor in a GPU's memory, as its library passed it."""

    def __init__(
        self, source: object, capsule: object, shape: tuple[int, ...], device: tuple[int, int]
    ) -> None:
        self._source = source  # the library's own tensor, or its capsule
        self._capsule: object | None = capsule
        self.shape = shape
        self.device = device

    def capsule(self) -> object:
        """A capsule to pass on: the one we have, then new ones if the source creates them."""
        capsule, self._capsule = self._capsule, None
        if capsule is not None:
            return capsule
        if dlpack.is_capsule(self._source):
            raise TritonModelException("The DLPack capsule of this tensor was given away already.")
        made: object = self._source.__dlpack__()  # type: ignore[attr-defined]
        return made

    def on_cpu(self, name: str) -> np.ndarray:
        """A copy in the CPU's memory, made by the library of the tensor."""
        torch = sys.modules.get("torch")
        if torch is not None:
            tensor = torch.from_dlpack(self.capsule()).detach().cpu()
            if tensor.dtype == torch.bfloat16:
                tensor = tensor.view(torch.uint16)
            return np.asarray(tensor.numpy())
        cupy = sys.modules.get("cupy")
        if cupy is not None:
            return np.asarray(cupy.from_dlpack(self.capsule()).get())
        raise TritonModelException(
            f"Tensor '{name}' is stored in GPU and neither torch nor cupy is there to copy it: "
            f"copy it to the CPU first."
        )


def _converted(array: np.ndarray) -> tuple[np.ndarray, DataType]:
    """An array whose dtype the protocol does not have."""
    dtype = array.dtype
    if dtype.kind in "OSU":
        return (array if array.flags.c_contiguous else np.ascontiguousarray(array)), BYTES
    if dtype.name == "bfloat16":
        return np.ascontiguousarray(array).view(np.uint16), BF16
    swapped = dtype.newbyteorder("<")
    if swapped in _known:
        return np.ascontiguousarray(array, dtype=swapped), _known[swapped]
    raise TritonModelException(
        f"NumPy dtype is not supported. Found {dtype}; use one of "
        f"{', '.join(str(kind) for kind in _known)} or object."
    )


def _private(core: CoreTensor) -> np.ndarray:
    """A received tensor's elements, which the model may write to."""
    if not core.has_raw:
        return np.array(core.array, order="C")
    if core.datatype is BYTES:
        return core.array  # decoded for this request alone
    raw = core.raw
    if isinstance(raw, memoryview) and not raw.readonly and isinstance(raw.obj, np.ndarray):
        return core.array  # the buffer this request was received into
    copy: np.ndarray = np.ndarray(core.shape, core.datatype.numpy, bytearray(raw))
    return copy


def _shared(core: CoreTensor) -> CoreTensor:
    """The tensor, shared and read-only."""
    raw = core.raw if core.has_raw else None
    if not isinstance(raw, memoryview) or raw.readonly:
        return core
    return CoreTensor(core.name, core.datatype, core.shape, raw=raw.toreadonly())


def _renamed(core: CoreTensor, name: str) -> CoreTensor:
    array = core.array if not core.has_raw else None
    raw = core.raw if core.has_raw else None
    return CoreTensor(name, core.datatype, core.shape, raw=raw, array=array)


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """A new object array of `bytes`: text as UTF-8, anything else as its text."""
    elements = array.reshape(-1).tolist()
    made = np.empty(len(elements), dtype=object)
    for index, element in enumerate(elements):
        made[index] = element if type(element) is bytes else _encoded(element)
    return made.reshape(array.shape)


def _encoded(element: object) -> bytes:
    return bytes(element) if isinstance(element, bytes) else str(element).encode()


def _owns_data(base: object) -> bool:
    return type(base) is np.ndarray and base.flags.owndata


def _sole_counts() -> tuple[int, int]:
    """The `sys.getrefcount` in `_to_core` of an array and a base without other references.

    Measured, because it depends on how an interpreter counts its own short-lived references.
    """

    class Holder:
        __slots__ = ("_array",)

        def __init__(self, array: np.ndarray) -> None:
            self._array: np.ndarray | None = array

    holder = Holder(np.zeros(2, np.uint8)[:1])
    array: np.ndarray = holder._array  # type: ignore[assignment]
    return sys.getrefcount(array), sys.getrefcount(array.base)


_SOLE, _SOLE_BASE = _sole_counts()
