"""The backend of functions.

declared in code    the backend is created for one declaration
in a repository     <model>/1/model.py has a function with @shoal.model, and config.pbtxt has
                    backend: "function"
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.backends.base import (
    Backend,
    Executor,
    LoadContext,
    LoadedModel,
    Placement,
    RequestExecutor,
)
from shoal.backends.function.asgi import ApplicationBackend, ApplicationDeclaration
from shoal.backends.function.code import CodeFile
from shoal.backends.function.declaration import BACKEND, Declaration
from shoal.backends.function.execution import AsyncLoop, FunctionExecutor, StreamExecutor
from shoal.backends.initialisation import initialising
from shoal.config.model import ModelConfig
from shoal.errors import ConfigError, Internal, ShoalError

logger = logging.getLogger(__name__)

_OURS = os.path.join("shoal", "backends", "function") + os.sep  # noqa: PTH118 - a piece of a path


class FunctionBackend(Backend):
    """Serves functions and classes with `@shoal.model`."""

    name = BACKEND
    uses_gpus = False  # a function may use one itself

    def __init__(
        self, declaration: Declaration | None = None, code: CodeFile | None = None
    ) -> None:
        """`declaration` is the model, and `code` its file; without them, files are read."""
        self._declaration = declaration
        self._code = code

    def __reduce__(self) -> tuple[Callable[..., Backend], tuple[Any, ...]]:
        """For another process: the file is imported again there."""
        declaration = self._declaration
        if declaration is None:
            return super().__reduce__()
        if self._code is None:
            raise declaration.place.error(
                "the function was passed to the server by a program, and another process cannot "
                "import it",
                fix="Serve the file with the function, or write isolation none",
            )
        return from_file, (self._code.file.absolute(), declaration.name)

    def complete(
        self,
        config: ModelConfig,
        model_folder: Path,
        version_folder: Path,
        settings: Mapping[str, str],
    ) -> ModelConfig:
        """Complete the config from the declaration."""
        del settings
        if self._declaration is not None:
            return _completed(config, self._declaration)
        code = CodeFile(_file(config, version_folder))
        try:
            return _completed(config, _only(code, config, model_folder))
        finally:
            code.release()

    def load(self, context: LoadContext) -> LoadedModel:
        """Check the config against the function; classes become objects with their instances."""
        if self._declaration is not None:
            if self._code is not None:
                self._code.hold()
            code, declaration = self._code, self._declaration
        else:
            code = CodeFile(_file(context.config, context.version_folder))
            try:
                declaration = _only(code, context.config, context.model_folder)
            except ConfigError:
                code.release()
                raise
        try:
            _check(context.config, declaration)
        except ConfigError:
            if code is not None:
                code.release()
            raise
        return FunctionModel(context.config.name, declaration, code)


class FunctionModel(LoadedModel):
    """A function that is being served."""

    def __init__(self, name: str, declaration: Declaration, code: CodeFile | None) -> None:
        self._name = name
        self._declaration = declaration
        self._code = code
        self._loop = AsyncLoop(f"{name}-asyncio")
        self._making = threading.Lock()  # guards _shared
        self._shared: Any = None  # the object of an async class, which all instances share
        self.reentrant = declaration.is_async
        self.interface = declaration.interface

    def executor(self, placement: Placement) -> Executor | RequestExecutor:
        """An instance; a class has one object per instance, unless it is async."""
        del placement
        declaration = self._declaration
        function, close = self._function()
        kind = StreamExecutor if declaration.streams else FunctionExecutor
        return kind(declaration, function, self._loop, close)

    def _function(self) -> tuple[Callable[..., Any], Callable[[], None]]:
        """The function that an instance calls, and the one to call at its end."""
        declaration = self._declaration
        if not declaration.is_class:
            return declaration.target, lambda: None
        if not declaration.is_async:
            made = self._make()
            return getattr(made, declaration.method), lambda: self._end(made)
        with self._making:
            if self._shared is None:
                self._shared = self._make()
        return getattr(self._shared, declaration.method), lambda: None

    def _make(self) -> Any:
        """A loaded object of the class. Internal, with the line, if that fails."""
        declaration = self._declaration
        try:
            with initialising(self._name):
                made = declaration.target()
                self._call(made, "load")
        except ShoalError:
            raise
        except (Exception, SystemExit) as error:
            logger.exception("making an object of %s failed", declaration.place.function)
            raise Internal(_described(error, declaration.place.function)) from error
        return made

    def _end(self, made: Any) -> None:
        try:
            self._call(made, "close")
        except Exception:  # it is closed all the same
            logger.exception("closing an object of %s failed", self._declaration.place.function)

    def _call(self, made: Any, method: str) -> None:
        """Call a method that the class may have."""
        function = getattr(made, method, None)
        if callable(function):
            returned = function()
            if asyncio.iscoroutine(returned):
                self._loop.run(returned)

    def close(self) -> None:
        """Close the shared object, end the event loop and release the file's modules."""
        if self._shared is not None:
            self._end(self._shared)
            self._shared = None
        self._loop.stop()
        if self._code is not None:
            self._code.release()


def backend_of(declaration: Declaration | ApplicationDeclaration, code: CodeFile | None) -> Backend:
    """The backend of a function, or of an application of a file."""
    if isinstance(declaration, Declaration):
        return FunctionBackend(declaration, code)
    assert code is not None  # they are found in files only
    return ApplicationBackend(declaration, code)


def from_file(file: Path, name: str) -> Backend:
    """The backend of one model of a file."""
    code = CodeFile(file)
    if name not in code.models:
        raise ConfigError(
            f"the file has no model '{name}' any more", file=str(file), fix="Reload the model"
        )
    return backend_of(code.models[name], code)


def _file(config: ModelConfig, version_folder: Path) -> Path:
    return version_folder / (config.default_model_filename or "model.py")


def _only(code: CodeFile, config: ModelConfig, model_folder: Path) -> Declaration:
    """The model of a file in a repository: the only one, or that of the folder's name."""
    functions = {
        name: model for name, model in code.models.items() if isinstance(model, Declaration)
    }
    if len(functions) == 1:
        return next(iter(functions.values()))
    if config.name in functions:
        return functions[config.name]
    raise ConfigError(
        f"there are {len(functions)} models in this file ({', '.join(functions)}), and none "
        f"is called '{config.name}' as the folder {model_folder.name}",
        file=str(code.file),
        fix="Keep one of them, or give one the folder's name",
    )


def _completed(config: ModelConfig, declaration: Declaration) -> ModelConfig:
    declared = declaration.config
    unscheduled = config.dynamic_batching is None and config.sequence_batching is None
    return dataclasses.replace(
        config,
        max_batch_size=config.max_batch_size or declared.max_batch_size,
        input=config.input or declared.input,
        output=config.output or declared.output,
        dynamic_batching=declared.dynamic_batching if unscheduled else config.dynamic_batching,
        instance_group=config.instance_group or declared.instance_group,
        model_transaction_policy=declared.model_transaction_policy,
    )


def _check(config: ModelConfig, declaration: Declaration) -> None:
    """A config must not contradict the declaration. Raises ConfigError."""
    declared = declaration.config
    place = declaration.place
    if bool(config.max_batch_size) != bool(declared.max_batch_size):
        raise place.error(
            f"max_batch_size is {config.max_batch_size} in the config, but the function "
            f"{'takes' if declared.max_batch_size else 'does not take'} batches",
            fix="Remove max_batch_size from the config, or change batch=",
        )
    for kind, written, known in (
        ("input", config.input, declared.input),
        ("output", config.output, declared.output),
    ):
        types = {tensor.name: tensor.data_type for tensor in known}
        for tensor in written:
            if types.get(tensor.name) != tensor.data_type:
                there = ", ".join(f"{name} ({data_type})" for name, data_type in types.items())
                raise place.error(
                    f"the config has the {kind} '{tensor.name}' of {tensor.data_type}, the "
                    f"function has: {there}",
                    fix=f"Leave {kind} out of the config, or correct it",
                )
        missing = [name for name in types if name not in {tensor.name for tensor in written}]
        if missing:
            raise place.error(
                f"the config lacks the {kind} '{missing[0]}'",
                fix=f"Leave {kind} out of the config, or list all of them",
            )


def _described(error: BaseException, function: str) -> str:
    """The exception, and the line of the model's code that raised it."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if _OURS not in frame.filename
    ]
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{function} could not be made ready: {text}{where}"
