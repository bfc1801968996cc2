"""A server of this tree to measure: started, awaited, measured and stopped."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.peers.base import free_ports

READY_WITHIN_SECS = 60.0
ASK_EVERY_SECS = 0.005


@dataclass
class Server:
    """A running `shoal serve`."""

    process: subprocess.Popen[bytes]
    http_port: int
    grpc_port: int = 0  # where it was started with gRPC
    metrics_port: int = 0
    ready_secs: float = 0.0  # from starting the process to the first 200 of /v2/health/ready

    @property
    def address(self) -> str:
        """Where to send requests."""
        return f"127.0.0.1:{self.http_port}"

    def family(self) -> list[psutil.Process]:
        """The server's process and its children."""
        head = psutil.Process(self.process.pid)
        return [head, *head.children(recursive=True)]

    def resident_bytes(self) -> int:
        """Resident memory of all its processes."""
        return sum(one.memory_info().rss for one in self.family())

    def cpu_secs(self) -> float:
        """User and system time of all its processes so far."""
        times = [one.cpu_times() for one in self.family()]
        return sum(one.user + one.system for one in times)


def command() -> str:
    """The `shoal` of this interpreter's environment."""
    beside = Path(sys.executable).with_name("shoal")
    found = str(beside) if beside.exists() else shutil.which("shoal")
    if found is None:
        sys.exit("there is no `shoal` command here; run `make bench`, or pip install . first")
    return found


@contextlib.contextmanager
def serve(*arguments: str, grpc: bool = False) -> Iterator[Server]:
    """Run `shoal serve ARGUMENTS` on free ports; ready when this yields, stopped afterwards."""
    http_port, metrics_port, grpc_port = free_ports(3)
    line = [command(), "serve", *arguments]
    line += [f"--http-port={http_port}", f"--metrics-port={metrics_port}"]
    line += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
    line += [f"--grpc-port={grpc_port}" if grpc else "--allow-grpc=false"]
    with launched(line, http_port, grpc_port if grpc else 0, metrics_port) as server:
        yield server


@contextlib.contextmanager
def launched(
    line: list[str], http_port: int, grpc_port: int = 0, metrics_port: int = 0
) -> Iterator[Server]:
    """Run a server of KServe v2 with this command line; ready when this yields."""
    with tempfile.TemporaryFile() as log:
        begun = time.perf_counter()
        process = subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT)
        server = Server(process, http_port, grpc_port, metrics_port)
        try:
            _wait_until_ready(server, begun)
            yield server
        except BaseException:
            if process.poll() is not None:  # it ended by itself: its last words are the reason
                log.seek(0)
                sys.stderr.write(log.read().decode(errors="replace")[-4000:])
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(server: Server, begun: float) -> None:
    while time.perf_counter() - begun < READY_WITHIN_SECS:
        if server.process.poll() is not None:
            raise RuntimeError(f"the server ended with exit status {server.process.returncode}")
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=5)
        with contextlib.suppress(OSError), contextlib.closing(connection):
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == 200:
                server.ready_secs = time.perf_counter() - begun
                return
        time.sleep(ASK_EVERY_SECS)
    raise RuntimeError(f"the server was not ready within {READY_WITHIN_SECS:.0f} s")
