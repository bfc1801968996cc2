"""What `shoal.ray:app` is told: groups of replicas, how they scale, and how clients reach them.

    the `args` of an application in a Serve config file  -->  from_dict  -->  ClusterConfig
    the options of `shoal ray up`                        -->  ClusterConfig  -->  to_dict

Every field is checked before anything is started; errors name the field and what it may be.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import InvalidArgument

# Options of `shoal serve` that a group cannot have. Ports are chosen by the system, for several
# replicas may share a node; a replica finds them in its server's log.
_OWN_OPTIONS = {
    **dict.fromkeys(
        (
            "--http-port",
            "--grpc-port",
            "--metrics-port",
            "--http-address",
            "--grpc-address",
            "--metrics-address",
            "--http-unix-socket",
            "--grpc-unix-socket",
        ),
        "every replica chooses its ports itself; the ports of clients are those of `ingress`",
    ),
    **dict.fromkeys(
        ("--allow-http", "--allow-grpc", "--allow-metrics"),
        "every replica needs all three of its ports",
    ),
    **dict.fromkeys(
        ("--log-file", "--log-info", "--log-format"),
        "a replica reads the log of its server; find it among the logs of Ray Serve",
    ),
    **dict.fromkeys(
        ("--https-cert", "--https-key", "--https-client-ca", "--grpc-use-ssl"),
        "TLS ends at the ingress: set ingress.tls_certificate and ingress.tls_key",
    ),
    "--grpc-use-ssl-mutual": "TLS ends at the ingress, which asks clients for no certificates",
    "--drain-secs": "set drain_secs of the group",
    "--exit-timeout-secs": "set exit_timeout_secs of the group",
}
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_MODEL_NAME = re.compile(r"[^\s\0\"'\\#$]+")  # in a line of HAProxy's config
_HEADER = re.compile(r"[A-Za-z0-9_-]+")
_HOST = re.compile(r"[A-Za-z0-9_.:*-]+")


@dataclass(frozen=True)
class ScalingConfig:
    """When replicas are added and removed."""

    target_utilisation: float = 0.7  # the share of a replica's capacity that is meant to be used
    drain_secs: float = 2.0  # in which waiting work is to be done by additional replicas
    interval_secs: float = 1.0  # between readings of a replica
    up_delay_secs: float = 0.0
    down_delay_secs: float = 300.0  # how long fewer replicas must be enough before one is removed
    most_added: float = 2.0  # times the present number, at once

    def check(self, where: str) -> None:
        """Raise InvalidArgument for a field that cannot work."""
        _check_range(f"{where}.target_utilisation", self.target_utilisation, 0.05, 1.0)
        _check_range(f"{where}.drain_secs", self.drain_secs, 0.05, 3600.0)
        _check_range(f"{where}.interval_secs", self.interval_secs, 0.1, 60.0)
        _check_range(f"{where}.up_delay_secs", self.up_delay_secs, 0.0, 3600.0)
        _check_range(f"{where}.down_delay_secs", self.down_delay_secs, 0.0, 86400.0)
        _check_range(f"{where}.most_added", self.most_added, 1.1, 100.0)


@dataclass(frozen=True)
class GroupConfig:
    """Replicas that are alike: the same models on the same kind of node."""

    name: str = "default"
    models: Sequence[str] = ()  # which this group alone serves; none: all that no other group does
    min_replicas: int = 1
    max_replicas: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    memory_mb: int = 0  # which Ray sets aside for a replica; 0: not considered
    labels: Mapping[str, str] = field(default_factory=dict)  # that nodes must have
    resources: Mapping[str, float] = field(default_factory=dict)  # further ones, of Ray
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    options: Sequence[str] = ()  # further ones of `shoal serve`
    drain_secs: float = 2.0  # a replica that ends answers requests for this time once it said so
    exit_timeout_secs: int = 30
    start_timeout_secs: float = 600.0  # for loading the models
    scaling: ScalingConfig = ScalingConfig()

    def check(self, where: str) -> None:
        """Raise InvalidArgument for a field that cannot work."""
        if not _NAME.fullmatch(self.name) or self.name == "Ingress":
            raise InvalidArgument(
                f"{where}.name is '{self.name}'; use letters, digits, '-' and '_' only, and not "
                f"'Ingress'"
            )
        for model in self.models:
            if not _MODEL_NAME.fullmatch(model):
                raise InvalidArgument(
                    f"{where}.models has '{model}'; names with spaces, quotes, '\\', '#' or '$' "
                    f"cannot be routed to a group"
                )
        _check_range(f"{where}.min_replicas", self.min_replicas, 1, 100_000)
        _check_range(f"{where}.max_replicas", self.max_replicas, 1, 100_000)
        if self.max_replicas < self.min_replicas:
            raise InvalidArgument(
                f"{where}.max_replicas is {self.max_replicas}, which is below min_replicas "
                f"({self.min_replicas})"
            )
        _check_range(f"{where}.cpus", self.cpus, 0.0, 100_000.0)
        _check_range(f"{where}.gpus", self.gpus, 0.0, 1000.0)
        _check_range(f"{where}.memory_mb", self.memory_mb, 0, 1 << 30)
        _check_range(f"{where}.drain_secs", self.drain_secs, 0.0, 3600.0)
        _check_range(f"{where}.exit_timeout_secs", self.exit_timeout_secs, 0, 3600)
        _check_range(f"{where}.start_timeout_secs", self.start_timeout_secs, 1.0, 86400.0)
        for option in self.options:
            name = option.partition("=")[0]
            if not name.startswith("--"):
                raise InvalidArgument(
                    f"{where}.options has '{option}'; write options of `shoal serve` as "
                    f"'--name=value'"
                )
            if name in _OWN_OPTIONS:
                raise InvalidArgument(f"{where}.options has {name}: {_OWN_OPTIONS[name]}")
        self.scaling.check(f"{where}.scaling")


@dataclass(frozen=True)
class IngressConfig:
    """How clients reach the replicas."""

    host: str = "0.0.0.0"
    http_port: int = 8000  # 0: none, as for the others
    grpc_port: int = 8001
    metrics_port: int = 8002
    balance: str = "leastconn"  # or "model": by consistent hashing, for warm caches
    sequence_header: str = "x-sequence"  # requests with the same value go to the same replica
    tls_certificate: str = ""  # PEM files; TLS for HTTP and gRPC if both are set
    tls_key: str = ""
    addresses_file: str = ""  # in which the addresses of the replicas are kept up to date
    haproxy: str = ""  # the program; by default Ray's, or the one in PATH
    node_labels: Mapping[str, str] = field(default_factory=dict)  # where it is to run

    def check(self, where: str) -> None:
        """Raise InvalidArgument for a field that cannot work."""
        names = ("http_port", "grpc_port", "metrics_port")
        for name in names:
            _check_range(f"{where}.{name}", getattr(self, name), 0, 65535)
        used = [getattr(self, name) for name in names if getattr(self, name)]
        if len(used) > len(set(used)):
            raise InvalidArgument(f"{where} has the same port twice: {', '.join(map(str, used))}")
        if not _HOST.fullmatch(self.host):
            raise InvalidArgument(f"{where}.host is '{self.host}', which is no address")
        if not _HEADER.fullmatch(self.sequence_header):
            raise InvalidArgument(
                f"{where}.sequence_header is '{self.sequence_header}', which is no name of a header"
            )
        if self.balance not in ("leastconn", "model"):
            raise InvalidArgument(
                f"{where}.balance is '{self.balance}'; it may be 'leastconn' or 'model'"
            )
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise InvalidArgument(f"{where} needs both tls_certificate and tls_key for TLS")


@dataclass(frozen=True)
class ClusterConfig:
    """A whole application."""

    repository: Sequence[str] = ()  # addresses, or paths that every node has
    groups: Sequence[GroupConfig] = (GroupConfig(),)
    ingress: IngressConfig = IngressConfig()

    def check(self) -> None:
        """Raise InvalidArgument for a field that cannot work."""
        if not self.repository:
            raise InvalidArgument(
                "'repository' is missing: name a model repository that every node can read, as "
                "s3://bucket/models or /shared/models"
            )
        if not self.groups:
            raise InvalidArgument("'groups' is empty; leave it out for one group of all models")
        for index, group in enumerate(self.groups):
            group.check(f"groups[{index}]")
        names = [group.name for group in self.groups]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidArgument(f"two groups are named '{twice}'")
        if sum(not group.models for group in self.groups) > 1:
            raise InvalidArgument(
                "several groups have no 'models'; one group only can serve all models that the "
                "others do not"
            )
        owner: dict[str, str] = {}
        for group in self.groups:
            for model in group.models:
                if owner.setdefault(model, group.name) != group.name:
                    raise InvalidArgument(
                        f"model '{model}' is in the groups '{owner[model]}' and '{group.name}'"
                    )
        self.ingress.check("ingress")


def from_dict(document: Mapping[str, Any]) -> ClusterConfig:
    """The checked config of the `args` of an application. Raises InvalidArgument.

    `repository` may be one text.
    """
    fields = dict(document)
    if isinstance(fields.get("repository"), str):
        fields["repository"] = [fields["repository"]]
    config: ClusterConfig = _read(ClusterConfig, fields, "")
    config.check()
    return config


def to_dict(config: ClusterConfig) -> dict[str, Any]:
    """The document of a config, of plain types."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(config))
    return plain


# ---- reading


def _read(kind: Any, value: Any, where: str) -> Any:
    """A value of a document as a field of a type."""
    if dataclasses.is_dataclass(kind):
        return _read_fields(kind, value, where)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _unsuitable(where, value, "an object")
        return {str(key): _read(inner[1], entry, f"{where}.{key}") for key, entry in value.items()}
    if origin is not None:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise _unsuitable(where, value, "a list")
        return tuple(_read(inner[0], entry, f"{where}[{i}]") for i, entry in enumerate(value))
    if kind is Any:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, kind):
        words = {int: "a whole number", float: "a number", str: "a text"}
        raise _unsuitable(where, value, words[kind])
    return value


def _read_fields(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _unsuitable(where, value, "an object")
    hints = typing.get_type_hints(kind)
    values = {}
    for name, entry in value.items():
        inside = f"{where}.{name}" if where else str(name)
        if name not in hints:
            near = difflib.get_close_matches(str(name), hints, 1)
            meant = f"; did you mean '{near[0]}'?" if near else f"; fields are {', '.join(hints)}"
            raise InvalidArgument(f"'{inside}' is not a field{meant}")
        values[name] = _read(hints[name], entry, inside)
    return kind(**values)


def _unsuitable(where: str, value: Any, expected: str) -> InvalidArgument:
    found = "nothing" if isinstance(value, types.NoneType) else f"{value!r}"
    return InvalidArgument(f"'{where}' must be {expected}, found {found}")


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # also for NaN
        raise InvalidArgument(f"{name} is {value:g}; it may be from {low:g} to {high:g}")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value
