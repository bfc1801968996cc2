"""The client for programs that wait: one method per operation, run on blocking sockets."""

from __future__ import annotations

import contextlib
import ssl as tls
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from shoal.client import control, inference, tasks
from shoal.client.address import GRPC, Address
from shoal.client.codec import Answer, Headers, Parameter
from shoal.client.connecting import Limits
from shoal.client.errors import ClientError
from shoal.client.methods import blocking
from shoal.client.region import Region
from shoal.client.sequence import Sequence, SequenceSteps
from shoal.client.setup import setup
from shoal.client.shared_memory import SharedMemory
from shoal.client.steps import Exchange, Steps, Version

if TYPE_CHECKING:
    from shoal.client.stream import Stream

T = TypeVar("T")


class Transport(Protocol):
    """What carries requests to one server."""

    def exchange(self, step: Exchange) -> Answer:
        """Send a request and wait for its answer."""

    def close(self) -> None:
        """End all connections."""


class Client:
    """A client of one server. Any thread may call any method; each takes a connection of its own.

    `Client("localhost:8000")` speaks HTTP, `Client("grpc://localhost:8001")` gRPC; https:// and
    grpcs:// encrypt. Connections are opened when they are first needed and kept.
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
        """`headers` go with every request. `timeout` is for each call, in seconds; None waits.

        `retries` is how often an inference is tried again, after a growing pause, when the server
        is overloaded (503, UNAVAILABLE); nothing else is. At most `connections` are open at once.
        `ca` is a file with the certificates to trust, `cert` and `key` are one's own. Raises
        InvalidInput; nothing is opened yet.
        """
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
        self._session.labeller = weakref.WeakMethod(self.labels)
        self._transport = _transport(made.address, made.encryption, made.limits)

    # ---- inference

    infer = blocking(inference.infer)
    prepare = blocking(inference.prepare)
    send = blocking(inference.send)
    labels = blocking(inference.labels)
    generate = blocking(inference.generate)
    classify = blocking(tasks.classify)
    caption = blocking(tasks.caption)
    answer = blocking(tasks.answer)
    embed = blocking(tasks.embed)
    perform = blocking(tasks.perform)

    def generate_stream(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        parameters: Mapping[str, Parameter] | None = None,
        version: Version = "",
        timeout: float | None = None,
        headers: Headers | None = None,
    ) -> Iterator[dict[str, Any]]:
        """As `generate`, for models that answer any number of times: each answer as it comes.

        Closing the iterator early withdraws the request.
        """
        from shoal.client.http_transport import HttpTransport

        events = inference.Events(
            self._session, model, inputs, parameters, str(version), timeout, headers
        )
        transport = self._transport
        assert isinstance(transport, HttpTransport)  # as `Events` has seen
        with contextlib.closing(transport.events(events.request, events.timeout_secs)) as answers:
            for answer in answers:
                yield from events.feed(answer)

    def stream(
        self, model: str = "", *, version: Version = "", headers: Headers | None = None
    ) -> Stream:
        """A stream of requests to `model` (or to several) and their answers; needs gRPC.

        `with client.stream("words") as stream: stream.send({…}); for result in stream: …`
        """
        from shoal.client.grpc_transport import GrpcTransport
        from shoal.client.stream import Stream
        from shoal.client.streaming import Streaming

        streaming = Streaming(self._session, model, str(version), headers)
        transport = self._transport
        assert isinstance(transport, GrpcTransport)  # as `Streaming` has seen
        return Stream(streaming, self._run, transport.duplex(streaming.block))

    def sequence(
        self, model: str, id: int | str | None = None, *, version: Version = ""
    ) -> Sequence:
        """A sequence of requests that belong together: `with client.sequence("counter") as s:`."""
        return Sequence(SequenceSteps(self._session, model, id, str(version)), self._run)

    # ---- status

    live = blocking(control.live)
    ready = blocking(control.ready)
    model_ready = blocking(control.model_ready)
    server_metadata = blocking(control.server_metadata)
    metadata = blocking(control.metadata)
    config = blocking(control.config)
    statistics = blocking(control.statistics)

    # ---- the repository

    index = blocking(control.index)
    load = blocking(control.load)
    unload = blocking(control.unload)

    # ---- settings

    trace_settings = blocking(control.trace_settings)
    log_settings = blocking(control.log_settings)

    # ---- shared memory

    def shared_memory(self, name: str, byte_size: int) -> SharedMemory:
        """Shared memory that the server knows while the block runs.

        `with client.shared_memory("images", size) as region: region.put(array)` gives an input.
        """
        return SharedMemory(self._session, self._run, Region(name, byte_size))

    shared_memory_regions = blocking(control.shared_memory_regions)

    # ---- the end

    def close(self) -> None:
        """Close all connections; those in use when their calls are done."""
        self._transport.close()

    def __enter__(self) -> Client:  # noqa: PYI034 - Python 3.10 has no Self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client('{self._address.protocol}://{self._address.authority}')"

    def _run(self, steps: Steps[T]) -> T:
        """Do what each step says until the operation has its result."""
        exchange = self._transport.exchange
        try:
            step = next(steps)
            while True:
                if type(step) is Exchange:
                    try:
                        answer = exchange(step)
                    except ClientError as error:
                        step = steps.throw(error)
                        continue
                    step = steps.send(answer)
                else:
                    time.sleep(step.secs)  # type: ignore[union-attr]
                    step = next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def _transport(address: Address, encryption: tls.SSLContext | None, limits: Limits) -> Transport:
    if address.protocol == GRPC:
        from shoal.client.grpc_transport import GrpcTransport

        return GrpcTransport(address, encryption, limits)
    from shoal.client.http_transport import HttpTransport

    return HttpTransport(address, encryption, limits)
