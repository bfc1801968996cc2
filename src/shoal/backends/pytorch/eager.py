"""Modules in Python: model.py with a class, and model.pt with its `state_dict` if it has one.

    backend: "pytorch"  runtime: "model.py"        1/model.py  1/model.pt

The class is created without arguments. The file is imported as a private module, so that models
with equal names do not conflict.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from shoal.backends.files import short_name
from shoal.backends.initialisation import initialising
from shoal.backends.python.loading import PrivateModule
from shoal.backends.pytorch.archive import ProgramKind
from shoal.backends.pytorch.library import clean_message, quiet
from shoal.backends.pytorch.names import Slot
from shoal.backends.pytorch.program import Caller, ModuleProgram
from shoal.backends.pytorch.settings import MODEL_CLASS
from shoal.errors import ConfigError, InvalidArgument

logger = logging.getLogger(__name__)


class EagerProgram(ModuleProgram):
    """A module made by the model's own code, which may write to anything."""

    kind = ProgramKind.EAGER

    def __init__(
        self,
        path: Path,
        weights: Path | None,
        device: torch.device | None,
        *,
        model_class: str = "",
        file: str = "config.pbtxt",
    ) -> None:
        """Import `path`, create the module and load its weights; None keeps its own devices.

        Raises InvalidArgument with the code's exception; then nothing stays imported.
        """
        with initialising(short_name(path)):
            self._source: PrivateModule | None = _imported(path)
            try:
                found = _module_class(self._source.module, path, model_class, file)
                self.module = _made(found, path)
                if weights is not None:
                    _load_weights(self.module, weights, device)
                if device is not None:
                    self.module.to(device)
                self.module.eval()
            except BaseException:
                self._source.close()
                raise
        self.device = device or self._first_device()
        self._by_keyword, self.inputs = _inputs(self.module)
        self.outputs = None

    def caller(self, written: Sequence[str], *, model: str, file: str) -> Caller:
        """Call the module; `**kwargs` alone take every input under its own name."""
        if self._by_keyword:
            run = self.module
            return lambda values: run(**values)
        return self.by_argument(written, model=model, file=file)

    def compile(self, options: Mapping[str, Any]) -> bool:
        """Compile the module."""
        self.module = torch.compile(self.module, **options)
        return True

    def _first_device(self) -> torch.device:
        """Where the module's first parameter is."""
        first = next(iter(self.module.parameters()), None)
        return torch.device("cpu") if first is None else first.device

    def close(self) -> None:
        """Release the module and its code."""
        super().close()
        if self._source is not None:
            self._source.close()
            self._source = None


def _imported(path: Path) -> PrivateModule:
    try:
        with quiet:
            return PrivateModule(path)
    except Exception as error:
        raise InvalidArgument(
            f"'{short_name(path)}' cannot be imported: {type(error).__name__}: "
            f"{clean_message(error)}"
        ) from error


def _module_class(source: ModuleType, path: Path, wanted: str, file: str) -> Any:
    """The class to serve: the requested one, or the first by name that the file defines."""
    every = {
        name: value
        for name, value in sorted(vars(source).items())
        if isinstance(value, type) and issubclass(value, torch.nn.Module)
    }
    if wanted:
        if wanted not in every:
            raise ConfigError(
                f"'{short_name(path)}' has no module class '{wanted}'",
                file=file,
                field=f"parameters['{MODEL_CLASS}']",
                fix=f"It has: {', '.join(every) or 'none'}",
            )
        return every[wanted]
    own = {name: kind for name, kind in every.items() if kind.__module__ == source.__name__}
    if not every:
        raise InvalidArgument(
            f"'{short_name(path)}' has no subclass of torch.nn.Module. Write the model as one; for "
            'class TritonPythonModel write backend: "python"'
        )
    name, chosen = next(iter((own or every).items()))
    if len(own) > 1:
        logger.warning(
            "'%s' has several module classes (%s): %s is served, the first by name. Write "
            'parameters { key: "%s" … } to choose another',
            short_name(path),
            ", ".join(own),
            name,
            MODEL_CLASS,
        )
    return chosen


def _made(kind: Any, path: Path) -> Any:
    try:
        with quiet:
            return kind()
    except Exception as error:
        raise InvalidArgument(
            f"the class {kind.__name__} of '{short_name(path)}' cannot be made without arguments: "
            f"{type(error).__name__}: {clean_message(error)}"
        ) from error


def _load_weights(module: Any, weights: Path, device: torch.device | None) -> None:
    try:
        with quiet:
            state = torch.load(str(weights), map_location=device, weights_only=True)
            module.load_state_dict(state)
    except Exception as error:
        raise InvalidArgument(
            f"'{short_name(weights)}' does not hold the weights of "
            f"{type(module).__name__}: {clean_message(error)}. Write it with "
            "torch.save(model.state_dict(), 'model.pt')"
        ) from error


def _inputs(module: Any) -> tuple[bool, tuple[Slot, ...] | None]:
    """Whether forward takes everything by name, and the arguments it takes otherwise."""
    kinds = inspect.Parameter
    parameters = list(inspect.signature(module.forward).parameters.values())
    if any(parameter.kind is kinds.VAR_POSITIONAL for parameter in parameters):
        return False, None
    named = [p for p in parameters if p.kind is not kinds.VAR_KEYWORD]
    if not named and parameters:
        return True, None
    return False, tuple(
        Slot((parameter.name,), required=parameter.default is kinds.empty) for parameter in named
    )
