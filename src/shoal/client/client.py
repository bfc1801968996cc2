"""The blocking client: one method per operation."""

from __future__ import annotations

import contextlib
import ssl as tls
import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Names
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from shoal.client import control, inference, tasks
from shoal.client.address import GRPC, Address
from shoal.client.base_client import BaseClient
from shoal.client.codec import Headers, Parameter
from shoal.client.connecting import Limits
from shoal.client.errors import ClientError
from shoal.client.methods import blocking
from shoal.client.region import Region
from shoal.client.result import Result
from shoal.client.sequence import Sequence, SequenceSteps
from shoal.client.shared_memory import registered
from shoal.client.steps import RoundTrip, Steps, Version

if TYPE_CHECKING:
    from shoal.client.grpc_transport import GrpcTransport
    from shoal.client.http_transport import HttpTransport
    from shoal.client.replica_codec import ReplicaCodec
    from shoal.client.replica_transport import ReplicaTransport
    from shoal.client.stream import Stream

T = TypeVar("T")


class Client(BaseClient):
    """A client of one server. Thread-safe; each concurrent call uses its own connection.

    `Client("localhost:8000")` speaks HTTP, `Client("grpc://localhost:8001")` gRPC; https:// and
    grpcs:// encrypt. Connections are opened on first use and reused.
    """

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
        """As `generate`, for models with any number of responses: each one as it arrives.

        Closing the iterator early cancels the request.
        """
        events = inference.Events(
            self._session, model, inputs, parameters, str(version), timeout, headers
        )
        # `Events` has refused other transports.
        transport = cast("HttpTransport | ReplicaTransport", self._transport)
        with contextlib.closing(transport.events(events.request, events.timeout_secs)) as responses:
            for response in responses:
                yield from events.feed(response)

    def stream(
        self, model: str = "", *, version: Version = "", headers: Headers | None = None
    ) -> Stream:
        """A stream of requests to `model` (or to several) and their responses; needs gRPC.

        `with client.stream("words") as stream: stream.send({…}); for result in stream: …`
        """
        from shoal.client.stream import Stream
        from shoal.client.streaming import Streaming

        streaming = Streaming(self._session, model, str(version), headers)
        # `Streaming` has refused other transports.
        transport = cast("GrpcTransport | ReplicaTransport", self._transport)
        return Stream(streaming, self._run, transport.duplex(streaming.request))

    def sequence(
        self, model: str, id: int | str | None = None, *, version: Version = ""
    ) -> Sequence:
        """A sequence of requests: `with client.sequence("counter") as s:`."""
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

    def shared_memory(self, name: str, byte_size: int) -> AbstractContextManager[Region]:
        """Shared memory that is registered with the server during a `with` block.

        `with client.shared_memory("images", size) as region: region.put(array)` gives an input.
        """
        return registered(self._session, self._run, Region(name, byte_size))

    shared_memory_regions = blocking(control.shared_memory_regions)

    # ---- closing

    def close(self) -> None:
        """Close all connections; those in use are closed after their calls."""
        self._transport.close()

    def __enter__(self) -> Client:  # noqa: PYI034 - Python 3.10 has no Self
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, address: Address, encryption: tls.SSLContext | None, limits: Limits) -> None:
        self._transport: GrpcTransport | HttpTransport | ReplicaTransport
        if address.balanced:
            from shoal.client.replica_transport import ReplicaTransport

            requests = cast("ReplicaCodec", self._session.codec)
            self._transport = ReplicaTransport(address, limits, requests.list_request)
        elif address.protocol == GRPC:
            from shoal.client.grpc_transport import GrpcTransport

            self._transport = GrpcTransport(address, encryption, limits)
        else:
            from shoal.client.http_transport import HttpTransport

            self._transport = HttpTransport(address, encryption, limits)

    def _known_labels(self, result: Result, output: str) -> Names[str]:
        return self.labels(result, output)

    def _run(self, steps: Steps[T]) -> T:
        """Run the steps of an operation and return its result."""
        exchange = self._transport.exchange
        try:
            step = next(steps)
            while True:
                if type(step) is RoundTrip:
                    try:
                        response = exchange(step)
                    except ClientError as error:
                        step = steps.throw(error)
                        continue
                    step = steps.send(response)
                else:
                    time.sleep(step.secs)  # type: ignore[union-attr]
                    step = next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
