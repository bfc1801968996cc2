"""Where a server inside a program listens."""

from __future__ import annotations

from abc import ABC, abstractmethod

from shoal.config.options import Options
from shoal.inprocess.keywords import LOOPBACK
from shoal.server import Server as LoopServer


class Addresses(ABC):
    """The ports and URLs of a running server; Unavailable if it does not run."""

    @abstractmethod
    def _running(self) -> LoopServer:
        """The server."""

    @property
    def _options(self) -> Options:
        return self._running().options

    @property
    def http_port(self) -> int:
        """The port for HTTP."""
        return self._running().http_port

    @property
    def grpc_port(self) -> int:
        """The port for gRPC."""
        return self._running().grpc_port

    @property
    def metrics_port(self) -> int:
        """The port for metrics."""
        return self._running().metrics_port

    @property
    def tcp_port(self) -> int:
        """The port for questions over plain TCP; 0 if there is none."""
        return self._running().tcp_port

    @property
    def url(self) -> str:
        """`http://host:port` (https:// with --https-cert), for requests, curl and browsers."""
        return f"{self._options.http_scheme}://{self.http_url}"

    @property
    def http_url(self) -> str:
        """`host:port`, for tritonclient.http."""
        return f"{_reachable(self._options.http_address)}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """`host:port`, for tritonclient.grpc."""
        return f"{_reachable(self._options.grpc_address)}:{self.grpc_port}"

    @property
    def tcp_url(self) -> str:
        """`host:port` for `shoal ask`; empty if there is no such port."""
        port = self.tcp_port
        return f"{_reachable(self._options.tcp_address)}:{port}" if port else ""

    @property
    def metrics_url(self) -> str:
        """The URL of the metrics, for Prometheus."""
        address = _reachable(self._options.metrics_listen_address)
        return f"{self._options.http_scheme}://{address}:{self.metrics_port}/metrics"


def _reachable(address: str) -> str:
    """The address of a listener for a client on this machine."""
    if address in {"", "0.0.0.0", "::"}:
        return LOOPBACK
    return f"[{address}]" if ":" in address else address
