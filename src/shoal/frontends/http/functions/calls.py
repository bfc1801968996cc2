"""One call of a function over HTTP, from the request to its response.

    request --fields--> Request --> engine --> Response --results--> body, or an event for each

A call has an id, the client's (`X-Request-Id`) or a new one: the response has it as a header, and
so has the log where the function raised an exception.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Sequence
from functools import partial

from shoal.core.inbox import LoopInbox, LoopReply
from shoal.core.interface import FunctionInterface, members_of
from shoal.core.response import ParameterValue, Response
from shoal.engine import Engine
from shoal.engine.contract import EngineModel
from shoal.errors import InvalidArgument, ShoalError
from shoal.frontends.forwarding import HeaderForwarding
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import JSON, STATUS, as_shoal_error, note_error, send_error
from shoal.frontends.http.events import EVENT_HEADERS, event
from shoal.frontends.http.functions.fields import read_inputs, takes_pixels
from shoal.frontends.http.functions.results import (
    encode_generated,
    encode_result,
    file_media,
    is_file,
)
from shoal.frontends.http.message import Header, HttpRequest, error_body
from shoal.frontends.http.model_call import ModelCall, OneResponseCall
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.http.routes import Target
from shoal.frontends.http.traced import attach, serve_traced
from shoal.frontends.http.upload import Upload, read_parts, reads_quickly
from shoal.frontends.requests import build_request
from shoal.frontends.threads import without_frames
from shoal.wire.infer_json import InferBody, read_parameters
from shoal.wire.json_text import UNREADABLE

_ID_HEADER = b"x-request-id"
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_TRITONS_PREFIX = re.compile(r"\[request id: [^\]]*\] ")
# What `generate` takes besides the inputs: options of the request.
_OPTIONS = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout")
_NO_JSON = "the request body is not JSON: "
_ID_FIELD, _NESTED = "id", "parameters"


class FunctionCalls:
    """Calls functions."""

    def __init__(self, engine: Engine, inbox: LoopInbox, options: HttpOptions) -> None:
        self._engine = engine
        self._inbox = inbox
        self._options = options
        pattern = options.header_forward_pattern
        self._forwarding = HeaderForwarding(pattern, options.hidden_headers) if pattern else None

    def serve_route(self, exchange: Exchange, target: Target) -> None:
        """Serve a function's own route. If this raises, there was no response."""
        model = self._engine.find(target.model)
        interface = model.interface
        assert interface is not None  # it has a route
        self._serve(exchange, target, model, _route_call(exchange, interface))

    def serve_generate(
        self, exchange: Exchange, target: Target, model: EngineModel, *, stream: bool
    ) -> None:
        """Serve `generate` or `generate_stream` of a function. Raises as `serve_route`."""
        interface = model.interface
        assert interface is not None  # it is a function
        kind = _GenerateStream if stream else _GenerateCall
        self._serve(exchange, target, model, kind(exchange, interface))

    def _serve(self, exchange: Exchange, target: Target, model: EngineModel, call: _Call) -> None:
        call.id = request_id(exchange.request)
        start = partial(self._start, model=model, call=call)
        tracer = self._engine.tracer
        if not (tracer.active and serve_traced(tracer, exchange, target, start)):
            start(exchange, target)

    def _start(
        self, exchange: Exchange, target: Target, *, model: EngineModel, call: _Call
    ) -> None:
        call.exchange = exchange  # that of the trace, where there is one
        interface = call.interface
        read = partial(self._read, exchange.request, target, model, call)
        exchange.on_disconnect = call.client_disconnected
        images = any(map(takes_pixels, interface.inputs)) and len(exchange.request.body) > 0
        if reads_quickly(exchange.request) and not images:
            try:
                self._submit(target, call, read())
            except ShoalError as error:
                call.refuse(error)
            return

        def ready(future: asyncio.Future[InferBody]) -> None:
            if call.left:
                return
            failure = future.exception()
            if failure is not None:
                call.refuse(as_shoal_error(failure))
                return
            try:
                self._submit(target, call, future.result())
            except Exception as error:  # noqa: BLE001 - becomes the response
                call.refuse(as_shoal_error(error))

        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, without_frames(read)).add_done_callback(ready)

    def _read(
        self, request: HttpRequest, target: Target, model: EngineModel, call: _Call
    ) -> InferBody:
        """Read the inputs, and the options of `generate`. For any thread."""
        try:
            upload = read_parts(request, self._options.max_input_bytes)
        except InvalidArgument as error:
            if not error.message.startswith(UNREADABLE):
                raise
            raise InvalidArgument(_NO_JSON + error.message.removeprefix(UNREADABLE)) from None
        body = InferBody()
        if call.is_generate:
            upload = _without_options(upload, call.interface, body)
            signature = model.signature
            body.inputs = read_inputs(call.interface, upload, {}, signature=signature)
        else:
            body.inputs = read_inputs(call.interface, upload, dict(target.arguments))
        return body

    def _submit(self, target: Target, call: _Call, body: InferBody) -> None:
        parameters: dict[str, ParameterValue] = body.parameters
        if self._forwarding is not None:
            self._forwarding.forward(call.exchange.request.headers, parameters)
        call.sent_id = body.id
        request = build_request(
            (target.model, target.version),
            body,
            body.inputs,
            LoopReply(self._inbox, call.deliver),
            id=body.id or call.id,
            sequence_id=body.sequence_id,
            outputs=(),
            parameters=parameters,
        )
        request.one_answer = not call.streams
        attach(call.exchange, request)
        call.submit(self._engine, request)


def request_id(request: HttpRequest) -> str:
    """The client's id of a request, or a new one."""
    sent = (request.header(_ID_HEADER) or b"").decode("latin-1")
    return sent if _ID.fullmatch(sent) else secrets.token_hex(8)


def _without_options(upload: Upload, interface: FunctionInterface, body: InferBody) -> Upload:
    """What was sent without the options of the request, which go to `body`."""
    document = upload.document
    if type(document) is not dict:
        return upload
    inputs = {field.name for field in interface.inputs}
    nested = document.get(_NESTED) if _NESTED not in inputs else None
    members = {**document, **nested} if type(nested) is dict else dict(document)
    if type(nested) is dict:
        members.pop(_NESTED)
    if _ID_FIELD in members and _ID_FIELD not in inputs:
        body.id = str(members.pop(_ID_FIELD))
    whole = interface.whole_body
    known = members_of(whole.schema) if whole is not None else set()
    for name in _OPTIONS:
        if name in members and name not in inputs | known:
            read_parameters({name: members.pop(name)}, body)
    return Upload(upload.query, upload.fields, members, upload.files)


class _Call(ModelCall):
    """What all kinds of response of a function have in common."""

    is_generate = False
    streams = False

    def __init__(self, exchange: Exchange, interface: FunctionInterface) -> None:
        super().__init__(exchange)
        self.interface = interface
        self.id = ""
        self.sent_id = ""  # in the body of `generate`

    def refuse(self, error: ShoalError) -> None:
        """Respond with an error, in the caller's terms."""
        if not self.left:
            send_error(self.exchange, _plain_error(error), [self._id_header()])

    def _id_header(self) -> Header:
        sent = self.sent_id if _ID.fullmatch(self.sent_id) else self.id
        return b"X-Request-Id", sent.encode("ascii")


class _OneResponse(_Call, OneResponseCall):
    """Responds with the only response of a function."""

    def _respond(self, response: Response) -> None:
        headers, body = self._encode(response)
        self.exchange.respond(200, [*headers, self._id_header()], [body])

    def _not_one(self, count: int) -> ShoalError:
        return InvalidArgument(
            f"the function yields any number of results, here {count}; use generate_stream "
            "instead of generate"
        )

    def _encode(self, response: Response) -> tuple[list[Header], bytes]:
        return encode_result(self.interface, response)


class _GenerateCall(_OneResponse):
    is_generate = True

    def _encode(self, response: Response) -> tuple[list[Header], bytes]:
        return [JSON], encode_generated(self.interface, response, self.sent_id)


class _Stream(_Call):
    """Sends each response as an event, or as a piece of a file; the first decides the status."""

    streams = True

    def __init__(self, exchange: Exchange, interface: FunctionInterface) -> None:
        super().__init__(exchange, interface)
        self._started = False

    def deliver(self, response: Response) -> None:
        """Take a response. Never raises: others wait behind it."""
        if response.error is not None and not self.left:
            self._fail(_plain_error(response.error), final=response.final)
        elif not self.left:
            self._send(response)
        if response.final:
            self.request = None

    def _send(self, response: Response) -> None:
        try:
            piece = b"" if response.is_end_only else self._piece(response)
        except Exception as failure:  # noqa: BLE001 - becomes the response, or its last event
            self._fail(_plain_error(as_shoal_error(failure)), final=response.final)
            return
        if not self._started:
            self._started = True
            self.exchange.start_stream(200, [*self._headers(), self._id_header()])
        if piece:
            self.exchange.send_chunk(piece)
        if response.final:
            self.exchange.end_stream()

    def _fail(self, error: ShoalError, *, final: bool) -> None:
        if not self._started:
            self.left = not final  # what follows is dropped
            if not final and self.request is not None:
                self.request.cancel()
            send_error(self.exchange, error, [self._id_header()])
            return
        note_error(self.exchange, STATUS[error.code], error.message)
        self.exchange.send_chunk(event(error_body(error.message)))
        if final:
            self.exchange.end_stream()

    def _headers(self) -> Sequence[Header]:
        return EVENT_HEADERS

    def _piece(self, response: Response) -> bytes:
        return event(encode_result(self.interface, response)[1])


class _FileStream(_Stream):
    """The pieces of a file."""

    def _fail(self, error: ShoalError, *, final: bool) -> None:
        if not self._started:
            super()._fail(error, final=final)
            return
        note_error(self.exchange, STATUS[error.code], error.message)
        self.exchange.abort()  # so that the client does not take a part for the whole

    def _headers(self) -> Sequence[Header]:
        return ((b"Content-Type", file_media(self.interface).encode()),)

    def _piece(self, response: Response) -> bytes:
        return encode_result(self.interface, response)[1]


class _GenerateStream(_Stream):
    is_generate = True

    def _piece(self, response: Response) -> bytes:
        return event(encode_generated(self.interface, response, self.sent_id))


def _route_call(exchange: Exchange, interface: FunctionInterface) -> _Call:
    if not interface.streams:
        return _OneResponse(exchange, interface)
    return (_FileStream if is_file(interface) else _Stream)(exchange, interface)


def _plain_error(error: ShoalError) -> ShoalError:
    """An error without what Triton's clients expect at its beginning."""
    text = _TRITONS_PREFIX.sub("", error.message, count=1)
    if text == error.message:
        return error
    plain = error.prefixed("")
    plain.message = text
    return plain
