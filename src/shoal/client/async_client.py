"""The asyncio client: the methods of `Client` as coroutines."""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import AsyncIterator, Mapping
from collections.abc import Sequence as Names
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from shoal.client import control, inference, tasks
from shoal.client.address import GRPC, Address
from shoal.client.base_client import BaseClient
from shoal.client.codec import Headers, Parameter
from shoal.client.connecting import Limits
from shoal.client.errors import ClientError
from shoal.client.methods import awaiting
from shoal.client.region import Region
from shoal.client.result import Result
from shoal.client.sequence import AsyncSequence, SequenceSteps
from shoal.client.shared_memory import async_registered
from shoal.client.steps import RoundTrip, Steps, Version

if TYPE_CHECKING:
    from shoal.client.async_grpc_transport import AsyncGrpcTransport
    from shoal.client.async_http_transport import AsyncHttpTransport
    from shoal.client.async_replica_transport import AsyncReplicaTransport
    from shoal.client.async_stream import AsyncStream
    from shoal.client.replica_codec import ReplicaCodec

T = TypeVar("T")


class AsyncClient(BaseClient):
    """A client of one server, for one event loop; any number of tasks may use it at once.

    `async with AsyncClient("localhost:8000") as client: await client.infer(…)`. Arguments and
    methods are those of `Client`. Over gRPC all calls share one connection.
    """

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
        """As `generate`, for models with any number of responses: each one as it arrives.

        Closing the iterator early cancels the request.
        """
        events = inference.Events(
            self._session, model, inputs, parameters, str(version), timeout, headers
        )
        # `Events` has refused other transports.
        transport = cast("AsyncHttpTransport | AsyncReplicaTransport", self._transport)
        responses = transport.events(events.request, events.timeout_secs)
        try:
            async for response in responses:
                for document in events.feed(response):
                    yield document
        finally:
            await responses.aclose()  # type: ignore[attr-defined]

    def stream(
        self, model: str = "", *, version: Version = "", headers: Headers | None = None
    ) -> AsyncStream:
        """A stream of requests to `model` (or to several) and their responses; needs gRPC.

        `async with client.stream("words") as stream: await stream.send({…})`, then
        `async for result in stream:`.
        """
        from shoal.client.async_stream import AsyncStream
        from shoal.client.streaming import Streaming

        streaming = Streaming(self._session, model, str(version), headers)
        # `Streaming` has refused other transports.
        transport = cast("AsyncGrpcTransport | AsyncReplicaTransport", self._transport)
        return AsyncStream(streaming, self._run, transport.duplex)

    def sequence(
        self, model: str, id: int | str | None = None, *, version: Version = ""
    ) -> AsyncSequence:
        """A sequence of requests: `async with client.sequence(…) as s:`."""
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

    def shared_memory(self, name: str, byte_size: int) -> AbstractAsyncContextManager[Region]:
        """Shared memory that is registered with the server during an `async with` block."""
        return async_registered(self._session, self._run, Region(name, byte_size))

    shared_memory_regions = awaiting(control.shared_memory_regions)

    # ---- closing

    async def close(self) -> None:
        """Close all connections; those in use are closed after their calls."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:  # noqa: PYI034 - Python 3.10 has no Self
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _connect(self, address: Address, encryption: tls.SSLContext | None, limits: Limits) -> None:
        self._transport: AsyncGrpcTransport | AsyncHttpTransport | AsyncReplicaTransport
        if address.balanced:
            from shoal.client.async_replica_transport import AsyncReplicaTransport

            requests = cast("ReplicaCodec", self._session.codec)
            self._transport = AsyncReplicaTransport(address, limits, requests.list_request)
        elif address.protocol == GRPC:
            from shoal.client.async_grpc_transport import AsyncGrpcTransport

            self._transport = AsyncGrpcTransport(address, encryption, limits)
        else:
            from shoal.client.async_http_transport import AsyncHttpTransport

            self._transport = AsyncHttpTransport(address, encryption, limits)

    def _known_labels(self, result: Result, output: str) -> Names[str]:
        """The cached labels: `top_k` cannot wait for a response."""
        key = (result.model_name, result.model_version, output)
        return self._session.labels.get(key, ())

    async def _run(self, steps: Steps[T]) -> T:
        """Run the steps of an operation and return its result."""
        exchange = self._transport.exchange
        try:
            step = next(steps)
            while True:
                if type(step) is RoundTrip:
                    try:
                        response = await exchange(step)
                    except ClientError as error:
                        step = steps.throw(error)
                        continue
                    step = steps.send(response)
                else:
                    await asyncio.sleep(step.secs)  # type: ignore[union-attr]
                    step = next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
