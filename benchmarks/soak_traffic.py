"""The traffic of the soak: every way to use a server, at a modest rate, with every answer checked.

    Kind.ask(number) -> asks, compares the answers with what `number` implies, raises WrongAnswer

A kind has one request in progress at a time, so that about twenty are in progress together. The
clients do not retry: an error that a client would hide fails the soak.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import soak_models
from benchmarks.peers.base import WrongAnswer
from benchmarks.places import ROOT
from benchmarks.serving import Server
from shoal.client import AsyncClient, Result

ANSWER_WITHIN_SECS = 120.0
MOST_FAULTS = 20  # of a kind whose text is kept
CAT = ROOT / "demo" / "shoal_demo" / "cat.jpg"
TEXT = "Herring swim in shoals of up to three billion fish. They eat plankton."
QUESTIONS = {"What do herring eat?": "plankton", "What swims in shoals?": "Herring"}
# Path, body, status.
BAD_REQUESTS: tuple[tuple[str, bytes, int], ...] = (
    ("/v2/models/add_sub/infer", b"{", 400),
    ("/v2/models/add_sub/infer", b'{"inputs": []}', 400),
    ("/v2/models/unknown/infer", b'{"inputs": []}', 404),
    ("/v2/models/count_down/generate_stream", b'{"start": "three"}', 400),
    ("/v2/models/photos/classify", b"no photo", 400),
    ("/v2/repository/models/unknown/load", b"", 500),
    ("/v2/unknown", b"", 404),
)


@dataclass
class Tally:
    """What came of the requests of one kind."""

    asked: int = 0
    longest_secs: float = 0.0
    faults: int = 0
    texts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Kind:
    """One way to use the server."""

    name: str
    per_second: float
    ask: Callable[[int], Awaitable[None]]


class Traffic:
    """All kinds at once, until a moment. `served` counts the right answers by model, for those
    whose requests are all counted."""

    def __init__(self, server: Server, repository: Path) -> None:
        self._server = server
        self._repository = repository
        self._numbers = itertools.count(1)
        self._labels: list[str] = []
        self.served: Counter[str] = Counter()
        self.http = AsyncClient(server.address, retries=0)
        self.grpc = AsyncClient(f"grpc://127.0.0.1:{server.grpc_port}", retries=0)
        self.kinds = (
            Kind("HTTP, binary", 15, self._http),
            Kind("HTTP, JSON", 10, self._json),
            Kind("HTTP, new connection", 3, self._new_connection),
            Kind("gRPC", 15, self._grpc),
            Kind("gRPC, stream of 8", 2, self._stream),
            Kind("shared memory", 2, self._shared_memory),
            Kind("texts", 5, self._texts),
            Kind("photo", 0.5, self._photo),
            Kind("question", 0.5, self._question),
            Kind("events (SSE)", 3, self._events),
            Kind("decoupled, stream", 2, self._decoupled),
            Kind("sequence of 5", 2, self._sequence),
            Kind("ensemble", 3, self._ensemble),
            Kind("ONNX that is reloaded", 5, self._changing("changing_onnx")),
            Kind("ONNX, isolated", 5, self._changing("changing_isolated")),
            Kind("Python, thread", 5, self._changing("changing_thread")),
            Kind("Python, process", 5, self._changing("changing_process")),
            Kind("Python, 400 KB", 1, self._large),
            Kind("function", 5, self._function),
            Kind("response cache", 5, self._cached),
            Kind("reload", 0.1, self._reload),
            Kind("upload", 0.05, self._upload),
            Kind("metrics, statistics, console", 0.5, self._scrape),
            Kind("bad request", 2, self._bad),
            Kind("vanishing client", 2, self._vanish),
        )
        self.tallies = {kind.name: Tally() for kind in self.kinds}

    async def run(self, secs: float, rate: float = 1.0) -> None:
        """Send everything for so long; `rate` multiplies the rate of each kind."""
        until = time.monotonic() + secs
        try:
            await asyncio.gather(*(self._drive(kind, until, rate) for kind in self.kinds))
        finally:
            await self.http.close()
            await self.grpc.close()

    async def _drive(self, kind: Kind, until: float, rate: float) -> None:
        tally = self.tallies[kind.name]
        due = time.monotonic()
        while True:
            due = max(due, time.monotonic()) + random.expovariate(kind.per_second * rate)
            if due >= until:
                return
            await asyncio.sleep(due - time.monotonic())
            begun = time.monotonic()
            try:
                await asyncio.wait_for(kind.ask(next(self._numbers)), ANSWER_WITHIN_SECS)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is counted
                tally.faults += 1
                if len(tally.texts) < MOST_FAULTS:
                    tally.texts.append(f"{type(error).__name__}: {error}"[:500])
            tally.asked += 1
            tally.longest_secs = max(tally.longest_secs, time.monotonic() - begun)

    # ---- tensors

    async def _http(self, number: int) -> None:
        await self._add_sub(self.http, number)

    async def _json(self, number: int) -> None:
        await self._add_sub(self.http, number, binary=False)

    async def _new_connection(self, number: int) -> None:
        async with AsyncClient(self._server.address, retries=0) as client:
            await self._add_sub(client, number)

    async def _grpc(self, number: int) -> None:
        await self._add_sub(self.grpc, number)

    async def _add_sub(self, client: AsyncClient, number: int, **more: Any) -> None:
        inputs, outputs = _add_sub(number)
        compare(await client.infer("add_sub", inputs, id=str(number), **more), outputs, str(number))
        self.served["add_sub"] += 1

    async def _stream(self, number: int) -> None:
        expected = {}
        async with self.grpc.stream("add_sub") as stream:
            for place in range(8):
                inputs, expected[f"{number}-{place}"] = _add_sub(number + 1000 * place)
                await stream.send(inputs, id=f"{number}-{place}")
            async for result in stream:
                compare(result, expected.pop(result.id), result.id)
                self.served["add_sub"] += 1
        if expected:
            raise WrongAnswer(f"no answers to {sorted(expected)}")

    async def _shared_memory(self, number: int) -> None:
        client = (self.http, self.grpc)[number % 2]
        inputs, outputs = _add_sub(number)
        async with client.shared_memory(f"soak-{number}", 4096) as region:
            placed = {name: region.put(array) for name, array in inputs.items()}
            places = {name: region.place(64) for name in outputs}
            compare(await client.infer("add_sub", placed, outputs=places), outputs)
            self.served["add_sub"] += 1

    async def _texts(self, number: int) -> None:
        text = f"text {number}"
        result = await (self.http, self.grpc)[number % 2].infer("upper", {"text": [[text]]})
        compare(result, {"upper": np.array([[text.upper().encode()]], object)})
        self.served["upper"] += 1

    # ---- tasks, streams of responses, sequences

    async def _photo(self, _number: int) -> None:
        (labels,) = await self.http.classify(CAT, model="photos")
        names = [label.name for label in labels]
        if not self._labels:
            self._labels = names
        if "cat" not in " ".join(names) or names != self._labels:
            raise WrongAnswer(f"{names} instead of {self._labels}")

    async def _question(self, number: int) -> None:
        question, right = list(QUESTIONS.items())[number % len(QUESTIONS)]
        answer = await self.http.answer(TEXT, question, model="questions")
        if answer["answer"] != right:
            raise WrongAnswer(f"{answer['answer']!r} to {question!r}")

    async def _events(self, number: int) -> None:
        start = number % 9 + 1
        events = self.http.generate_stream("count_down", {"start": start})
        found = [event["output"] async for event in events]
        if found != list(range(start, 0, -1)):
            raise WrongAnswer(f"{found} for a start of {start}")

    async def _decoupled(self, number: int) -> None:
        starts = {"a": number % 7 + 1, "b": number % 5 + 1}
        found: dict[str, list[int]] = {"a": [], "b": []}
        async with self.grpc.stream("count_down") as stream:
            for name, start in starts.items():
                await stream.send({"start": [start]}, id=name)
            async for result in stream:
                found[result.id].append(int(result["output"].reshape(-1)[0]))
        for name, start in starts.items():
            if found[name] != list(range(start, 0, -1)):
                raise WrongAnswer(f"{found[name]} for a start of {start}")

    async def _sequence(self, number: int) -> None:
        client = (self.http, self.grpc)[number % 2]
        async with client.sequence("total", number) as sequence:
            for step in range(1, 6):
                numbers = np.array([[number]], np.int32)
                result = await sequence.infer({"INPUT": numbers}, outputs=["OUTPUT"], end=step == 5)
                compare(result, {"OUTPUT": numbers * step})
                self.served["total"] += 1

    # ---- models that are reloaded, and others

    async def _ensemble(self, number: int) -> None:
        await self._plus((self.http, self.grpc)[number % 2], "chain", number, 3)

    def _changing(self, model: str) -> Callable[[int], Awaitable[None]]:
        async def ask(number: int) -> None:
            await self._plus((self.http, self.grpc)[number % 2], model, number, 1)

        return ask

    async def _large(self, number: int) -> None:
        model = ("changing_process", "changing_thread")[number % 2]
        numbers = np.arange(number, number + 100_000, dtype=np.float32).reshape(1, -1)
        compare(await self.http.infer(model, {"INPUT0": numbers}), {"OUTPUT0": numbers + 1})

    async def _function(self, number: int) -> None:
        numbers = np.full((1, soak_models.WIDTH), number, np.float32)
        compare(await self.http.infer("double", {"numbers": numbers}), {"output": numbers * 2})

    async def _cached(self, number: int) -> None:
        await self._plus(self.http, "cached", number // 3, 1)  # most of them were asked before
        self.served["cached"] += 1

    async def _plus(self, client: AsyncClient, model: str, number: int, more: int) -> None:
        numbers = np.full((1, soak_models.WIDTH), number % 1_000_000, np.float32)
        compare(await client.infer(model, {"INPUT0": numbers}), {"OUTPUT0": numbers + more})

    async def _reload(self, number: int) -> None:
        name = soak_models.CHANGING[number % len(soak_models.CHANGING)]
        soak_models.change(self._repository, name)
        await self.http.load(name)

    async def _upload(self, number: int) -> None:
        config, files = soak_models.upload()
        await self.grpc.load(soak_models.UPLOADED, config=config, files=files)
        await self._plus(self.http, soak_models.UPLOADED, number, 1)
        await self.http.unload(soak_models.UPLOADED)

    # ---- operators and bad clients

    async def _scrape(self, _number: int) -> None:
        status, text = await request(self._server.metrics_port, "GET", "/metrics")
        if status != 200 or b"nv_inference_count{" not in text:
            raise WrongAnswer(f"metrics: status {status}")
        await self.http.statistics()
        await self.http.index()
        status, text = await request(self._server.http_port, "GET", "/v2/console")
        if status != 200:
            raise WrongAnswer(f"console: status {status} {text[:200]!r}")

    async def _bad(self, number: int) -> None:
        path, body, right = BAD_REQUESTS[number % len(BAD_REQUESTS)]
        status, text = await request(self._server.http_port, "POST", path, body)
        if status != right or not json.loads(text)["error"]:
            raise WrongAnswer(f"{status} {text[:200]!r} to {body!r} at {path}")

    async def _vanish(self, number: int) -> None:
        if number % 4 == 3:
            async with self.grpc.stream("count_down") as stream:
                await stream.send({"start": [1000]})
                await stream.receive()
            return
        body = json.dumps({"start": 1000}).encode()
        path = "/v2/models/count_down/generate_stream"
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        sent = head + body[: len(body) // 2 if number % 4 == 0 else None]
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.http_port)
        writer.write(sent)
        await writer.drain()
        if number % 4 == 1:
            await reader.read(100)
        if number % 2:
            writer.transport.abort()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def compare(result: Result, expected: Mapping[str, np.ndarray], id: str = "") -> None:
    """Raise WrongAnswer unless the outputs are exactly these, and the answer has this id."""
    if id and result.id != id:
        raise WrongAnswer(f"the answer to {id} has the id {result.id!r}")
    for name, right in expected.items():
        found = result[name]
        if found.shape != right.shape or not np.array_equal(found, right):
            raise WrongAnswer(
                f"{name} is {found.reshape(-1)[:4]} instead of {right.reshape(-1)[:4]}"
            )


async def request(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """Status and body of the response to one request on its own connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        answer = await reader.read()
    finally:
        writer.close()
    head_bytes, _, content = answer.partition(b"\r\n\r\n")
    return int(head_bytes.split()[1]), content


def _add_sub(number: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs of the model add_sub, unique to this number, and its outputs."""
    first = np.arange(number, number + 16, dtype=np.int32).reshape(1, 16)
    second = first[:, ::-1] * 3
    return (
        {"INPUT0": first, "INPUT1": second},
        {"OUTPUT0": first + second, "OUTPUT1": first - second},
    )
