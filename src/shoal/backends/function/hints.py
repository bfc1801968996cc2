"""Tensors from type annotations.

    npt.NDArray[np.float32]                        an array of FP32
    np.ndarray[tuple[int, int], np.dtype[np.int8]] an array of INT8 with two dimensions
    Annotated[npt.NDArray[np.float32], (3, -1)]    an array of FP32 whose rows have this shape
    list[str], list[float]                         values, one after the other
    str, float, int, bool, np.float32              a single value
    bytes, BinaryIO, PIL.Image.Image               a file
    dict, dataclasses, Pydantic models             JSON, see `structured`

Other types raise InvalidArgument with what to write; the caller adds the name of the function.
"""

from __future__ import annotations

import collections.abc
import enum
import types
import typing
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np

from shoal.backends.function.elements import ElementCodec, codec_of
from shoal.backends.function.tensor import Tensor, is_text, to_datatype, to_dims
from shoal.core.dtypes import BYTES, DataType
from shoal.errors import InvalidArgument

_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_VALUES = (bool, int, float, str, bytes)
_STREAMS = (collections.abc.Iterator, collections.abc.Generator)
_ASYNC_STREAMS = (
    collections.abc.AsyncIterator,
    collections.abc.AsyncGenerator,
    collections.abc.AsyncIterable,
)
EXAMPLES = "npt.NDArray[np.float32], list[str], float, bytes or dict"


class ArgumentKind(enum.Enum):
    """The kind of value that the function receives for a tensor."""

    ARRAY = "an array"
    LIST = "a list"
    VALUE = "a single value"


@dataclass(frozen=True, slots=True)
class TensorHint:
    """What is known about a tensor. None and empty texts mean unknown."""

    kind: ArgumentKind = ArgumentKind.ARRAY
    datatype: DataType | None = None
    text: bool = False  # `str` rather than `bytes`
    python: bool = False  # a single value is a Python object, not one of numpy's
    seen: tuple[int, ...] | None = None  # the shape in the function, with the batch
    dims: tuple[int, ...] | None = None  # the shape without the batch dimension
    name: str = ""
    labels: str = ""
    optional: bool = False
    codec: ElementCodec | None = None  # of elements that are not bytes for the function

    def with_tensor(self, tensor: Tensor) -> TensorHint:
        """This, completed by `tensor`. InvalidArgument if the two contradict each other."""
        datatype = tensor.datatype
        known = self.datatype
        if datatype is not None and known is not None and datatype is not known:
            raise InvalidArgument(
                f"the type is {known}, but the declaration says {datatype}; keep one of them"
            )
        dims = tensor.dims
        return replace(
            self,
            datatype=datatype or known,
            text=self.text or tensor.is_text,
            dims=self.dims if dims is None else dims,
            name=tensor.name or self.name,
            labels=tensor.labels or self.labels,
        )


def read_any(annotation: Any, *, batched: bool) -> TensorHint:
    """The tensor of `annotation`, or the JSON that it describes. Raises InvalidArgument.

    JSON is one element of a tensor; with `batched` a list has one for each row.
    """
    try:
        return read(annotation)
    except InvalidArgument:
        from shoal.backends.function.structured import JsonConverter  # few functions need it

        rows = get_args(annotation) if batched and get_origin(annotation) in _LISTS else ()
        hint = TensorHint(
            ArgumentKind.VALUE,
            BYTES,
            python=True,
            seen=(),
            codec=JsonConverter(rows[0] if rows else annotation),
        )
        return replace(hint, kind=ArgumentKind.LIST, seen=(-1,)) if rows else hint


def read(annotation: Any) -> TensorHint:
    """The tensor of `annotation`. Raises InvalidArgument if it describes none."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if hasattr(origin, "__value__"):  # `type NDArray[T] = ...`, as in numpy from 2.5 on
        return read(origin.__value__[arguments])
    if hasattr(annotation, "__value__"):  # the same without parameters
        return read(annotation.__value__)
    if origin is Annotated:
        return _annotated(read(arguments[0]), arguments[1:])
    if origin is Union or origin is types.UnionType:
        inner = [argument for argument in arguments if argument is not types.NoneType]
        if len(inner) == 1 and len(arguments) == 2:
            return replace(read(inner[0]), optional=True)
        raise _no_tensor(annotation)
    if annotation is np.ndarray:
        return TensorHint()
    if origin is np.ndarray:
        return _array(arguments)
    if origin in _LISTS and len(arguments) == 1:
        return _list(annotation, arguments[0])
    codec = codec_of(annotation)
    if codec is not None:
        return TensorHint(ArgumentKind.VALUE, BYTES, python=True, seen=(), codec=codec)
    if annotation in _VALUES:
        kind = to_datatype(annotation)
        return TensorHint(ArgumentKind.VALUE, kind, is_text(annotation), python=True, seen=())
    if isinstance(annotation, type) and issubclass(annotation, np.generic):
        text = is_text(annotation)
        return TensorHint(ArgumentKind.VALUE, to_datatype(annotation), text, python=text, seen=())
    raise _no_tensor(annotation)


def is_tensor(annotation: Any) -> bool:
    """Whether `read` would return something."""
    try:
        read(annotation)
    except InvalidArgument:
        return False
    return True


def declared(what: Any) -> Tensor:
    """An entry of `inputs=` or `outputs=`: a Tensor, a type, or both type and shape."""
    if isinstance(what, Tensor):
        return what
    if isinstance(what, tuple):
        if len(what) == 2 and isinstance(what[1], (tuple, list)):
            return Tensor(what[0], tuple(what[1]))
        raise InvalidArgument(
            f"{what!r} is not a tensor; write the type and the shape, as in (np.float32, (3, -1))"
        )
    return Tensor(what)


def streamed(annotation: Any) -> Any:
    """The type of an iterator's items; None if it is unknown."""
    if is_stream(annotation) or get_origin(annotation) is collections.abc.Iterable:
        return get_args(annotation)[0]
    return None


def is_stream(annotation: Any) -> bool:
    """Whether a type is that of an iterator or generator."""
    return get_origin(annotation) in _STREAMS or is_async_stream(annotation)


def is_async_stream(annotation: Any) -> bool:
    """Whether its items must be awaited."""
    return get_origin(annotation) in _ASYNC_STREAMS


def fields(annotation: Any) -> dict[str, Any] | None:
    """The tensors by name of a NamedTuple, TypedDict or dataclass; else None."""
    if not isinstance(annotation, type):
        return None
    named = issubclass(annotation, tuple) and hasattr(annotation, "_fields")
    if named or typing.is_typeddict(annotation) or hasattr(annotation, "__dataclass_fields__"):
        return typing.get_type_hints(annotation, include_extras=True)
    return None


def _annotated(reading: TensorHint, notes: tuple[Any, ...]) -> TensorHint:
    for note in notes:
        if isinstance(note, Tensor):
            reading = reading.with_tensor(note)
        elif isinstance(note, (tuple, list)):
            reading = replace(reading, dims=to_dims(note))
    return reading


def _array(arguments: tuple[Any, ...]) -> TensorHint:
    """`np.ndarray[shape, np.dtype[type]]`, for which NDArray is short."""
    shape, dtype = arguments[0], arguments[1] if len(arguments) > 1 else Any
    element = get_args(dtype)[0] if get_origin(dtype) is np.dtype else Any
    if not isinstance(element, type) or element in (np.generic, np.number, np.floating, np.integer):
        return TensorHint(seen=_shape(shape))
    return TensorHint(datatype=to_datatype(element), text=is_text(element), seen=_shape(shape))


def _shape(shape: Any) -> tuple[int, ...] | None:
    sizes = get_args(shape)
    if get_origin(shape) is not tuple or Ellipsis in sizes:
        return None
    if sizes == ((),):  # how Python 3.10 spells tuple[()]
        return ()
    return tuple(_size(size) for size in sizes)


def _size(size: Any) -> int:
    if get_origin(size) is Literal and isinstance(get_args(size)[0], int):
        return int(get_args(size)[0])
    return -1


def _list(annotation: Any, element: Any) -> TensorHint:
    inner = read(element)
    nested_codec = inner.codec is not None and inner.kind is ArgumentKind.LIST
    if inner.kind is ArgumentKind.ARRAY or inner.optional or inner.seen is None or nested_codec:
        raise _no_tensor(annotation)
    return replace(inner, kind=ArgumentKind.LIST, seen=(-1, *inner.seen))


def _no_tensor(annotation: Any) -> InvalidArgument:
    shown = getattr(annotation, "__name__", None) if isinstance(annotation, type) else None
    return InvalidArgument(f"the type {shown or annotation} does not describe a tensor")
