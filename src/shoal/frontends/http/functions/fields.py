"""From what a request has sent to a function's tensors.

    JSON, form, files, query, path  --read_inputs-->  {"image": Tensor, "top": Tensor}

What does not fit is refused here, before it is queued, in the caller's terms: fields, not tensors.
Only the members of JSON objects are checked where the function is, because their types are there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.backends.function import base64_text
from shoal.backends.function.field_errors import (
    described,
    listed,
    missing_fields,
    shortened,
    title,
    unknown_field,
    wrong_value,
)
from shoal.core.dtypes import BF16, BOOL, DataType, from_name
from shoal.core.interface import FunctionField, FunctionInterface, ValueForm, members_of
from shoal.core.signature import Signature
from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument
from shoal.frontends.http.upload import Upload
from shoal.tasks.request import File
from shoal.wire import json_data, json_limits, json_text
from shoal.wire.generate import shape_for

_YES, _NO = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_CHANNELS = (1, 3, 4)


class SentText(str):
    """A text of a query, path or form: it stands for a value of any type."""

    __slots__ = ()


def read_inputs(
    interface: FunctionInterface,
    upload: Upload,
    path: Mapping[str, str],
    *,
    signature: Signature | None = None,
) -> dict[str, Tensor]:
    """The inputs of a request. Raises InvalidArgument that names the field.

    A request is one row of a batch. With `signature` it may have several, and lists may be flat, as
    in `generate`.
    """
    sent = _collect(interface, upload, path)
    known = [field.name for field in interface.inputs]
    for name in sent:
        if name not in known:
            raise unknown_field(name, known)
    missing = [
        each.name for each in interface.inputs if not each.optional and each.name not in sent
    ]
    if missing:
        raise missing_fields(missing)
    reader = _Reader(interface, signature)
    return {
        field.name: reader.read(field, sent[field.name])
        for field in interface.inputs
        if field.name in sent and not _is_left_out(field, sent[field.name])
    }


def takes_pixels(field: FunctionField) -> bool:
    """Whether an image file may be sent for an array: rows, columns, and maybe channels."""
    dims = field.dims
    return (
        field.form is ValueForm.NUMBERS
        and field.datatype == "UINT8"
        and not field.is_single
        and (len(dims) == 2 or (len(dims) == 3 and dims[-1] in _CHANNELS))
    )


# ---- what was sent


def _collect(
    interface: FunctionInterface, upload: Upload, path: Mapping[str, str]
) -> dict[str, list[Any]]:
    """What was sent for each field: values of JSON, SentTexts and Files. The body takes precedence
    over the query."""
    sent: dict[str, list[Any]] = {}
    for name, text in upload.query:
        sent.setdefault(name, []).append(SentText(text))
    body: dict[str, list[Any]] = {}
    for name, text in upload.fields:
        body.setdefault(name, []).append(SentText(text))
    for file in upload.files:
        if file.field or file.data:  # a form without a chosen file has an empty one
            body.setdefault(file.field or _bare_file_field(interface, file), []).append(file)
    if upload.document is not None:
        body.update(_members(interface, upload.document))
    return {**sent, **body, **{name: [SentText(text)] for name, text in path.items()}}


def _members(interface: FunctionInterface, document: Any) -> dict[str, list[Any]]:
    """The fields of a JSON body. The only argument that is an object may be the body itself."""
    whole = interface.whole_body
    if type(document) is dict:
        if (
            whole is not None
            and whole.name not in document
            and (
                len(interface.inputs) == 1
                or not document.keys().isdisjoint(members_of(whole.schema))
            )
        ):
            return {whole.name: [document]}
        return {name: [value] for name, value in document.items()}
    if len(interface.inputs) == 1:
        return {interface.inputs[0].name: [document]}
    raise InvalidArgument(
        f"the request body must be a JSON object, not {described(document)}; "
        f"{listed(field.name for field in interface.inputs)}"
    )


def _bare_file_field(interface: FunctionInterface, file: File) -> str:
    """The field that a body which is a file is for."""
    fields = interface.inputs
    for candidates in (
        [field.name for field in fields if field.form is ValueForm.BINARY or takes_pixels(field)],
        [field.name for field in fields if field.form is ValueForm.TEXT],
        [field.name for field in fields if field.form is ValueForm.JSON],
    ):
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise InvalidArgument(
                f"the body is one file, but there are several fields it could be for; send a form: "
                f"curl -F {candidates[0]}=@FILE -F {candidates[1]}=@FILE"
            )
    kind = f" of type {shortened(file.content_type)}" if file.content_type else ""
    raise InvalidArgument(
        f"the body is a file{kind}, which the function does not take: send JSON, with "
        f"Content-Type: application/json; {listed(field.name for field in fields)}"
    )


def _is_left_out(field: FunctionField, sent: Sequence[Any]) -> bool:
    """Whether an optional field was sent as null, which means its default."""
    return field.optional and field.form is not ValueForm.JSON and list(sent) == [None]


# ---- tensors


class _Reader:
    """Makes tensors of what was sent for fields."""

    def __init__(self, interface: FunctionInterface, signature: Signature | None) -> None:
        self._batched = interface.batched
        self._signature = signature

    def read(self, field: FunctionField, sent: Sequence[Any]) -> Tensor:
        """The tensor of one field."""
        datatype = from_name(field.datatype)
        value: Any = list(sent) if len(sent) > 1 else sent[0]
        if takes_pixels(field) and all(isinstance(each, File) for each in sent):
            return self._pixels(field, datatype, sent)
        if len(sent) > 1 and field.is_single and not self._takes_rows:
            raise InvalidArgument(f"{title(field.name)} was sent {len(sent)} times; send one value")
        if isinstance(value, SentText) and not field.is_single:
            value = _listed_text(value)
        elif isinstance(value, File) and not field.is_single:
            value = [value]
        elements, shape = self._elements(field, value)
        convert = _CONVERTERS[field.form]
        array = convert(field, datatype, elements)
        full = self._shape(field, shape, len(elements))
        return Tensor(field.name, datatype, full, array=array.reshape(full))

    @property
    def _takes_rows(self) -> bool:
        return self._batched and self._signature is not None

    def _elements(self, field: FunctionField, value: Any) -> tuple[list[Any], tuple[int, ...]]:
        """The elements in order, and the shape of the lists they are in."""
        is_list = type(value) is list
        if field.form is ValueForm.JSON:
            # A list is a value of its own, unless it has a document for each row.
            has_rows = is_list and self._takes_rows and field.schema.get("type") != "array"
            return (value, (len(value),)) if has_rows else ([value], ())
        if field.is_single:
            if not is_list:
                return [value], ()
            if not self._takes_rows:
                raise wrong_value(field.name, _EXPECTED[field.form](field), value)
        elif not is_list:
            raise wrong_value(field.name, f"a list of shape {_shown(field.dims)}", value)
        elements = json_data.flatten(value)
        return elements, _shape_of(field, value, len(elements))

    def _shape(self, field: FunctionField, shape: tuple[int, ...], count: int) -> tuple[int, ...]:
        """The shape of the tensor. InvalidArgument if the lists have another one."""
        own = () if field.is_single else field.dims
        if self._signature is not None:
            spec = self._signature.inputs[field.name]
            found = shape_for(spec, self._signature, count)
            if found is not None:
                return found
        elif len(shape) == len(own) and all(
            want in (-1, got) for want, got in zip(own, shape, strict=True)
        ):
            row = field.dims if field.is_single else shape
            return (1, *row) if self._batched else row
        rows = f", or {_shown((-1, *own))} for several rows" if self._takes_rows else ""
        raise InvalidArgument(
            f"{title(field.name)} has shape {_shown(shape)}, expected {_shown(own)}{rows}"
        )

    def _pixels(self, field: FunctionField, datatype: DataType, sent: Sequence[File]) -> Tensor:
        """Image files as an array of pixels; several are rows of a batch."""
        from shoal.tasks.images.decode import Photo, flat  # needs Pillow

        if len(sent) > 1 and not self._takes_rows:
            raise InvalidArgument(f"{title(field.name)} was sent {len(sent)} times; send one file")
        arrays = []
        for file in sent:
            image = Photo(file.data, title(field.name)).decode()[0]
            channels = field.dims[2] if len(field.dims) == 3 else 0
            image = image.convert("RGBA") if channels == 4 else flat(image, grey=channels in (0, 1))
            array = np.array(image, np.uint8)
            if channels == 1:
                array = array[:, :, np.newaxis]
            if any(
                want not in (-1, got) for want, got in zip(field.dims, array.shape, strict=True)
            ):
                raise InvalidArgument(
                    f"{title(field.name)} is an image of shape {_shown(array.shape)} (rows, "
                    f"columns, channels), expected {_shown(field.dims)}"
                )
            arrays.append(array)
        if len({array.shape for array in arrays}) > 1:
            raise InvalidArgument(
                f"{title(field.name)} has images of several sizes; send them one by one"
            )
        joined = np.stack(arrays) if self._batched else arrays[0]
        return Tensor(field.name, datatype, joined.shape, array=joined)


def _shown(dims: Sequence[int]) -> str:
    """A shape in which some sizes may be any."""
    return f"[{','.join('any' if size == -1 else str(size) for size in dims)}]"


def _shape_of(field: FunctionField, value: list[Any], count: int) -> tuple[int, ...]:
    """The shape of nested lists. InvalidArgument if they are not equally long."""
    shape: list[int] = []
    inner: Any = value
    while type(inner) is list:
        shape.append(len(inner))
        inner = inner[0] if inner else None
    if math.prod(shape) != count:
        raise InvalidArgument(
            f"{title(field.name)} has lists of different lengths, expected the shape "
            f"{_shown(field.dims)}"
        )
    return tuple(shape)


def _listed_text(text: SentText) -> Any:
    """The list that a text of a query or form stands for."""
    if not text.lstrip().startswith("["):
        return [text]
    try:
        return _json_of(text)
    except json_limits.TooMuch:
        raise
    except InvalidArgument:
        return [text]


def _json_of(text: SentText) -> Any:
    """What a text of a query or form is as JSON, within the limits of a body that is JSON."""
    return json_limits.loads(text.encode("utf-8", "replace"), 0)


# ---- elements


def _texts(field: FunctionField, _datatype: DataType, elements: Sequence[Any]) -> np.ndarray:
    return _objects(field, elements, _text)


def _text(value: Any, where: str) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    if isinstance(value, File):
        data = bytes(value.data)
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"{title(where)} is not UTF-8 text: {error}") from None
        return data
    raise wrong_value(where, "a text", value)


def _files(field: FunctionField, _datatype: DataType, elements: Sequence[Any]) -> np.ndarray:
    return _objects(field, elements, _file)


def _file(value: Any, where: str) -> bytes:
    return bytes(value.data) if isinstance(value, File) else base64_text.decode(value, where)


def _documents(field: FunctionField, _datatype: DataType, elements: Sequence[Any]) -> np.ndarray:
    is_text = field.schema.get("type") == "string"

    def document(value: Any, _where: str) -> bytes:
        if isinstance(value, File):
            json_limits.check_counts(value.data, 0)  # the function parses it
            return bytes(value.data)
        if not isinstance(value, SentText) or is_text:
            return json_text.dumps(value)
        try:
            return json_text.dumps(_json_of(value))
        except json_limits.TooMuch:
            raise
        except InvalidArgument:
            return json_text.dumps(str(value))  # the function says what it expects

    return _objects(field, elements, document)


def _objects(
    field: FunctionField, elements: Sequence[Any], convert: Callable[[Any, str], bytes]
) -> np.ndarray:
    array = np.empty(len(elements), dtype=object)
    for index, value in enumerate(elements):
        array[index] = convert(
            value, field.name if len(elements) == 1 else f"{field.name}[{index}]"
        )
    return array


def _numbers(field: FunctionField, datatype: DataType, elements: Sequence[Any]) -> np.ndarray:
    if datatype is BF16:
        raise InvalidArgument(f"{title(field.name)} is BF16, which JSON has no form for")
    if {SentText, File} & set(map(type, elements)):
        elements = [_sent_number(field, datatype, each) for each in elements]
    allowed: tuple[type, ...]
    if datatype is BOOL:
        allowed = (bool,)
    else:
        allowed = (int,) if datatype.numpy.kind in "iu" else (int, float)
    if not set(map(type, elements)) <= set(allowed):
        elements = [_checked_number(field, datatype, n, each) for n, each in enumerate(elements)]
    if datatype.numpy.kind in "iu" and elements:
        limits = np.iinfo(datatype.numpy.name)
        if min(elements) < limits.min or max(elements) > limits.max:
            raise InvalidArgument(
                f"{title(field.name)} has a number that {datatype.name} cannot hold: it holds "
                f"those from {limits.min} to {limits.max}"
            )
    return np.array(elements, dtype=datatype.numpy)


def _checked_number(field: FunctionField, datatype: DataType, index: int, value: Any) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if datatype is BOOL:
        if isinstance(value, bool):
            return value
    elif is_number and datatype.numpy.kind == "f":
        return value
    elif is_number and float(value).is_integer():
        return int(value)
    where = field.name if field.is_single else f"{field.name}[{index}]"
    raise wrong_value(where, _expected_number(field), value)


def _sent_number(field: FunctionField, datatype: DataType, value: Any) -> Any:
    """The number that a text stands for; others stay as they are."""
    if isinstance(value, File):
        raise InvalidArgument(f"{title(field.name)} must be {_expected_number(field)}, not a file")
    if not isinstance(value, SentText):
        return value
    try:
        if datatype is BOOL:
            word = value.lower()
            return True if word in _YES else False if word in _NO else str(value)
        return int(value) if datatype.numpy.kind in "iu" else float(value)
    except ValueError:
        return str(value)


def _expected_number(field: FunctionField) -> str:
    kind = from_name(field.datatype)
    if kind is BOOL:
        return "true or false"
    return "a whole number" if kind.numpy.kind in "iu" else "a number"


_CONVERTERS: Mapping[ValueForm, Callable[[FunctionField, DataType, Sequence[Any]], np.ndarray]] = {
    ValueForm.TEXT: _texts,
    ValueForm.BINARY: _files,
    ValueForm.JSON: _documents,
    ValueForm.NUMBERS: _numbers,
}
_EXPECTED: Mapping[ValueForm, Callable[[FunctionField], str]] = {
    ValueForm.TEXT: lambda _: "a text",
    ValueForm.BINARY: lambda _: "a file in base64, as a text",
    ValueForm.NUMBERS: _expected_number,
}
