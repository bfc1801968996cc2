"""The interface of a function, made from its declaration: fields with JSON schemas."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from shoal.backends.function import base64_text
from shoal.backends.function.hints import ArgumentKind
from shoal.backends.function.paths import RoutePath
from shoal.backends.function.ports import Port
from shoal.core.dtypes import BOOL, BYTES
from shoal.core.interface import (
    FunctionField,
    FunctionInterface,
    ResultForm,
    Schema,
    ValueForm,
)


def describe(
    function: Callable[..., Any],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    *,
    result: ResultForm,
    batched: bool,
    streams: bool,
    route: RoutePath,
    text: str,
) -> FunctionInterface:
    """The interface of `function`; `text` is its docstring."""
    parameters = inspect.signature(function).parameters
    summary, _, rest = inspect.cleandoc(text).partition("\n")
    return FunctionInterface(
        inputs=tuple(
            _field(port, parameters[port.argument].default if port.argument in parameters else None)
            for port in inputs
        ),
        outputs=tuple(_field(port) for port in outputs),
        result=result,
        batched=batched,
        streams=streams,
        method=route.method,
        path=route.path,
        summary=summary.strip().rstrip("."),
        description=rest.strip(),
    )


def _field(port: Port, default: Any = None) -> FunctionField:
    is_single = port.squeezed or port.kind is ArgumentKind.VALUE
    form = _form(port)
    schema = _element(port, form)
    for size in () if is_single else reversed(port.dims):
        bounds = {} if size == -1 else {"minItems": size, "maxItems": size}
        definitions = schema.pop("$defs", None)
        schema = {"type": "array", "items": schema, **bounds}
        if definitions:
            schema["$defs"] = definitions
    if port.optional:
        schema = {**schema, **_default(default)}
    return FunctionField(
        name=port.name,
        form=form,
        datatype=port.datatype.name,
        dims=port.dims,
        is_single=is_single,
        schema=schema,
        optional=port.optional,
        media=port.codec.media if port.codec is not None else "",
    )


def _form(port: Port) -> ValueForm:
    if port.codec is not None:
        return port.codec.form
    if port.datatype is not BYTES:
        return ValueForm.NUMBERS
    # An array of bytes is what a tensor of texts is, too.
    return ValueForm.TEXT if port.text or port.kind is ArgumentKind.ARRAY else ValueForm.BINARY


def _element(port: Port, form: ValueForm) -> Schema:
    if port.codec is not None:
        return dict(port.codec.schema)
    if form is ValueForm.BINARY:
        return dict(base64_text.SCHEMA)
    if form is ValueForm.TEXT:
        return {"type": "string"}
    if port.datatype is BOOL:
        return {"type": "boolean"}
    return {"type": "integer" if port.datatype.numpy.kind in "iu" else "number"}


def _default(value: Any) -> Schema:
    """The default of an argument, where JSON has a form for it."""
    if value is None:
        return {}
    try:
        return {"default": orjson.loads(orjson.dumps(value))}
    except (TypeError, ValueError):
        return {}
