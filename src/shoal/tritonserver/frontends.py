"""The module `tritonfrontend` of Triton: ports for a server that was started without any.

    http = KServeHttp(server, KServeHttp.Options(port=8000))
    http.start()

They serve until `stop`, or until the server stops.
"""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar

from shoal.ports import Ports
from shoal.tritonserver import metrics
from shoal.tritonserver.errors import AlreadyExistsError, InvalidArgumentError, triton_errors
from shoal.tritonserver.server import RunningServer, Server

_MOST_PORT = 65_535


def _number(default: int, least: int = 0, most: int | None = None) -> Any:
    return field(default=default, metadata={"limits": (least, most)})


@dataclass
class _FrontendOptions:
    """Values that are checked when they are given."""

    def __post_init__(self) -> None:
        """Raise TypeError for a value of another type, ValueError for one out of range."""
        hints = typing.get_type_hints(type(self))
        for each in dataclasses.fields(self):
            value, kind = getattr(self, each.name), hints[each.name]
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                raise TypeError(f"{each.name} takes {kind.__name__}, found {value!r}")
            least, most = each.metadata.get("limits", (None, None))
            if (least is not None and value < least) or (most is not None and value > most):
                limits = f"from {least} to {most}" if most is not None else f"of at least {least}"
                raise ValueError(f"{each.name} takes a whole number {limits}, found {value}")


class _Frontend:
    """Ports of one protocol."""

    Options: ClassVar[type[_FrontendOptions]] = _FrontendOptions
    _service = ""
    _names: ClassVar[Mapping[str, str]] = {}  # of the server's options, by those of this one

    def __init__(self, server: Server, options: Any = None) -> None:
        self._running: RunningServer = server._running
        self._options: Any = self.Options() if options is None else options
        if not isinstance(self._options, self.Options):
            raise InvalidArgumentError(
                "Incorrect type for options. options argument must be of type "
                f"{type(self).__name__}.Options"
            )
        self._ports: Ports | None = None

    def start(self) -> None:
        """Listen. AlreadyExistsError if it does, UnavailableError for a port in use."""
        if self._ports is not None:
            raise AlreadyExistsError(f"{self._service} server is already running.")
        with triton_errors():
            self._ports = self._running.server._open_ports(self._settings(), self._render())

    def stop(self) -> None:
        """Answer what was received, and close; does nothing if it does not listen."""
        ports, self._ports = self._ports, None
        if ports is not None:
            self._running.server._close_ports(ports)

    @property
    def port(self) -> int:
        """The port that it listens on, also if 0 asked for a free one; 0 if it does not listen."""
        return 0 if self._ports is None else getattr(self._ports, self._names["port"])

    def _settings(self) -> dict[str, Any]:
        return {option: getattr(self._options, name) for name, option in self._names.items()}

    def _render(self) -> Callable[[], bytes] | None:
        return None

    def __enter__(self) -> Any:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


@dataclass
class _HttpOptions(_FrontendOptions):
    address: str = "0.0.0.0"
    port: int = _number(8000, 0, _MOST_PORT)
    reuse_port: bool = False
    thread_count: int = _number(8, 1)
    header_forward_pattern: str = ""


class KServeHttp(_Frontend):
    """The HTTP port."""

    Options = _HttpOptions
    _service = "HTTP"
    _names: ClassVar[Mapping[str, str]] = {
        "address": "http_address",
        "port": "http_port",
        "reuse_port": "reuse_http_port",
        "thread_count": "http_thread_count",
        "header_forward_pattern": "http_header_forward_pattern",
    }

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "allow_http": True}


class Grpc_compression_level(enum.IntEnum):  # noqa: N801 - Triton's name
    """How much responses are compressed."""

    NONE = 0
    LOW = 1
    MED = 2
    HIGH = 3
    COUNT = 4


_LEVELS = {1: "low", 2: "medium", 3: "high"}


@dataclass
class _GrpcOptions(_FrontendOptions):
    address: str = "0.0.0.0"
    port: int = _number(8001, 0, _MOST_PORT)
    reuse_port: bool = False
    use_ssl: bool = False
    server_cert: str = ""
    server_key: str = ""
    root_cert: str = ""
    use_mutual_auth: bool = False
    keepalive_time_ms: int = _number(7_200_000)
    keepalive_timeout_ms: int = _number(20_000)
    keepalive_permit_without_calls: bool = False
    http2_max_pings_without_data: int = _number(2)
    http2_min_recv_ping_interval_without_data_ms: int = _number(300_000)
    http2_max_ping_strikes: int = _number(2)
    max_connection_age_ms: int = _number(0)
    max_connection_age_grace_ms: int = _number(0)
    infer_compression_level: int = _number(0, 0, 4)
    infer_thread_count: int = _number(2)
    infer_allocation_pool_size: int = _number(8)
    max_response_pool_size: int = _number(2_147_483_647)
    forward_header_pattern: str = ""


class KServeGrpc(_Frontend):
    """The gRPC port."""

    Grpc_compression_level = Grpc_compression_level
    Options = _GrpcOptions
    _service = "GRPC"
    _names: ClassVar[Mapping[str, str]] = {
        "address": "grpc_address",
        "port": "grpc_port",
        "reuse_port": "reuse_grpc_port",
        "use_ssl": "grpc_use_ssl",
        "server_cert": "grpc_server_cert",
        "server_key": "grpc_server_key",
        "root_cert": "grpc_root_cert",
        "use_mutual_auth": "grpc_use_ssl_mutual",
        "keepalive_time_ms": "grpc_keepalive_time",
        "keepalive_timeout_ms": "grpc_keepalive_timeout",
        "keepalive_permit_without_calls": "grpc_keepalive_permit_without_calls",
        "http2_max_pings_without_data": "grpc_http2_max_pings_without_data",
        "http2_min_recv_ping_interval_without_data_ms": (
            "grpc_http2_min_recv_ping_interval_without_data"
        ),
        "http2_max_ping_strikes": "grpc_http2_max_ping_strikes",
        "max_connection_age_ms": "grpc_max_connection_age",
        "max_connection_age_grace_ms": "grpc_max_connection_age_grace",
        "infer_thread_count": "grpc_infer_thread_count",
        "infer_allocation_pool_size": "grpc_infer_allocation_pool_size",
        "max_response_pool_size": "grpc_max_response_pool_size",
        "forward_header_pattern": "grpc_header_forward_pattern",
    }

    def _settings(self) -> dict[str, Any]:
        level = _LEVELS.get(int(self._options.infer_compression_level), "none")
        named = super()._settings()
        return {**named, "allow_grpc": True, "grpc_infer_response_compression_level": level}


@dataclass
class _MetricsOptions(_FrontendOptions):
    address: str = "0.0.0.0"
    port: int = _number(8002, 0, _MOST_PORT)
    thread_count: int = _number(1, 1)


class Metrics(_Frontend):
    """The port for Prometheus."""

    Options = _MetricsOptions
    _service = "HTTP"
    _names: ClassVar[Mapping[str, str]] = {"address": "metrics_address", "port": "metrics_port"}

    def _render(self) -> Callable[[], bytes]:
        def render() -> bytes:
            return (self._running.server.metrics() + metrics.render()).encode()

        return render
