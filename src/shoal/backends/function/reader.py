"""Reads the inputs and outputs of a function, from its types and its declaration.

    def add(a: npt.NDArray[np.float32], b: ...) -> ...    +    inputs=, outputs=    -->    ports

Missing and contradictory declarations raise a ConfigError that names the file, the function and the
argument, and says what to write.
"""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args, get_origin

from shoal.backends.function import hints as types
from shoal.backends.function import ports
from shoal.backends.function.hints import EXAMPLES, ArgumentKind, TensorHint
from shoal.backends.function.ports import Port
from shoal.backends.function.tensor import Tensor
from shoal.core.interface import ResultForm
from shoal.errors import ConfigError, InvalidArgument

METHODS = ("__call__", "predict")  # of a class, the first it has is the model
_RETURN = "return"
_KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """The location of a function, for error messages."""

    file: str  # a short path, with the line
    function: str
    path: str = ""  # of the file, absolute; "" if there is none

    @classmethod
    def of(cls, target: Any) -> SourceLocation:
        """The place of a function or class."""
        name = getattr(target, "__qualname__", None) or type(target).__name__
        code = _code(target)
        name = name.rpartition("<locals>.")[2]
        if code is None:
            return cls("", name)
        return cls(f"{_short(code.co_filename)}:{code.co_firstlineno}", name, code.co_filename)

    def error(self, message: str, *, argument: str = "", fix: str = "") -> ConfigError:
        """The error about the function, or about one of its arguments."""
        within = f"({argument})" if argument else ""
        return ConfigError(message, file=self.file, field=f"{self.function}{within}", fix=fix)


@dataclass(frozen=True, slots=True)
class FunctionSignature:
    """The inputs and outputs of a function."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    returns_tuple: bool  # even if there is only one output
    result: ResultForm
    streams: bool
    is_async: bool


def read(
    function: Callable[..., Any],
    place: SourceLocation,
    *,
    inputs: Any,
    outputs: Any,
    batched: bool,
    method: bool = False,
) -> FunctionSignature:
    """The signature of `function`; with `method` its first argument is the object."""
    hints = _hints(function, place)
    parameters = list(inspect.signature(function).parameters.values())[1 if method else 0 :]
    returned = hints.get(_RETURN)
    yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    streams = yields or types.is_stream(returned)  # it may return the generator of another function
    is_async = (
        inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
        or types.is_async_stream(returned)
    )
    taken = _inputs(parameters, hints, inputs, place, batched=batched)
    if streams:
        if batched:
            raise place.error(
                "a function that yields answers one request at a time, so it cannot have batch=",
                fix="Remove batch=, or return all rows at once instead of yielding",
            )
        returned = types.streamed(returned)
    given, returns_tuple, result = _outputs(
        returned, outputs, place, batched=batched, streams=streams
    )
    for kind, found in (("inputs", taken), ("outputs", given)):
        twice = {name for name in ports.names(found) if ports.names(found).count(name) > 1}
        if twice:
            raise place.error(
                f"two of its {kind} are called '{twice.pop()}'", fix="Give each its own name"
            )
    return FunctionSignature(taken, given, returns_tuple, result, streams, is_async)


# ---- inputs


def _inputs(
    parameters: Sequence[inspect.Parameter],
    hints: Mapping[str, Any],
    declared: Any,
    place: SourceLocation,
    *,
    batched: bool,
) -> tuple[Port, ...]:
    takes_rest = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    named = [p for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
    for parameter in named:
        if parameter.kind not in _KEYWORDS:
            raise place.error(
                "inputs are passed by name, which this argument does not allow",
                argument=str(parameter),
                fix="Write a plain argument; a / or a * argument cannot be an input",
            )
    said = _by_argument(declared, [p.name for p in named], place, takes_rest=takes_rest)
    found: list[Port] = []
    for parameter in named:
        reading = _reading(
            parameter.name,
            hints.get(parameter.name),
            said.pop(parameter.name, None),
            place,
            batched=batched,
        )
        if parameter.default is not inspect.Parameter.empty:
            reading = replace(reading, optional=True)
        elif reading.optional:
            raise place.error(
                "clients may leave it out, but the function needs it",
                argument=parameter.name,
                fix=f"Give it a default: {parameter.name}=None",
            )
        found.append(_port(reading, parameter.name, place, batched=batched))
    for name, tensor in said.items():  # what goes into **arguments
        reading = _reading(name, None, tensor, place, batched=batched)
        found.append(_port(reading, name, place, batched=batched))
    return tuple(found)


def _by_argument(
    declared: Any, names: Sequence[str], place: SourceLocation, *, takes_rest: bool
) -> dict[str, Tensor]:
    """`inputs=` by argument: a mapping, or a list in the order of the arguments."""
    if declared is None:
        return {}
    if isinstance(declared, Mapping):
        said = {str(name): _tensor(what, place, str(name)) for name, what in declared.items()}
    elif isinstance(declared, (list, tuple)):
        if len(declared) != len(names):
            raise place.error(
                f"inputs= lists {len(declared)} tensors, but the function has {len(names)} "
                "arguments",
                fix="Give one for each argument, in their order, or write inputs={name: type}",
            )
        said = dict(zip(names, (_named(what, place) for what in declared), strict=True))
    else:
        raise place.error(
            f"inputs= is {declared!r}",
            fix='Write inputs={"x": np.float32} with the names of the arguments',
        )
    unknown = [name for name in said if name not in names]
    if unknown and not takes_rest:
        raise place.error(
            f"inputs= names '{unknown[0]}', which is not an argument of the function",
            fix=f"Its arguments are: {', '.join(names) or 'none'}",
        )
    return said


# ---- outputs


def _outputs(
    returned: Any, declared: Any, place: SourceLocation, *, batched: bool, streams: bool
) -> tuple[tuple[Port, ...], bool, ResultForm]:
    """The outputs, whether the function returns a tuple even for one of them, and what they are
    together."""
    hints, returns_tuple, result = _returned(returned)
    said = _declared_outputs(declared, place)
    if said is None and hints is None:
        verb = "yields" if streams else "returns"
        kind = "Iterator[...]" if streams else "npt.NDArray[np.float32]"
        raise place.error(
            f"nothing says what it {verb}",
            argument=_RETURN,
            fix=f"Write -> {kind} behind its arguments, or outputs={{'output': np.float32}} in the "
            "decorator",
        )
    read = partial(_reading, place=place, batched=batched)
    if said is None:
        assert hints is not None
        if "" in hints:  # a dict with any keys is JSON
            hints, result = {"output": returned}, ResultForm.VALUE
        readings = {name: read(_RETURN, hint, None) for name, hint in hints.items()}
    elif hints is None or hints == {"": Any}:
        readings = {name: read(name, None, tensor) for name, tensor in said.items()}
    else:
        readings = _combined(hints, said, place, read)
    if said is not None and len(readings) > 1 and result is ResultForm.VALUE:
        result = ResultForm.OBJECT
    made = [_port(reading, name, place, batched=batched) for name, reading in readings.items()]
    return tuple(made), returns_tuple, result


def _returned(annotation: Any) -> tuple[dict[str, Any] | None, bool, ResultForm]:
    """The types by output name of a return type, {"": type} for a dict of any keys and None if it
    describes nothing; whether it is a tuple; and what the outputs are together."""
    if annotation is None or annotation is type(None):
        return None, False, ResultForm.VALUE
    by_field = types.fields(annotation)
    if by_field is not None and all(map(types.is_tensor, by_field.values())):
        is_tuple = isinstance(annotation, type) and issubclass(annotation, tuple)
        return by_field, is_tuple, ResultForm.OBJECT
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is tuple and arguments and Ellipsis not in arguments:
        named = {f"output{index}": hint for index, hint in enumerate(arguments)}
        return named, True, ResultForm.LIST
    if annotation is tuple or origin is tuple:
        return None, True, ResultForm.LIST
    if annotation is dict or origin in (dict, Mapping):
        return {"": arguments[-1] if arguments else Any}, False, ResultForm.OBJECT
    return {"output": annotation}, False, ResultForm.VALUE


def _declared_outputs(declared: Any, place: SourceLocation) -> dict[str, Tensor] | None:
    if declared is None:
        return None
    if isinstance(declared, Mapping):
        said = {str(name): _tensor(what, place, str(name)) for name, what in declared.items()}
    elif isinstance(declared, list):
        tensors = [_named(what, place) for what in declared]
        said = {tensor.name or f"output{index}": tensor for index, tensor in enumerate(tensors)}
    elif isinstance(declared, str):
        raise place.error(
            f"outputs= is '{declared}', which could be a name or a type",
            fix=f'Write outputs=["{declared}"] for the name, or outputs={{"output": "{declared}"}}',
        )
    else:
        tensor = _tensor(declared, place, "outputs")
        said = {tensor.name or "output": tensor}
    if not said:
        raise place.error("outputs= is empty", fix='Write outputs={"output": np.float32}')
    return said


def _combined(
    hints: Mapping[str, Any],
    said: Mapping[str, Tensor],
    place: SourceLocation,
    read: Callable[[str, Any, Tensor | None], TensorHint],
) -> dict[str, TensorHint]:
    """Types and declaration together: by name if names are known, else by position."""
    if list(hints) == [""]:  # dict[str, type]: one type for all of them
        return {name: read(name, hints[""], tensor) for name, tensor in said.items()}
    if set(said) <= set(hints):
        return {name: read(name, hint, said.get(name)) for name, hint in hints.items()}
    if len(said) != len(hints):
        raise place.error(
            f"outputs= lists {len(said)} tensors, but the type of what it returns has {len(hints)}",
            argument=_RETURN,
            fix="Declare as many",
        )
    pairs = zip(said.items(), hints.values(), strict=True)
    return {name: read(name, hint, tensor) for (name, tensor), hint in pairs}


# ---- one tensor


def _tensor(what: Any, place: SourceLocation, argument: str) -> Tensor:
    try:
        return types.declared(what)
    except InvalidArgument as error:
        raise place.error(error.message, argument=argument) from None


def _named(what: Any, place: SourceLocation) -> Tensor:
    """An entry of a list: a Tensor, or the name of one whose type is given elsewhere."""
    if isinstance(what, str):
        return Tensor(name=what)
    if not isinstance(what, Tensor):
        raise place.error(
            f"a list of tensors has {what!r} in it",
            fix="List names, or shoal.Tensor(...); types are given by name, as in "
            "{'x': np.float32}",
        )
    return what


def _reading(
    argument: str, hint: Any, tensor: Tensor | None, place: SourceLocation, *, batched: bool
) -> TensorHint:
    """What is known about one tensor, from its type and its declaration."""
    fix = f"Write {EXAMPLES}, or declare it with {'outputs' if argument == _RETURN else 'inputs'}="
    if hint is None and tensor is None:
        raise place.error("the argument has no type", argument=argument, fix=fix)
    try:
        if hint is None:
            reading = TensorHint()
        elif tensor is None:
            reading = types.read_any(hint, batched=batched)
        else:
            reading = types.read(hint)
    except InvalidArgument as error:
        if tensor is None or tensor.dtype is None:
            raise place.error(error.message, argument=argument, fix=fix) from None
        reading = TensorHint()  # the declaration is complete
    if tensor is None:
        return reading
    try:
        return reading.with_tensor(tensor)
    except InvalidArgument as error:
        raise place.error(error.message, argument=argument) from None


def _port(reading: TensorHint, name: str, place: SourceLocation, *, batched: bool) -> Port:
    try:
        return ports.make(reading, name, name, batched=batched)
    except InvalidArgument as error:
        if reading.kind is ArgumentKind.VALUE:
            fix = "Write list[...] or an array for it, or leave batch= out"
        elif reading.datatype is None:
            fix = f"Write {EXAMPLES}, or say it in inputs= or outputs="
        else:
            fix = "Correct one of them"
        raise place.error(error.message, argument=name, fix=fix) from None


def _hints(function: Callable[..., Any], place: SourceLocation) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # noqa: BLE001 - whatever evaluating a type's text leads to
        raise place.error(
            f"its types cannot be read: {type(error).__name__}: {error}",
            fix="Import what they name at the top of the file, or use inputs= and outputs=",
        ) from None


def _code(target: Any) -> Any:
    """The code of a function, of a method, or of the model method of a class or object."""
    if isinstance(target, type):
        methods = [vars(base).get(name) for name in METHODS for base in target.__mro__]
        target = next((method for method in methods if hasattr(method, "__code__")), None)
    elif not inspect.isroutine(target):
        target = getattr(target, "__call__", None)  # noqa: B004 - its code, not whether it has one
    return getattr(inspect.unwrap(target), "__code__", None) if callable(target) else None


def _short(path: str) -> str:
    """A short path: relative if it is below the current folder."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        return path
    return path if relative.startswith("..") or path.startswith("<") else relative
