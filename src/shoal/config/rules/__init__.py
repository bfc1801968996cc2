"""The rules that a configuration must satisfy before a model is served.

    for fault in tensors(config): ...   each rule finds faults; `check` raises the first of them

A fault's message is Triton's text if there is one, because people search for it; its fix says
what to write. Fields that are valid but have no effect are listed in `support`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shoal.config.model import ModelConfig
from shoal.config.rules.batching import dynamic_batching, sequence_batching
from shoal.config.rules.client_files import client_files
from shoal.config.rules.ensemble import ensemble
from shoal.config.rules.fault import Fault
from shoal.config.rules.files import files
from shoal.config.rules.general import general
from shoal.config.rules.instances import instances
from shoal.config.rules.parameters import parameters
from shoal.config.rules.shapes import by_shape, ragged
from shoal.config.rules.sizes import sizes
from shoal.config.rules.states import states
from shoal.config.rules.support import not_acted_on, without_use
from shoal.config.rules.tensors import batch_tensors, tensors
from shoal.config.rules.warmup import warmup
from shoal.errors import ConfigError

__all__ = [
    "Fault",
    "InvalidConfig",
    "check",
    "check_files",
    "faults",
    "not_acted_on",
    "without_use",
]

_RULES: tuple[Callable[[ModelConfig], Iterator[Fault]], ...] = (
    general,
    dynamic_batching,
    sequence_batching,
    ensemble,
    tensors,
    batch_tensors,
    parameters,
    ragged,
    by_shape,
    instances,
    files,
    states,
    warmup,
    sizes,
)


def check(config: ModelConfig, *, file: str) -> None:
    """Raise a ConfigError for the first fault of a complete config.

    Call it after the backend has filled in what the file left out: a tensor without dims or data
    type is a fault here.
    """
    for fault in faults(config):
        raise InvalidConfig(config, fault, file)


def check_files(config: ModelConfig, *, file: str, own: ModelConfig | None = None) -> None:
    """Raise a ConfigError for the first file outside the model's folder, before any is opened.

    `own` is the config in the folder, if `config` is one that a client sent.
    """
    for fault in files(config):
        raise InvalidConfig(config, fault, file)
    for fault in client_files(config, own) if own is not None else ():
        raise ConfigError(fault.message, file=file, field=fault.field, fix=fault.fix)


class InvalidConfig(ConfigError):
    """A config with faults. Its text is the first of them."""

    def __init__(self, config: ModelConfig, first: Fault, file: str) -> None:
        super().__init__(first.message, file=file, field=first.field, fix=first.fix)
        self._config = config

    def faults(self) -> list[Fault]:
        """All of them."""
        return list(faults(self._config))


def faults(config: ModelConfig) -> Iterator[Fault]:
    """All faults of a complete config."""
    for rule in _RULES:
        yield from rule(config)
