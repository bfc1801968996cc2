"""The fields that Shoal reads but that have no effect: a warning names those a config sets.

One line per field. A feature that begins to use a field removes its line; a backend that alone
uses one lists it in `config.backends`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from shoal.config.backends import BACKENDS, is_python_based
from shoal.config.model import ModelConfig
from shoal.config.parameters import misspelt


def _is_set(value: Any, default: Any) -> bool:
    return bool(value != default)


def _is_off(value: Any, _default: Any) -> bool:
    return value is False


_NOT_ACTED_ON: dict[str, Callable[[Any, Any], bool]] = {
    "runtime": _is_set,
    "optimization.priority": _is_set,
    "optimization.cuda": _is_set,
    "optimization.input_pinned_memory.enable": _is_off,
    "optimization.output_pinned_memory.enable": _is_off,
    "optimization.gather_kernel_buffer_threshold": _is_set,
    "optimization.eager_batching": _is_set,
    "instance_group.secondary_devices": _is_set,
    "instance_group.profile": _is_set,
    "instance_group.host_policy": _is_set,
    "cc_model_filenames": _is_set,
}


def not_acted_on(config: ModelConfig) -> list[str]:
    """The fields that are set in `config` and have no effect, by name, each once."""
    backend = BACKENDS.get(config.backend)
    known = backend.config_fields if backend is not None else frozenset()
    if is_python_based(config.backend, config.runtime):
        known = frozenset({"runtime"})
    return [
        path
        for path, matters in _NOT_ACTED_ON.items()
        if path not in known
        and any(matters(value, default) for value, default in _values(config, path.split(".")))
    ]


def without_use(config: ModelConfig, *, cache: bool, limiter: bool) -> list[str]:
    """A warning for each misspelt parameter, and each field without its server option or device.

    The instance groups of `config` have been resolved: it is known whether they run on a GPU.
    """
    sentences = [
        f"parameters['{key}'] has no effect, because there is no such parameter. "
        f"Did you mean '{meant}'?"
        for key, meant in misspelt(config)
    ]
    if not cache and config.response_cache is not None and config.response_cache.enable:
        sentences.append(
            "response_cache.enable has no effect, because the server was started without "
            "--cache-config"
        )
    if not limiter and any(group.rate_limiter is not None for group in config.instance_group):
        sentences.append(
            "instance_group.rate_limiter has no effect, because the server was started without "
            "--rate-limit=execution_count"
        )
    accelerators = config.optimization and config.optimization.execution_accelerators
    if accelerators and accelerators.gpu_execution_accelerator and _is_on_cpus(config):
        names = ", ".join(each.name for each in accelerators.gpu_execution_accelerator)
        sentences.append(
            f"optimization.execution_accelerators.gpu_execution_accelerator ({names}) has no "
            "effect, because every instance runs on the CPU"
        )
    return sentences


def _is_on_cpus(config: ModelConfig) -> bool:
    groups = config.instance_group
    return bool(groups) and all(group.kind == "KIND_CPU" for group in groups)


def _values(source: Any, path: list[str]) -> Iterator[tuple[Any, Any]]:
    """The value at `path`, with its default, for every element of repeated fields."""
    field = next(entry for entry in dataclasses.fields(source) if entry.name == path[0])
    value = getattr(source, path[0])
    if len(path) == 1:
        factory = field.default_factory
        yield value, field.default if factory is dataclasses.MISSING else factory()
        return
    if value is not None:
        for entry in value if isinstance(value, tuple) else (value,):
            yield from _values(entry, path[1:])
