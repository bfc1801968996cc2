"""`@shoal.model`: a function or class that can be served.

    @shoal.model(batch=32)
    def double(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return 2 * x

The decorator returns the function unchanged, so that it can still be called and tested; the
declaration is stored beside it. An invalid declaration raises ConfigError at once.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from shoal.backends.function import paths, reader
from shoal.backends.function.description import describe
from shoal.backends.function.ports import Port
from shoal.backends.function.reader import METHODS, SourceLocation
from shoal.config.model import (
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelTransactionPolicy,
)
from shoal.errors import BackendFailure, InvalidArgument

Target = TypeVar("Target", bound=Callable[..., Any])

BACKEND = "function"
_KEPT = "__shoal_model__"
# Concurrent calls of an async function by default.
_ASYNC_INSTANCES = 32
_US_PER_MS = 1000


class Declaration:
    """A function or class, and how it is served. Compared by identity."""

    def __init__(
        self,
        target: Callable[..., Any],
        place: SourceLocation,
        name: str,
        *,
        batch: int,
        max_delay_ms: float,
        instances: int,
        inputs: Any,
        outputs: Any,
        config: ModelConfig,
        path: Any = "",
    ) -> None:
        self.target = target
        self.place = place
        self.name = name
        self.batch = batch
        self.is_class = isinstance(target, type)
        self.method = _method(target, place) if isinstance(target, type) else ""
        function = _function(target, self.method)
        found = reader.read(
            function,
            place,
            inputs=inputs,
            outputs=outputs,
            batched=batch > 0,
            method=self.is_class,
        )
        route = paths.read(path, place)
        self.interface = describe(
            function,
            found.inputs,
            found.outputs,
            result=found.result,
            batched=batch > 0,
            streams=found.streams,
            route=route,
            text=target.__doc__ or "",
        )
        paths.check(route, self.interface.inputs, place)
        body = self.interface.whole_body
        # The body itself has no name for those who send it.
        self.inputs = tuple(
            dataclasses.replace(port, where="")
            if body is not None and port.name == body.name and len(found.inputs) == 1
            else port
            for port in found.inputs
        )
        self.outputs = found.outputs
        self.is_async = found.is_async
        self.streams = found.streams
        self._returns_tuple = found.returns_tuple
        self._max_delay_us = round(max_delay_ms * _US_PER_MS)
        self._instances = instances or (_ASYNC_INSTANCES if self.is_async and not batch else 1)
        self._config = config

    @property
    def folder(self) -> Path:
        """The folder of labels and the like: that of the file, or the current one."""
        file = Path(self.place.path)
        return file.parent if file.is_file() else Path()

    @property
    def config(self) -> ModelConfig:
        """The model's configuration: the declaration, overridden by its `config=`."""
        made = ModelConfig(
            name=self.name,
            backend=BACKEND,
            max_batch_size=self.batch,
            input=tuple(_input(port) for port in self.inputs),
            output=tuple(_output(port) for port in self.outputs),
            dynamic_batching=ModelDynamicBatching(max_queue_delay_microseconds=self._max_delay_us)
            if self.batch
            else None,
            instance_group=(ModelInstanceGroup(kind="KIND_CPU", count=self._instances),),
            model_transaction_policy=ModelTransactionPolicy(decoupled=True)
            if self.streams
            else None,
        )
        empty = ModelConfig()
        changes = {
            field.name: getattr(self._config, field.name)
            for field in dataclasses.fields(ModelConfig)
            if getattr(self._config, field.name) != getattr(empty, field.name)
        }
        if "sequence_batching" in changes:
            made = dataclasses.replace(made, dynamic_batching=None)
        return dataclasses.replace(made, **changes)

    def unpack(self, returned: Any) -> list[Any]:
        """The result of a call, one value for each output. Raises BackendFailure."""
        if len(self.outputs) == 1 and self.outputs[0].codec is not None and not self._returns_tuple:
            return [returned]
        if isinstance(returned, Mapping):
            return [self._entry(returned, port) for port in self.outputs]
        if dataclasses.is_dataclass(returned) and not isinstance(returned, type):
            return [getattr(returned, port.argument) for port in self.outputs]
        if len(self.outputs) == 1 and not self._returns_tuple:
            return [returned]
        if isinstance(returned, (tuple, list)) and len(returned) == len(self.outputs):
            return list(returned)
        names = ", ".join(port.name for port in self.outputs)
        raise BackendFailure(
            f"{self.place.function} returned an object of type {type(returned).__name__}; it has "
            f"{len(self.outputs)} outputs ({names}), so return a tuple or a dict of them"
        )

    def _entry(self, returned: Mapping[Any, Any], port: Port) -> Any:
        for key in (port.argument, port.name):
            if key in returned:
                return returned[key]
        there = ", ".join(map(str, returned)) or "nothing"
        raise BackendFailure(
            f"{self.place.function} returned a dict without its output '{port.name}'; there is: "
            f"{there}"
        )


@overload
def model(
    target: Target,
    /,
    *,
    name: str = "",
    inputs: Any = None,
    outputs: Any = None,
    batch: int = 0,
    max_delay_ms: float = 0.0,
    instances: int = 0,
    path: str = "",
    config: str = "",
) -> Target: ...


@overload
def model(
    *,
    name: str = "",
    inputs: Any = None,
    outputs: Any = None,
    batch: int = 0,
    max_delay_ms: float = 0.0,
    instances: int = 0,
    path: str = "",
    config: str = "",
) -> Callable[[Target], Target]: ...


def model(
    target: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    inputs: Any = None,
    outputs: Any = None,
    batch: int = 0,
    max_delay_ms: float = 0.0,
    instances: int = 0,
    path: str = "",
    config: str = "",
) -> Any:
    """Declare that a function, or a class with `__call__` or `predict`, is a model.

    `name` is by default the function's. `inputs` and `outputs` add what its types lack:
    a type, a `shoal.Tensor` or (type, shape) by name. `batch` is how many rows of requests may be
    passed at once, 0 for one request at a time; `max_delay_ms` how long a batch may wait for
    more of them. `instances` run in parallel, each on a thread; an async function awaits that
    many calls at once. `path` is the path of a route of its own, such as "/greet" (POST) or
    "GET /users/{name}". `config` is text of config.pbtxt for everything else.

    Raises ConfigError, which names the function and says what to write.
    """

    def declare(decorated: Any) -> Any:
        place = SourceLocation.of(decorated)
        _check_target(decorated, place)
        declaration = Declaration(
            decorated,
            place,
            _checked_name(name or getattr(decorated, "__name__", ""), place),
            batch=_checked_batch(batch, place),
            max_delay_ms=_checked_delay(max_delay_ms, batch, place),
            instances=_checked_instances(instances, place),
            inputs=inputs,
            outputs=outputs,
            config=_parsed(config, place),
            path=path,
        )
        return _keep(decorated, declaration)

    return declare if target is None else declare(target)


def of(target: Any) -> Declaration | None:
    """The declaration of a function or class; None for any other object."""
    found = getattr(target, "__dict__", {}).get(_KEPT)
    return found if isinstance(found, Declaration) else None


def of_all(targets: Sequence[Any]) -> dict[str, Declaration]:
    """The declarations of `targets` by model name. InvalidArgument for one that has none, and for
    two of one name."""
    found: dict[str, Declaration] = {}
    for target in targets:
        declaration = of(target)
        if declaration is None:
            shown = getattr(target, "__qualname__", None) or repr(target)
            raise InvalidArgument(f"{shown} is not a model; write @shoal.model above it")
        other = found.get(declaration.name)
        if other is not None and other is not declaration:
            raise declaration.place.error(
                f"another model is called '{declaration.name}': {other.place.function} "
                f"({other.place.file})",
                fix='Give one of them another name with @shoal.model(name="...")',
            )
        found[declaration.name] = declaration
    check_routes(list(found.values()))
    return found


def check_routes(declarations: Sequence[Declaration]) -> None:
    """Raises ConfigError for two functions with the same route."""
    owners: dict[tuple[str, str], Declaration] = {}
    for declaration in declarations:
        interface = declaration.interface
        key = (interface.method, re.sub(r"\{\w+\}", "{}", interface.path))
        other = owners.setdefault(key, declaration)
        if interface.path and other is not declaration:
            raise declaration.place.error(
                f"another function has the route {interface.method} {interface.path}: "
                f"{other.place.function} ({other.place.file})",
                fix="Give one of them another path",
            )


def _keep(target: Any, declaration: Declaration) -> Any:
    """`target` with its declaration; a bound method, or a model of several names, is wrapped in a
    function."""
    if isinstance(target, type) or of(target) is None:
        try:
            setattr(target, _KEPT, declaration)
        except (AttributeError, TypeError):
            pass  # a bound method or a built-in: see below
        else:
            return target

    @functools.wraps(target)
    def around(*arguments: Any, **keywords: Any) -> Any:
        return target(*arguments, **keywords)

    setattr(around, _KEPT, declaration)
    return around


def _method(target: type, place: SourceLocation) -> str:
    """The method that is the model."""
    # Not getattr: every class has a __call__, which makes its objects.
    own = {name for base in target.__mro__ for name in vars(base)}
    for name in METHODS:
        if name in own:
            return name
    raise place.error(
        "the class has neither __call__ nor predict",
        fix="Add def __call__(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]",
    )


def _function(target: Any, method: str) -> Callable[..., Any]:
    """The function with the types: itself, a class's method, or that of a callable object."""
    if method:
        found: Callable[..., Any] = getattr(target, method)
        return found
    if inspect.isroutine(target):
        return target
    called: Callable[..., Any] = target.__call__
    return called


# ---- checks


def _check_target(target: Any, place: SourceLocation) -> None:
    if not callable(target):
        raise place.error(
            f"@shoal.model was given an object of type {type(target).__name__}",
            fix="Write it above a function or class, with keywords only: @shoal.model(batch=32)",
        )


def _checked_name(name: str, place: SourceLocation) -> str:
    if not name or name == "<lambda>" or any(sign in name for sign in "/\\\0") or name[0] == ".":
        raise place.error(
            f"'{name}' cannot be a model's name", fix='Write @shoal.model(name="my_model")'
        )
    return name


def _checked_batch(batch: Any, place: SourceLocation) -> int:
    if batch is None or batch is False:
        return 0
    if batch is True or not isinstance(batch, int) or batch < 0:
        raise place.error(
            f"batch= is {batch!r}",
            fix="Write the largest number of rows, such as batch=32, or leave it out for one "
            "request at a time",
        )
    return batch


def _checked_delay(delay_ms: Any, batch: Any, place: SourceLocation) -> float:
    if not isinstance(delay_ms, (int, float)) or isinstance(delay_ms, bool) or delay_ms < 0:
        raise place.error(f"max_delay_ms= is {delay_ms!r}", fix="Write milliseconds, such as 2")
    if delay_ms and not batch:
        raise place.error(
            "max_delay_ms= says how long a batch waits, but there is no batch=",
            fix="Add batch=32, or remove max_delay_ms=",
        )
    return float(delay_ms)


def _checked_instances(instances: Any, place: SourceLocation) -> int:
    if not isinstance(instances, int) or isinstance(instances, bool) or instances < 0:
        raise place.error(f"instances= is {instances!r}", fix="Write how many, such as 2")
    return instances


def _parsed(text: Any, place: SourceLocation) -> ModelConfig:
    if not text:
        return ModelConfig()
    from shoal.config.pbtxt import parse_pbtxt

    if not isinstance(text, str):
        raise place.error(
            "config= is not a text", fix='Write config="response_cache { enable: true }"'
        )
    return parse_pbtxt(text, f"config= of {place.function} ({place.file})")


def _input(port: Port) -> ModelInput:
    return ModelInput(
        name=port.name,
        data_type=port.datatype.config_name,
        dims=port.dims,
        optional=port.optional,
    )


def _output(port: Port) -> ModelOutput:
    return ModelOutput(
        name=port.name,
        data_type=port.datatype.config_name,
        dims=port.dims,
        label_filename=port.labels,
    )
