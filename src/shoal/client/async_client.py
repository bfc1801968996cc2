"""The client for event loops: the methods of `Client` as coroutines."""

from __future__ import annotations

import asyncio
import ssl as tls
import weakref
from collections.abc import AsyncIterator, Mapping
from collections.abc import Sequence as Names
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from shoal.client import control, inference, tasks
from shoal.client.address import GRPC, Address
from shoal.client.codec import Answer, Headers, Parameter
from shoal.client.connecting import Limits
from shoal.client.errors import ClientError
from shoal.client.methods import awaiting
from shoal.client.region import Region
from shoal.client.result import Result
from shoal.client.sequence import AsyncSequence, SequenceSteps
from shoal.client.setup import setup
from shoal.client.shared_memory import AsyncSharedMemory
from shoal.client.steps import Exchange, Steps, Version

if TYPE_CHECKING:
    from shoal.client.async_stream import AsyncStream

T = TypeVar("T")


class AsyncTransport(Protocol):
    """What carries requests to one server."""

    async def exchange(self, step: Exchange) -> Answer:
        """Send a request and wait for its answer."""

    async def close(self) -> None:
        """End all connections."""


class AsyncClient:
    """A client of one server, for one event loop; any number of tasks may use it at once.

    `async with AsyncClient("localhost:8000") as client: await client.infer(…)`. Arguments and
    methods are those of `Client`.
    """

    def __init__(
        self,
        url: str = "localhost:8000",
        *,
        protocol: str | None = None,
        headers: Headers | None = None,
        timeout: float | None = 60.0,
        connect_timeout: float | None = 10.0,
        retries: int = 3,
        connections: int = 100,
        ssl: tls.SSLContext | bool | None = None,
        ca: str | Path | None = None,
        cert: str | Path | None = None,
        key: str | Path | None = None,
        verify: bool = True,
    ) -> None:
        """As `Client`. Over gRPC all calls share one connection."""
        made = setup(
            url,
            protocol=protocol,
            headers=headers,
            timeout=timeout,
            connect_timeout=connect_timeout,
            retries=retries,
            connections=connections,
            ssl=ssl,
            ca=ca,
            cert=cert,
            key=key,
            verify=verify,
        )
        self._address = made.address
        self._session = made.session
        self._session.labeller = weakref.WeakMethod(self._known_labels)
        self._transport = _transport(made.address, made.encryption, made.limits)

    # ---- inference

    infer = awaiting(inference.infer)
    prepare = awaiting(inference.prepare)
    send = awaiting(inference.send)
    labels = awaiting(inference.labels)
    generate = awaiting(inference.generate)
    classify = awaiting(tasks.classify)
    caption = awaiting(tasks.caption)
    answer = awaiting(tasks.answer)
    embed = awaiting(tasks.embed)
    perform = awaiting(tasks.perform)

    async def generate_stream(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        parameters: Mapping[str, Parameter] | None = None,
        version: Version = "",
        timeout: float | None = None,
        headers: Headers | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """As `generate`, for models that answer any number of times: each answer as it comes.

        Closing the iterator early withdraws the request.
        """
        from shoal.client.async_http_transport import AsyncHttpTransport

        events = inference.Events(
            self._session, model, inputs, parameters, str(version), timeout, headers
        )
        transport = self._transport
        assert isinstance(transport, AsyncHttpTransport)  # as `Events` has seen
        answers = transport.events(events.request, events.timeout_secs)
        try:
            async for answer in answers:
                for document in events.feed(answer):
                    yield document
        finally:
            await answers.aclose()  # type: ignore[attr-defined]

    def stream(
        self, model: str = "", *, version: Version = "", headers: Headers | None = None
    ) -> AsyncStream:
        """A stream of requests to `model` (or to several) and their answers; needs gRPC.

        `async with client.stream("words") as stream: await stream.send({…})`, then
        `async for result in stream:`.
        """
        from shoal.client.async_grpc_transport import AsyncGrpcTransport
        from shoal.client.async_stream import AsyncStream
        from shoal.client.streaming import Streaming

        streaming = Streaming(self._session, model, str(version), headers)
        transport = self._transport
        assert isinstance(transport, AsyncGrpcTransport)  # as `Streaming` has seen
        return AsyncStream(streaming, self._run, transport.duplex)

    def sequence(
        self, model: str, id: int | str | None = None, *, version: Version = ""
    ) -> AsyncSequence:
        """A sequence of requests that belong together: `async with client.sequence(…) as s:`."""
        return AsyncSequence(SequenceSteps(self._session, model, id, str(version)), self._run)

    # ---- status

    live = awaiting(control.live)
    ready = awaiting(control.ready)
    model_ready = awaiting(control.model_ready)
    server_metadata = awaiting(control.server_metadata)
    metadata = awaiting(control.metadata)
    config = awaiting(control.config)
    statistics = awaiting(control.statistics)

    # ---- the repository

    index = awaiting(control.index)
    load = awaiting(control.load)
    unload = awaiting(control.unload)

    # ---- settings

    trace_settings = awaiting(control.trace_settings)
    log_settings = awaiting(control.log_settings)

    # ---- shared memory

    def shared_memory(self, name: str, byte_size: int) -> AsyncSharedMemory:
        """Shared memory that the server knows while the block runs."""
        return AsyncSharedMemory(self._session, self._run, Region(name, byte_size))

    shared_memory_regions = awaiting(control.shared_memory_regions)

    # ---- the end

    async def close(self) -> None:
        """Close all connections; those in use when their calls are done."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:  # noqa: PYI034 - Python 3.10 has no Self
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient('{self._address.protocol}://{self._address.authority}')"

    def _known_labels(self, result: Result, output: str) -> Names[str]:
        """The labels that were asked for before: `top_k` cannot wait for an answer."""
        key = (result.model_name, result.model_version, output)
        return self._session.labels.get(key, ())

    async def _run(self, steps: Steps[T]) -> T:
        """Do what each step says until the operation has its result."""
        exchange = self._transport.exchange
        try:
            step = next(steps)
            while True:
                if type(step) is Exchange:
                    try:
                        answer = await exchange(step)
                    except ClientError as error:
                        step = steps.throw(error)
                        continue
                    step = steps.send(answer)
                else:
                    await asyncio.sleep(step.secs)  # type: ignore[union-attr]
                    step = next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def _transport(
    address: Address, encryption: tls.SSLContext | None, limits: Limits
) -> AsyncTransport:
    if address.protocol == GRPC:
        from shoal.client.async_grpc_transport import AsyncGrpcTransport

        return AsyncGrpcTransport(address, encryption, limits)
    from shoal.client.async_http_transport import AsyncHttpTransport

    return AsyncHttpTransport(address, encryption, limits)
