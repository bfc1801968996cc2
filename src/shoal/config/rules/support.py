"""The fields that Shoal reads but does not act on: who sets one is told, and the model is served.

One line per field. A feature that begins to act on a field removes its line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from shoal.config.model import ModelConfig


def _is_set(value: Any, default: Any) -> bool:
    return bool(value != default)


def _is_off(value: Any, _default: Any) -> bool:
    return value is False


_NOT_ACTED_ON: dict[str, Callable[[Any, Any], bool]] = {
    "runtime": _is_set,
    "input.allow_ragged_batch": _is_set,
    "batch_input": _is_set,
    "batch_output": _is_set,
    "optimization.priority": _is_set,
    "optimization.cuda": _is_set,
    "optimization.input_pinned_memory.enable": _is_off,
    "optimization.output_pinned_memory.enable": _is_off,
    "optimization.gather_kernel_buffer_threshold": _is_set,
    "optimization.eager_batching": _is_set,
    "instance_group.rate_limiter": _is_set,
    "instance_group.secondary_devices": _is_set,
    "instance_group.profile": _is_set,
    "instance_group.host_policy": _is_set,
    "cc_model_filenames": _is_set,
    "response_cache.enable": _is_set,
}


def not_acted_on(config: ModelConfig) -> list[str]:
    """The fields that are set in `config` and have no effect, by name, each once."""
    return [
        path
        for path, matters in _NOT_ACTED_ON.items()
        if any(matters(value, default) for value, default in _values(config, path.split(".")))
    ]


def _values(source: Any, path: list[str]) -> Iterator[tuple[Any, Any]]:
    """What stands at `path`, with the default, in every element where a list is on the way."""
    field = next(entry for entry in dataclasses.fields(source) if entry.name == path[0])
    value = getattr(source, path[0])
    if len(path) == 1:
        factory = field.default_factory
        yield value, field.default if factory is dataclasses.MISSING else factory()
        return
    if value is not None:
        for entry in value if isinstance(value, tuple) else (value,):
            yield from _values(entry, path[1:])
