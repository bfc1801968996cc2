"""A real `shoal serve` in a process of its own, whose resources a fault can take away.

    server = ChaosServer(folder, str(repository), "--model-control-mode=explicit")
    server.checked_stop()      SIGTERM; exit status 0, and nothing of it may be left

`environment` and `program` change how it is started: a program is a Python file that ends by
calling `shoal.cli.main.main`; `prefix` is one that starts it. Further arguments are those of
`subprocess.Popen`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from shoal.testing import WAIT_SECS
from shoal.testing.server import HttpResponse, wait_until

ADDRESS = "127.0.0.1"
_TOKEN = "SHOAL_CHAOS_TOKEN"
# What a server may hold in addition after a fault: pools of threads and of memory that fill late.
_MORE_DESCRIPTORS = 4
_MORE_THREADS = 8
_MORE_BYTES = 150 << 20


@dataclass(frozen=True)
class Held:
    """What a server and its children hold."""

    descriptors: int
    threads: int
    processes: int
    resident_bytes: int


class ChaosServer:
    """A running server; `stop` or `checked_stop` ends it."""

    def __init__(self, folder, *options, environment=None, program=("-m", "shoal"), **more):
        stderr, prefix = more.pop("stderr", None), more.pop("prefix", ())
        self.log_file = folder / "server.log"
        self._token = secrets.token_hex(8)
        with contextlib.ExitStack() as held, self.log_file.open("wb") as log:
            ports = {kind: held.enter_context(_held_port()) for kind in ("http", "grpc", "metrics")}
            self.http_port, self.grpc_port, self.metrics_port = ports.values()
            self._ports = set(ports.values())
            listen = [f"--{kind}-address={ADDRESS}" for kind in ports]
            listen += [f"--{kind}-port={port}" for kind, port in ports.items()]
            self.process = subprocess.Popen(
                [*prefix, sys.executable, *program, "serve", *listen, *options],
                stdin=subprocess.DEVNULL,
                stdout=log if stderr is None else stderr,
                stderr=log if stderr is None else stderr,
                env={**os.environ, **(environment or {}), _TOKEN: self._token},
                **more,
            )
            self.usage = psutil.Process(self.process.pid)
            try:
                wait_until(self._ready, "the server is ready")
            except BaseException:
                print(self.log)
                self.stop()
                raise

    def _ready(self):
        assert self.process.poll() is None, f"the server ended:\n{self.log}"
        with contextlib.suppress(ConnectionRefusedError):
            return self.get("/v2/health/ready").status == 200

    # ---- requests

    def call(self, method, path, body=None, port=None):
        """The response to one request on its own connection."""
        line = http.client.HTTPConnection(ADDRESS, port or self.http_port, timeout=WAIT_SECS)
        with contextlib.closing(line):
            line.request(method, path, json.dumps(body) if isinstance(body, dict) else body)
            return HttpResponse(line.getresponse())

    def get(self, path):
        """GET `path`."""
        return self.call("GET", path)

    def load(self, name, **parameters):
        """Load a model."""
        body = {"parameters": parameters} if parameters else b""
        return self.call("POST", f"/v2/repository/models/{name}/load", body)

    def statistics(self):
        """`model_stats` by the name of the model."""
        entries = self.get("/v2/models/stats").json["model_stats"]
        return {entry["name"]: entry for entry in entries}

    def metrics(self):
        """The text of the metrics."""
        return self.call("GET", "/metrics", port=self.metrics_port).body.decode()

    # ---- what it holds

    @property
    def log(self):
        """What it has printed."""
        return self.log_file.read_text(errors="replace")

    def children(self):
        """The processes that it has started."""
        return self.usage.children(recursive=True)

    def processes(self, kind):
        """Its front ends ("frontend") or its engine, where they are processes."""
        found = set()
        for child in self.children():
            with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is one, too
                if f"shoal.processes.{kind}" in child.cmdline():
                    found.add(child)
        return found

    def replace_one(self, kind):
        """Kill one of them, and wait for the one in its place."""
        first = self.processes(kind)
        killed = next(iter(first))
        killed.send_signal(signal.SIGKILL)
        wait_until(lambda: len(self.processes(kind) - {killed}) == len(first), "there is a new one")

    def held(self):
        """What it and its children hold now."""
        descriptors = threads = resident = 0
        family = [self.usage, *self.children()]
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                descriptors += one.num_fds()
                threads += one.num_threads()
                resident += one.memory_info().rss
        return Held(descriptors, threads, len(family), resident)

    def wait_for_no_connections(self):
        """Wait until all clients' connections have ended."""

        def connected():
            return [
                each
                for each in self.usage.net_connections("tcp")
                if each.status == psutil.CONN_ESTABLISHED and each.laddr.port in self._ports
            ]

        wait_until(lambda: not connected(), "all connections have ended")

    def check_holds_no_more_than(self, before):
        """Wait until it holds about as much as `before`: connections take a moment to end."""

        def leaks():
            now = self.held()
            grown = {
                "descriptors": now.descriptors - before.descriptors - _MORE_DESCRIPTORS,
                "threads": now.threads - before.threads - _MORE_THREADS,
                "processes": now.processes - before.processes,
                "bytes": now.resident_bytes - before.resident_bytes - _MORE_BYTES,
            }
            return {name: excess for name, excess in grown.items() if excess > 0}

        try:
            wait_until(lambda: not leaks(), "nothing leaks")
        except TimeoutError:
            raise AssertionError(f"more than before ({before}): {leaks()}\n{self.log}") from None

    @property
    def cpu_secs(self):
        """CPU time of the server's own process."""
        times = self.usage.cpu_times()
        return times.user + times.system

    # ---- the end

    def checked_stop(self):
        """Stop it with SIGTERM. It must exit with 0 and leave no process and no shared memory."""
        assert self.process.poll() is None, f"the server has ended:\n{self.log}"
        pids = {self.process.pid, *(child.pid for child in self.children())}
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(WAIT_SECS)
        assert status == 0, f"exit status {status}:\n{self.log}"
        wait_until(lambda: not self.members(), "all processes have ended")
        assert not shared_memory_of(pids)

    def members(self):
        """The pids of all running processes that descend from it, even if it has ended."""
        mark = f"{_TOKEN}={self._token}".encode()
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def stop(self):
        """End everything at once."""
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(WAIT_SECS)


def shared_memory_of(pids):
    """Names in /dev/shm that one of these processes has made."""
    starts = tuple(f"shoal-{pid}-" for pid in pids)
    return [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(starts)]


@contextlib.contextmanager
def _held_port():
    """A free port that no other process gets before the server listens on it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((ADDRESS, 0))
        yield held.getsockname()[1]
