"""The health check of the image: its exit code is 0 if the container's server is ready, else 1.

    /proc/*/cmdline --> the server's options --> GET /v2/health/ready at its port

It asks the port for probes (--health-port) if there is one, or else the HTTP port. If there is
neither, or if the HTTP port asks for certificates of clients, a port must accept a connection.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from shoal.cli import arguments, vertex_ai
from shoal.config.options import Options

TIMEOUT_SECS = 5.0
# Addresses that mean "all of this machine", and where to reach the server then
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def server_words(command_lines: Iterator[Sequence[str]]) -> Sequence[str] | None:
    """The arguments of the first server among the command lines of processes."""
    for words in command_lines:
        name = Path(words[1]).name if len(words) > 1 else ""
        if name == "tritonserver":
            return words[2:]
        if name == "shoal" and words[2:3] == ["serve"]:
            return words[3:]
    return None


def command_lines() -> Iterator[Sequence[str]]:
    """The command lines of all processes, the oldest first."""
    processes = (path for path in Path("/proc").iterdir() if path.name.isdigit())
    for process in sorted(processes, key=lambda path: int(path.name)):
        try:
            text = (process / "cmdline").read_text("utf-8", "surrogateescape")
        except OSError:  # it has ended
            continue
        yield text.split("\0")[:-1]


def problem(options: Options) -> str:
    """Why the server with these options is not ready, or an empty text."""
    if options.health_port > 0:
        return _not_ready(options.health_listen_address, options.health_port, encrypted=False)
    if options.opens_http_port and options.http_port and not options.https_client_ca:
        encrypted = bool(options.https_cert)
        return _not_ready(options.http_address, options.http_port, encrypted=encrypted)
    for opened, address, port in (
        (options.opens_http_port, options.http_address, options.http_port),
        (options.opens_grpc_port, options.grpc_address, options.grpc_port),
        (options.allow_vertex_ai, options.vertex_ai_address, options.vertex_ai_port),
        (options.allow_sagemaker, options.sagemaker_address, options.sagemaker_port),
    ):
        if opened and port:
            return _not_listening(address, port)
    return ""


def _not_ready(address: str, port: int, *, encrypted: bool) -> str:
    host = EVERYWHERE.get(address, address)
    connection = (
        # This machine asks itself; the name in the certificate is that of clients.
        http.client.HTTPSConnection(
            host,
            port,
            timeout=TIMEOUT_SECS,
            context=ssl._create_unverified_context(),  # noqa: S323
        )
        if encrypted
        else http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECS)
    )
    try:
        connection.request("GET", "/v2/health/ready")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"port {port} does not answer: {error}"
    finally:
        connection.close()
    return "" if status == http.client.OK else f"port {port} answers /v2/health/ready with {status}"


def _not_listening(address: str, port: int) -> str:
    try:
        host = EVERYWHERE.get(address, address)
        socket.create_connection((host, port), TIMEOUT_SECS).close()
    except OSError as error:
        return f"port {port} accepts no connection: {error}"
    return ""


def main() -> int:
    """Ask the server. A container that runs another program is healthy."""
    words = server_words(command_lines())
    if words is None:
        print("no server runs here")
        return 0
    why = problem(arguments.parse(words, defaults=vertex_ai.defaults(os.environ)))
    print(why or "ready")
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
