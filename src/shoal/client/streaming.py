"""The requests and responses of a stream, without I/O.

    outgoing(inputs) --> message        received(message) --> Result

Every request asks the server to mark its last response, so that a stream knows when all requests
are answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.client import inference
from shoal.client.codec import CallOptions, Headers, Parameter, RawResponse
from shoal.client.errors import InvalidInput
from shoal.client.grpc_codec import GrpcCodec, refusal
from shoal.client.http2_stream import Ended
from shoal.client.region import Place, fill_from_places
from shoal.client.result import Result
from shoal.client.steps import ClientSession, Steps, Version
from shoal.core.tensor import Buffer

_REPORT_END = "triton_enable_empty_final_response"


class Streaming:
    """The state of a stream: its model, and the number of requests in progress."""

    def __init__(
        self, session: ClientSession, model: str, version: str, headers: Headers | None
    ) -> None:
        """Raises InvalidInput when the client uses HTTP."""
        if not isinstance(session.codec, GrpcCodec):
            raise InvalidInput(
                "streams need gRPC: use a client of the server's gRPC port, as in "
                "Client('grpc://localhost:8001'); generate_stream() works over HTTP"
            )
        self.codec = session.codec
        self.session = session
        self.request = self.codec.stream(model, CallOptions(headers))
        self.waiting = 0
        self._model = model
        self._version = version
        self._places: dict[str, Mapping[str, Place]] = {}  # by request id

    def outgoing(
        self,
        inputs: Mapping[str, Any],
        *,
        model: str = "",
        version: Version = "",
        id: str = "",
        parameters: Mapping[str, Parameter] | None = None,
        **arguments: Any,
    ) -> Steps[tuple[list[Buffer], int]]:
        """The message of one request. Arguments as with `Client.infer`."""
        for name in ("timeout", "headers", "binary"):
            if name in arguments:
                raise TypeError(f"send() takes no {name}: it belongs to the stream or the client")
        name = model or self._model
        if not name:
            raise InvalidInput("name the model: stream('model'), or send(…, model='model')")
        infer_call, _ = yield from inference.described(
            self.session,
            name,
            inputs,
            version=version or self._version,
            id=id,
            parameters={**(parameters or {}), _REPORT_END: True},
            **arguments,
        )
        if infer_call.places:
            if not id:
                raise InvalidInput("a request whose outputs go to shared memory needs an id here")
            self._places[id] = infer_call.places
        return self.codec.infer_message(infer_call)

    def received(self, message: Buffer | Ended) -> tuple[Result | None, bool]:
        """The result in a message, if any, and whether the caller should stop receiving.

        Raises the ServerError of a request that failed or of the whole stream.
        """
        if isinstance(message, Ended):
            self.waiting = 0
            if message.code > 0:
                raise refusal(RawResponse(message.code, message.headers, b"", message.message))
            return None, True
        found, error = self.codec.stream_response(message)
        if found is None or found.final:
            self.waiting -= 1
        if error is not None:
            raise error
        if found is None or (
            not found.outputs and "triton_final_response" in found.parameters and found.final
        ):
            return None, not self.waiting
        places = self._places.get(found.id) if found.id else None
        if places is not None:
            fill_from_places(found, places)
        found._labels = self.session.labeller()
        return found, True
