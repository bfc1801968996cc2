"""A stream's requests and answers, without any input or output.

    outgoing(inputs) --> message        incoming(message) --> Result, or the error in its place

Every request asks the server to say when it has given its last answer, so that a stream knows
when all that it has sent is answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.client import inference
from shoal.client.codec import Answer, Ask, Headers, Parameter, Terms
from shoal.client.errors import ClientError, InvalidInput
from shoal.client.grpc_codec import GrpcCodec, refusal
from shoal.client.http2_stream import Ended
from shoal.client.places import fill_from_places
from shoal.client.region import Place
from shoal.client.result import Result
from shoal.client.steps import Session, Steps, Version
from shoal.core.tensor import Buffer

_SAY_WHEN = "triton_enable_empty_final_response"


class Streaming:
    """What a stream knows: its model, and how many requests are not answered to the end."""

    def __init__(self, session: Session, model: str, version: str, headers: Headers | None) -> None:
        """InvalidInput when the client speaks HTTP."""
        if not isinstance(session.codec, GrpcCodec):
            raise InvalidInput(
                "streams need gRPC: use a client of the server's gRPC port, as in "
                "Client('grpc://localhost:8001'); generate_stream() works over HTTP"
            )
        self.codec = session.codec
        self.session = session
        self.block = self.codec.block("ModelStreamInfer", Terms(headers))
        self.waiting = 0
        self._model = model
        self._version = version
        self._places: dict[str, Mapping[str, Place]] = {}  # by request id

    def outgoing(
        self,
        inputs: Mapping[str, Any],
        *,
        model: str = "",
        outputs: Sequence[str] | Mapping[str, Place | None] = (),
        version: Version = "",
        id: str = "",
        parameters: Mapping[str, Parameter] | None = None,
        classes: Mapping[str, int] | None = None,
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        priority: int = 0,
        server_timeout_us: int = 0,
    ) -> Steps[tuple[list[Buffer], int]]:
        """The message of one request. Arguments as with `Client.infer`."""
        name = model or self._model
        if not name:
            raise InvalidInput("name the model: stream('model'), or send(…, model='model')")
        ask: Ask = yield from inference.asked(
            self.session,
            name,
            inputs,
            outputs=outputs,
            version=version or self._version,
            id=id,
            parameters={**(parameters or {}), _SAY_WHEN: True},
            classes=classes,
            sequence_id=sequence_id,
            sequence_start=sequence_start,
            sequence_end=sequence_end,
            priority=priority,
            server_timeout_us=server_timeout_us,
        )
        if ask.places:
            if not id:
                raise InvalidInput("a request whose outputs go to shared memory needs an id here")
            self._places[id] = ask.places
        return self.codec.infer_message(ask)

    def incoming(self, message: Buffer) -> Result | ClientError | None:
        """What a message stands for; None when it only says that a request is answered."""
        found, error = self.codec.stream_answer(message)
        if found is None or found.final:
            self.waiting -= 1
        if found is None or error is not None:
            return error
        if not found.outputs and "triton_final_response" in found.parameters and found.final:
            return None
        places = self._places.get(found.id) if found.id else None
        if places is not None:
            fill_from_places(found, places)
        found._labels = self.session.labeller()
        return found

    def over(self, ended: Ended) -> ClientError | None:
        """The error a stream ended with, if it did."""
        self.waiting = 0
        if ended.code > 0:
            return refusal(Answer(ended.code, ended.headers, b"", ended.message))
        return None
