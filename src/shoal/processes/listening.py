"""The listening sockets of a server of several processes: bound once, accepted from by all."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace
from typing import Any

from shoal.config.options import Options
from shoal.frontends.opening import open_port, open_unix
from shoal.frontends.sockets import SocketFile, bind_tcp, bind_unix


class ListeningPorts:
    """Every port and Unix socket of the options. For the supervisor's loop."""

    def __init__(self) -> None:
        self._sockets: dict[Any, list[socket.socket]] = {}
        self._files: list[SocketFile] = []

    async def bind(self, options: Options) -> Options:
        """Open them all; returns the options with the ports that the system has chosen. Raises
        Unavailable, with the option to change."""
        ports: dict[str, Any] = {}

        https = True if options.https_cert else None
        grpcs = True if options.grpc_use_ssl or options.grpc_use_ssl_mutual else None

        async def port(
            name: str, address: str, number: int, *, reuse: bool = False, tls: bool | None = None
        ) -> None:
            async def start(host: str, wanted: int, **_: Any) -> int:
                sockets = await bind_tcp(host, wanted, reuse_port=reuse)
                bound: int = sockets[0].getsockname()[1]
                self._sockets[(host or "", bound)] = sockets
                return bound

            ports[f"{name.replace('-', '_')}_port"] = await open_port(
                name, (address, number), start, tls=tls
            )

        async def unix(name: str, path: str) -> None:
            async def start(wanted: str, mode: int) -> None:
                sock, file = bind_unix(wanted, mode)
                self._sockets[wanted] = [sock]
                self._files.append(file)

            await open_unix(name, path, int(options.unix_socket_mode, 8), start)

        if options.allow_http and options.opens_http_port:
            reuse = options.reuse_http_port
            await port("http", options.http_address, options.http_port, reuse=reuse, tls=https)
        if options.allow_http and options.http_unix_socket:
            await unix("http", options.http_unix_socket)
        if options.allow_grpc and options.opens_grpc_port:
            reuse = options.reuse_grpc_port
            await port("grpc", options.grpc_address, options.grpc_port, reuse=reuse, tls=grpcs)
        if options.allow_grpc and options.grpc_unix_socket:
            await unix("grpc", options.grpc_unix_socket)
        if options.allow_sagemaker:
            await port("sagemaker", options.sagemaker_address, options.sagemaker_port)
        if options.allow_vertex_ai:
            await port("vertex-ai", options.vertex_ai_address, options.vertex_ai_port)
        if options.tcp_port >= 0:
            await port("tcp", options.tcp_address, options.tcp_port)
        if options.allow_metrics:
            address = options.metrics_listen_address
            await port("metrics", address, options.metrics_port, tls=https)
        if options.health_port >= 0:
            await port("health", options.health_listen_address, options.health_port)
        return replace(options, **ports)

    def files(self) -> list[int]:
        """The descriptors of all sockets."""
        return [sock.fileno() for sockets in self._sockets.values() for sock in sockets]

    def inherited(self) -> list[tuple[Any, list[int]]]:
        """For a front end: where each of them listens."""
        return [
            (place, [sock.fileno() for sock in sockets]) for place, sockets in self._sockets.items()
        ]

    def close(self) -> None:
        """Close them, and remove the files of Unix sockets."""
        for sockets in self._sockets.values():
            for sock in sockets:
                with contextlib.suppress(OSError):
                    sock.close()
        for file in self._files:
            file.remove()
