"""Between a tensor of the protocol and a function's argument or result.

    [N, *dims]  --receive-->  array, list of N, ...  --function-->  value  --give-->  [N, *dims]

Both directions copy: a function may write to its arguments, and changing its result afterwards
does not change the response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.backends.base import RowsRefused
from shoal.backends.function.elements import ElementCodec
from shoal.backends.function.hints import ArgumentKind, TensorHint
from shoal.core.casting import cast_to
from shoal.core.dtypes import BYTES, DataType, from_numpy
from shoal.core.validate import format_dims
from shoal.errors import BackendFailure, InvalidArgument


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output of a function."""

    name: str  # on the wire
    argument: str  # the function's name for it
    datatype: DataType
    dims: tuple[int, ...]  # without the batch dimension
    kind: ArgumentKind = ArgumentKind.ARRAY
    text: bool = False
    python: bool = False
    squeezed: bool = False  # the function has no last dimension, which is 1
    batched: bool = False
    optional: bool = False
    labels: str = ""
    codec: ElementCodec | None = None
    where: str = ""  # how errors name the values of a codec

    def receive(self, array: np.ndarray) -> Any:
        """The argument for a tensor. InvalidArgument for text that is not UTF-8."""
        if self.squeezed:
            array = array.reshape(array.shape[:-1])
        if self.codec is not None:
            return self._loaded(array, self.codec)
        if self.text:
            array = self._decoded(array)
        elif self.kind is ArgumentKind.ARRAY:
            return array.copy()
        if self.kind is ArgumentKind.LIST:
            return array.tolist()
        if self.kind is ArgumentKind.VALUE:
            return array.item() if self.python else array[()]
        return array.astype(np.str_)

    def give(self, value: Any, rows: int) -> np.ndarray:
        """The tensor for a function's result; BackendFailure if it does not match."""
        if self.codec is not None:
            array = self._dumped(value, self.codec)
        else:
            array = self._encoded(value) if self.datatype is BYTES else self._converted(value)
        shape: tuple[int, ...] = array.shape
        full = len(self.dims) + self.batched
        if len(self.dims) == 1 and len(shape) == full - 1 and self.dims[0] in (1, -1):
            shape = (*shape, 1)
        own = shape[1:] if self.batched else shape
        fits = len(shape) == full and all(
            want in (-1, got) for want, got in zip(self.dims, own, strict=True)
        )
        if not fits:
            expected = format_dims((rows, *self.dims) if self.batched else self.dims)
            raise BackendFailure(
                f"output '{self.name}' has shape {format_dims(shape)}, but {expected} is declared; "
                f"a shape is declared as Annotated[npt.NDArray[np.float32], (3, -1)] or with "
                f"outputs="
            )
        if self.batched and shape[0] != rows:
            raise BackendFailure(
                f"output '{self.name}' has {shape[0]} rows for a batch of {rows}: return one row "
                f"for each row of the inputs"
            )
        return array.reshape(shape)

    # ---- files and JSON

    def _loaded(self, array: np.ndarray, codec: ElementCodec) -> Any:
        """The function's values for elements. Raises RowsRefused for a batch with invalid ones."""
        loaded: list[Any] = []
        refused: dict[int, InvalidArgument] = {}
        for row, each in enumerate(array.reshape(-1).tolist()):
            try:
                data = each.encode() if isinstance(each, str) else bytes(each)
                loaded.append(codec.decode(data, self.where))
            except InvalidArgument as error:
                if not self.batched:
                    raise
                refused[row] = error
        if refused:
            raise RowsRefused(refused)
        return loaded if self.kind is ArgumentKind.LIST else loaded[0]

    def _dumped(self, value: Any, codec: ElementCodec) -> np.ndarray:
        """The elements for a function's values."""
        if self.kind is not ArgumentKind.LIST:
            values = [value]
        elif isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
            raise BackendFailure(
                f"output '{self.name}' should be a list, but the function returned an object of "
                f"type {type(value).__name__}"
            )
        else:
            values = list(value)
        encoded = np.empty(len(values), dtype=object)
        for index, each in enumerate(values):
            try:
                encoded[index] = codec.encode(each)
            except BackendFailure as error:
                raise BackendFailure(f"output '{self.name}': {error.message}") from error
        return encoded

    # ---- text

    def _decoded(self, array: np.ndarray) -> np.ndarray:
        """The elements as `str`."""
        decoded = np.empty(array.size, dtype=object)
        for index, element in enumerate(array.reshape(-1).tolist()):
            try:
                decoded[index] = element.decode() if isinstance(element, bytes) else element
            except UnicodeDecodeError as error:
                raise InvalidArgument(f"input '{self.name}' is not UTF-8 text: {error}") from None
        return decoded.reshape(array.shape)

    def _encoded(self, value: Any) -> np.ndarray:
        """The elements as `bytes`."""
        array = np.asarray(value, dtype=object)
        encoded = np.empty(array.size, dtype=object)
        for index, element in enumerate(array.reshape(-1).tolist()):
            if isinstance(element, str):
                encoded[index] = element.encode()
            elif isinstance(element, (bytes, bytearray, memoryview)):
                encoded[index] = bytes(element)
            else:
                raise BackendFailure(
                    f"output '{self.name}' should hold text, but has an element of type "
                    f"{type(element).__name__}"
                )
        return encoded.reshape(array.shape)

    # ---- numbers

    def _converted(self, value: Any) -> np.ndarray:
        wanted = self.datatype.numpy
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise BackendFailure(f"output '{self.name}' is no array: {error}") from None
        cast = cast_to(array, wanted)
        if cast is not None:
            return cast
        if array.dtype.kind in "iu" and wanted.kind in "iu":
            raise BackendFailure(f"output '{self.name}' has numbers that {self.datatype} cannot be")
        raise BackendFailure(
            f"output '{self.name}' is {self.datatype}, but the function returned "
            f"{_type_of(value, array)}; convert it, for instance with "
            f".astype(np.{wanted.name})"
        )


def make(reading: TensorHint, name: str, argument: str = "", *, batched: bool) -> Port:
    """The port for a tensor. InvalidArgument if too little is known about it."""
    if reading.datatype is None:
        raise InvalidArgument("the type of its elements is unknown")
    dims, squeezed = _dims(reading, batched=batched)
    return Port(
        reading.name or name,
        argument,
        reading.datatype,
        dims,
        reading.kind,
        reading.text,
        reading.python,
        squeezed,
        batched,
        reading.optional,
        reading.labels,
        reading.codec,
        reading.name or name,
    )


def _dims(reading: TensorHint, *, batched: bool) -> tuple[tuple[int, ...], bool]:
    """The dims of the config, and whether the function has one dimension less."""
    if batched and reading.kind is ArgumentKind.VALUE:
        raise InvalidArgument(
            "with batch= the function gets the rows of many requests at once, so a single value "
            "is not enough"
        )
    seen = reading.seen
    own = seen[1:] if batched and seen else seen
    if reading.dims is None:
        return ((-1,), False) if own is None else (own or (1,), not own)
    dims = reading.dims
    if own is None or len(own) == len(dims):
        return dims, False
    if not own and dims in ((1,), (-1,)):
        return (1,), True
    raise InvalidArgument(
        f"its shape is declared as {format_dims(dims)}, but the type has {len(own)} dimensions"
        f"{' besides the batch' if batched else ''}"
    )


def _type_of(value: Any, array: np.ndarray) -> str:
    if isinstance(value, np.ndarray) and array.dtype.kind not in "OSU":
        return from_numpy(array.dtype).name if array.dtype.kind in "biuf" else str(array.dtype)
    return f"an object of type {type(value).__name__}"


def names(ports: Sequence[Port]) -> list[str]:
    """What clients call them."""
    return [port.name for port in ports]
