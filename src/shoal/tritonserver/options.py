"""`tritonserver.Options`: the options of Triton's C API, and those of the server that they mean."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from typing import Any

from shoal.tritonserver.enums import InstanceGroupKind, LogFormat, ModelControlMode, RateLimitMode
from shoal.tritonserver.errors import InvalidArgumentError, UnsupportedError

uint = int
_NEVER_SECS = 1e9  # Triton's API looks at repositories only when it is asked to


@dataclass(slots=True)
class RateLimiterResource:
    """How much there is of a resource."""

    name: str
    count: uint
    device: int


@dataclass(slots=True)
class ModelLoadDeviceLimit:
    """How much of a device's memory models may use."""

    kind: InstanceGroupKind
    device: uint
    fraction: float


@dataclass(slots=True)
class Options:
    """The options of a server; `Server.start` checks them. Docs: docs/in-process.md."""

    model_repository: str | list[str] = field(default_factory=list)
    server_id: str = "triton"
    model_control_mode: ModelControlMode = ModelControlMode.NONE
    startup_models: list[str] = field(default_factory=list)
    strict_model_config: bool = False

    rate_limiter_mode: RateLimitMode = RateLimitMode.OFF
    rate_limiter_resources: list[RateLimiterResource] = field(default_factory=list)

    pinned_memory_pool_size: uint = 1 << 28
    cuda_memory_pool_sizes: dict[int, uint] = field(default_factory=dict)

    cache_config: dict[str, dict[str, Any]] = field(default_factory=dict)
    cache_directory: str = "/opt/tritonserver/caches"

    min_supported_compute_capability: float = 6.0

    exit_on_error: bool = True
    strict_readiness: bool = True
    exit_timeout: uint = 30
    buffer_manager_thread_count: uint = 0
    model_load_thread_count: uint = 4
    model_load_retry_count: uint = 0
    model_namespacing: bool = False
    enable_peer_access: bool = True

    log_file: str | None = None
    log_info: bool = False
    log_warn: bool = False
    log_error: bool = False
    log_format: LogFormat = LogFormat.DEFAULT
    log_verbose: uint = 0

    metrics: bool = True
    gpu_metrics: bool = True
    cpu_metrics: bool = True
    metrics_interval: uint = 2000

    backend_directory: str = "/opt/tritonserver/backends"
    repo_agent_directory: str = "/opt/tritonserver/repoagents"
    model_load_device_limits: list[ModelLoadDeviceLimit] = field(default_factory=list)
    backend_configuration: dict[str, dict[str, str]] = field(default_factory=dict)
    host_policies: dict[str, dict[str, str]] = field(default_factory=dict)
    metrics_configuration: dict[str, dict[str, str]] = field(default_factory=dict)

    def _check(self) -> None:
        """Raise TypeError for a value of another type, and InvalidArgumentError for models that
        cannot be meant."""
        if self.model_repository is None:
            raise InvalidArgumentError("Model repository must be specified.")
        if "*" in self.startup_models and len(self.startup_models) > 1:
            raise InvalidArgumentError(
                "Wildcard model name '*' must be the ONLY startup model if specified at all."
            )
        hints = typing.get_type_hints(Options)
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            kinds = _classes(hints[each.name])
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                expected = " or ".join(kind.__name__ for kind in kinds)
                raise TypeError(f"{each.name} takes {expected}, found {value!r}")

    def _repositories(self) -> list[str]:
        paths = self.model_repository
        return paths if isinstance(paths, list) else [paths]

    def _settings(self) -> dict[str, Any]:
        """The options of `shoal.Server` by name. Those that have their defaults are left out."""
        explicit = self.model_control_mode is ModelControlMode.EXPLICIT
        settings: dict[str, Any] = {
            "allow_http": False,
            "allow_grpc": False,
            "allow_metrics": False,  # no port; `Server.metrics` needs none
            "model_control_mode": self.model_control_mode.name.lower(),
            "repository_poll_secs": _NEVER_SECS,
            "load_model": list(self.startup_models) if explicit else [],
            "log_file": self.log_file or "",
            "log_verbose": self.log_verbose,
            # Each level brings the next ones, as in Triton's API.
            "log_info": self.log_info or self.log_verbose > 0,
            "log_warning": self.log_warn or self.log_info or self.log_verbose > 0,
            "log_error": self.log_error or self.log_warn or self.log_info or self.log_verbose > 0,
            "log_format": "ISO8601" if self.log_format is LogFormat.ISO8601 else "default",
        }
        if self.rate_limiter_mode is RateLimitMode.EXEC_COUNT:
            settings["rate_limit"] = "execution_count"
        default = Options()
        for name, option in _SAME_VALUE.items():
            if getattr(self, name) != getattr(default, name):
                settings[option] = getattr(self, name)
        settings |= {name: values for name, values in self._lists().items() if values}
        return settings

    def _lists(self) -> dict[str, list[Any]]:
        """The options that have several values."""
        return {
            "rate_limit_resource": [
                f"{each.name}:{each.count}" + (f":{each.device}" if each.device >= 0 else "")
                for each in self.rate_limiter_resources
            ],
            "cuda_memory_pool_byte_size": [
                f"{device}:{size}" for device, size in self.cuda_memory_pool_sizes.items()
            ],
            "model_load_gpu_limit": [_gpu_limit(each) for each in self.model_load_device_limits],
            "cache_config": _named(self.cache_config),
            "backend_config": _named(self.backend_configuration),
            "host_policy": _named(self.host_policies),
            "metrics_config": _named(self.metrics_configuration),
        }


# Options that have the same values under another name, or under the same.
_SAME_VALUE = {
    "server_id": "id",
    "strict_model_config": "disable_auto_complete_config",
    "pinned_memory_pool_size": "pinned_memory_pool_byte_size",
    "cache_directory": "cache_directory",
    "min_supported_compute_capability": "min_supported_compute_capability",
    "exit_on_error": "exit_on_error",
    "strict_readiness": "strict_readiness",
    "exit_timeout": "exit_timeout_secs",
    "buffer_manager_thread_count": "buffer_manager_thread_count",
    "model_load_thread_count": "model_load_thread_count",
    "model_load_retry_count": "model_load_retry_count",
    "model_namespacing": "model_namespacing",
    "enable_peer_access": "enable_peer_access",
    "gpu_metrics": "allow_gpu_metrics",
    "cpu_metrics": "allow_cpu_metrics",
    "metrics_interval": "metrics_interval_ms",
    "backend_directory": "backend_directory",
    "repo_agent_directory": "repoagent_directory",
}


def _named(settings: dict[str, dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [
        (name, key, str(value))
        for name, values in settings.items()
        for key, value in values.items()
    ]


def _gpu_limit(limit: ModelLoadDeviceLimit) -> str:
    if limit.kind is not InstanceGroupKind.GPU:
        raise UnsupportedError(
            f"given device kind is not supported, got: {limit.kind.name}; only GPU is"
        )
    return f"{limit.device}:{limit.fraction}"


def _classes(hint: Any) -> tuple[type, ...]:
    """The classes that a value of this type may have."""
    if isinstance(hint, types.UnionType):
        return tuple(kind for each in typing.get_args(hint) for kind in _classes(each))
    if hint is float:
        return (float, int)
    return (typing.get_origin(hint) or hint,)
