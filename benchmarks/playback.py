"""What does the event loop's thread spend on a request, without sockets? Source trees take turns.

    python -m benchmarks.playback [TREE ...] [--cases http-64 models-100] [--turns 9]

Each tree's server runs in a process of its own. Requests are given to its connections as a socket
would, so many in each iteration of the loop; the first responses are checked. Prints CPU time a
request, with what it takes to give it to the connection: the median of the turns, and the least,
which depends less on other programs.

The kernel's part, more than half of a request, is missing here: clients see smaller differences,
which `benchmarks.before_after` measures.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.peers import repository
from benchmarks.peers.base import Target, WrongAnswer
from benchmarks.peers.shoal import v2_targets
from benchmarks.places import ROOT
from benchmarks.workloads import WORKLOADS, Workload

_REQUESTS = 20_000  # of a turn
_SETTLED = 40  # requests to each model, or iterations, before anything is measured
_WINDOW_BYTES = 1 << 30  # of HTTP/2: no response has to wait
_DATA, _HEADERS, _SETTINGS, _WINDOW_UPDATE = 0, 1, 4, 8
_INITIAL_WINDOW = 4
_END_STREAM, _END_HEADERS = 1, 4


@dataclass(frozen=True)
class Case:
    """Requests of one kind."""

    workload: Workload
    protocol: str
    at_once: int  # in an iteration of the loop


CASES = {
    "http-1": Case(WORKLOADS["W1"], "http", 1),
    "http-4": Case(WORKLOADS["W1"], "http", 4),
    "http-16": Case(WORKLOADS["W1"], "http", 16),
    "http-64": Case(WORKLOADS["W1"], "http", 64),
    "grpc-1": Case(WORKLOADS["W1"], "grpc", 1),
    "grpc-16": Case(WORKLOADS["W1"], "grpc", 16),
    "grpc-64": Case(WORKLOADS["W1"], "grpc", 64),
    "json-64": Case(WORKLOADS["JSON"], "http", 64),
    "models-1-alone": Case(WORKLOADS["models-1-alone"], "http", 64),
    "models-100": Case(WORKLOADS["models-100"], "http", 64),
    "models-1000": Case(WORKLOADS["models-1000"], "http", 64),
}


# ---- the server and its clients, in a process of their own


class _Sink(asyncio.Transport):
    """What a connection writes to: keeps the last response, and counts them."""

    def __init__(self, counter: list[int]) -> None:
        super().__init__()
        self.last = b""
        self._counter = counter

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002 - asyncio's
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def write(self, data: Any) -> None:
        self.last = data
        self._counter[0] += 1

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))


class _HttpClient:
    """One connection over HTTP."""

    def __init__(self, connection: Any, counter: list[int]) -> None:
        self.sink = _Sink(counter)
        self._connection = connection
        connection.connection_made(self.sink)

    @staticmethod
    def requests(target: Target) -> list[Any]:
        """What clients send in turn."""
        exchange = target.exchange
        lines = "".join(f"{name}: {value}\r\n" for name, value in exchange.headers.items())
        return [
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{lines}"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
            for body in (exchange.body, *exchange.others)
            for path in target.paths or (target.path,)
        ]

    def send(self, request: Any) -> None:
        """Have the server receive one of `requests`."""
        self._receive(request)

    def response(self) -> tuple[bytes, dict[str, str]]:
        """Body and headers of the last response."""
        head, _, body = bytes(self.sink.last).partition(b"\r\n\r\n")
        fields = [line.split(": ", 1) for line in head.decode().split("\r\n")[1:]]
        return body, {name.lower(): value for name, value in fields}

    def disconnect(self) -> None:
        """End the connection."""
        self._connection.connection_lost(None)

    def _receive(self, data: bytes) -> None:
        self._connection.get_buffer(-1)[: len(data)] = data
        self._connection.buffer_updated(len(data))


class _GrpcClient(_HttpClient):
    """One connection over gRPC, with one call at a time."""

    def __init__(self, connection: Any, counter: list[int]) -> None:
        super().__init__(connection, counter)
        self._streams = itertools.count(1, 2)
        settings = _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW, _WINDOW_BYTES))
        update = _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _WINDOW_BYTES))
        self._receive(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + update)

    @staticmethod
    def requests(target: Target) -> list[Any]:
        """Headers, as literals that are not indexed, and message of the calls."""
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": target.path,
            ":authority": "localhost",
            **target.exchange.headers,
        }
        texts = [text.encode() for field in fields.items() for text in field]
        literals = [bytes([len(text)]) + text for text in texts]
        pairs = zip(literals[::2], literals[1::2], strict=True)
        headers = b"".join(b"\0" + name + value for name, value in pairs)
        return [(headers, target.exchange.body)]

    def send(self, request: Any) -> None:
        """Have the server receive one of `requests`."""
        headers, message = request
        stream = next(self._streams)
        self._receive(
            _frame(_HEADERS, _END_HEADERS, stream, headers)
            + _frame(_DATA, _END_STREAM, stream, message)
        )

    def response(self) -> tuple[bytes, dict[str, str]]:
        """The message of the last response."""
        left, message = bytes(self.sink.last), b""
        while left:
            end = 9 + int.from_bytes(left[:3], "big")
            if left[3] == _DATA:
                message += left[9:end]
            left = left[end:]
        return message[5:], {}


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


class _Player:
    """Sends requests over its connections, those of one iteration at once."""

    def __init__(self, server: Any, case: Case) -> None:
        """Call it on the loop of `server`, which is started."""
        from shoal.frontends.grpc.transport import Transport
        from shoal.frontends.http.protocol import HttpConnection

        self._case = case
        targets = v2_targets(case.workload, [server.http_port, server.grpc_port])
        (self._target,) = [one for one in targets if one.protocol == case.protocol]
        self._answered = [0]
        self._clients: list[_HttpClient] = []
        for _ in range(case.at_once):
            if case.protocol == "grpc":
                connection: Any = Transport(server.ports.grpc._listener._registry)
                self._clients.append(_GrpcClient(connection, self._answered))
            else:
                connection = HttpConnection(server.ports.http._state)
                self._clients.append(_HttpClient(connection, self._answered))
        self._requests = self._clients[0].requests(self._target)

    async def settle(self) -> None:
        """Send requests until nothing is new to the server. Raises WrongAnswer."""
        requests, self._requests = self._requests, self._requests[:1]
        await self.play(self._case.at_once)
        for client in self._clients:
            fault = self._case.workload.fault(self._target.exchange.read(*client.response()))
            if fault:
                raise WrongAnswer(fault)
        self._requests = requests
        await self.play(_SETTLED * max(len(requests), self._case.at_once))

    def disconnect(self) -> None:
        """End all connections."""
        for client in self._clients:
            client.disconnect()

    async def play(self, count: int) -> float:
        """Send so many requests; the CPU time of each, in microseconds."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()
        await asyncio.sleep(0)  # what connecting has caused is written
        requests = itertools.cycle(self._requests)
        clients, answered = self._clients, self._answered
        expected = answered[0]
        until = expected + count
        begun_ns = time.thread_time_ns()

        def iterate() -> None:
            nonlocal expected
            if answered[0] < expected:
                loop.call_soon(iterate)
            elif expected >= until:
                ended.set_result(time.thread_time_ns() - begun_ns)
            else:
                for client in clients:
                    client.send(next(requests))
                expected += len(clients)
                loop.call_soon(iterate)

        loop.call_soon(iterate)
        return await ended / (expected + count - until) / 1e3


@contextmanager
def player(server: Any, case: Case) -> Iterator[_Player]:
    """What plays `case` on the loop of `server`, which is started."""
    made = _Player(server, case)
    try:
        yield made
    finally:
        made.disconnect()


def _serve(name: str, folder: str) -> None:
    """The process of one tree: plays once for each line that it reads."""
    from shoal.config.options import Options
    from shoal.inprocess.keywords import DEFAULTS
    from shoal.inprocess.loop import LoopThread
    from shoal.server import Server

    server = Server(Options(**{**DEFAULTS, "model_repository": (folder,)}))
    loop = LoopThread("server")
    loop.run(server.start())

    async def serve() -> None:
        with player(server, CASES[name]) as made:
            await made.settle()
            while await asyncio.to_thread(sys.stdin.readline):
                print(await made.play(_REQUESTS), flush=True)

    loop.run(serve())
    loop.run(server.stop())
    loop.close()


# ---- the process that compares


class _Tree:
    """The process of one tree."""

    def __init__(self, tree: Path, name: str, folder: Path, stack: ExitStack) -> None:
        source = tree.resolve() / "src"
        if not (source / "shoal").is_dir():
            sys.exit(f"{tree}: not a source tree of Shoal (it has no src/shoal)")
        self.taken: list[float] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.playback", "--serve", name, str(folder)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(self._process.wait)
        stack.callback(self._process.terminate)

    def take_turn(self) -> None:
        """Measure once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print("play", file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            sys.exit("the process of a server has ended, see above")
        self.taken.append(float(line))


def _compare(paths: list[Path], name: str, turns: int) -> list[list[float]]:
    """The CPU time a request of each tree in each turn."""
    workload = CASES[name].workload
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        repository.write_all(
            Path(folder), workload, "onnxruntime", "model.onnx", workload.model_path
        )
        trees = [_Tree(path, name, Path(folder), stack) for path in paths]
        for turn in range(turns):
            for tree in trees if turn % 2 == 0 else reversed(trees):
                tree.take_turn()
        return [tree.taken for tree in trees]


def _cells(taken: list[list[float]]) -> Iterator[str]:
    for one in taken:
        yield f"{statistics.median(one):.2f}, {min(one):.2f}"
    for other in taken[1:]:
        yield f"{statistics.median(b / a for a, b in zip(taken[0], other, strict=True)):.3f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trees", nargs="*", type=Path, metavar="TREE", help="default: this one")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--turns", type=int, default=9, help="of each tree, for each case")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve(*options.serve)
        return
    trees = options.trees or [ROOT]
    letters = [chr(ord("A") + place) for place in range(len(trees))]
    for letter, tree in zip(letters, trees, strict=True):
        print(f"{letter}: {tree}")
    columns = ["µs a request", *[f"{letter}: median, least" for letter in letters]]
    columns += [f"{letter}/A" for letter in letters[1:]]
    print(f"\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for name in options.cases:
        taken = _compare(trees, name, options.turns)
        print(f"| {' | '.join([name, *_cells(taken)])} |", flush=True)
    print(f"\n{describe()}")


if __name__ == "__main__":
    main()
