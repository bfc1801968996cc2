"""POST …/generate and …/generate_stream: inference for people and web pages.

    {"prompt": "hi"} --> Request --> engine --> one JSON object, or an event for each response

`generate` waits for the one response of a request; `generate_stream` sends each response as a
server-sent event, so that decoupled models can be used over HTTP. When the client disconnects, the
request is cancelled.
"""

from __future__ import annotations

from shoal.access.caller import Caller
from shoal.config.suggest import did_you_mean
from shoal.core.inbox import LoopInbox, LoopReply
from shoal.core.response import Response
from shoal.engine import Engine
from shoal.errors import Internal, NotFound, ShoalError, Unsupported
from shoal.frontends.forwarding import HeaderForwarding
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import JSON, STATUS, as_shoal_error, note_error
from shoal.frontends.http.events import EVENT_HEADERS, event
from shoal.frontends.http.functions.calls import FunctionCalls
from shoal.frontends.http.message import error_body
from shoal.frontends.http.model_call import ModelCall, OneResponseCall
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.http.routes import EVENT_MEDIA, MODEL_VERSION, Target, route
from shoal.frontends.http.traced import attach, serve_traced
from shoal.frontends.requests import build_request
from shoal.wire.compression import IDENTITY, coding
from shoal.wire.generate import decode_generate, encode_generate

ONE_RESPONSE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that "
    "generates various number of responses"
)


class GenerateRoutes:
    """Serves both endpoints."""

    def __init__(
        self, engine: Engine, inbox: LoopInbox, options: HttpOptions, functions: FunctionCalls
    ) -> None:
        """`functions` serves models that are functions."""
        self._engine = engine
        self._functions = functions
        self._inbox = inbox
        self._options = options
        pattern = options.header_forward_pattern
        self._forwarding = HeaderForwarding(pattern, options.hidden_headers) if pattern else None

    @route(
        f"POST {MODEL_VERSION}/generate",
        api="inference",
        loads_model=True,
        summary="Inference with plain JSON, one response",
        description="For models that respond exactly once.",
        response="GenerateResponse",
        request="GenerateRequest",
    )
    def generate(self, exchange: Exchange, target: Target) -> None:
        """Send the one response of the request. If this raises, there was no response."""
        self._serve(exchange, target, _OneAnswer)

    @route(
        f"POST {MODEL_VERSION}/generate_stream",
        api="inference",
        loads_model=True,
        summary="Inference with plain JSON, an event for each response",
        description="Server-sent events, `data: {…}`, each as soon as it is there.",
        response="GenerateResponse",
        response_media=(EVENT_MEDIA,),
        request="GenerateRequest",
    )
    def generate_stream(self, exchange: Exchange, target: Target) -> None:
        """Send an event for each response. If this raises, there was no response."""
        self._serve(exchange, target, _Events)

    def _serve(self, exchange: Exchange, target: Target, kind: type[_OneAnswer | _Events]) -> None:
        try:
            model = self._engine.find(target.model, target.version)
        except NotFound as error:
            raise self._with_functions(error, target.model, exchange.caller) from None
        if model.interface is not None and not model.interface.is_application:
            stream = kind is _Events
            self._functions.serve_generate(exchange, target, model, stream=stream)
            return

        def submit(asked: Exchange, at: Target) -> None:
            self._submit(asked, at, kind(asked))

        tracer = self._engine.tracer
        if not (tracer.active and serve_traced(tracer, exchange, target, submit)):
            submit(exchange, target)

    def _with_functions(self, error: NotFound, name: str, caller: Caller | None) -> NotFound:
        """The error about an unknown model, with the functions there are, if any."""
        names = [
            model.name
            for model in self._engine.newest_models()
            if model.interface is not None and not model.interface.is_application
            if caller is None or caller.may_use(model.name)
        ]
        if not names or name in names:
            return error
        return NotFound(f"{error.message}. {did_you_mean(name, names, 'functions')}")

    def _submit(self, exchange: Exchange, target: Target, call: _OneAnswer | _Events) -> None:
        request = exchange.request
        if coding(request.header(b"content-encoding")) != IDENTITY:
            raise Unsupported("Unsupported compression type: send the request without compression")
        signature = self._engine.signature(target.model, target.version)
        body = decode_generate(
            request.body, signature, max_json_bytes=self._options.max_input_bytes
        )
        if self._forwarding is not None:
            self._forwarding.forward(request.headers, body.parameters)
        asked = build_request(
            (target.model, target.version),
            body,
            body.inputs,
            LoopReply(self._inbox, call.deliver),
            id=body.id,
            sequence_id=body.sequence_id,
            outputs=(),
            parameters=body.parameters,
        )
        asked.one_answer = isinstance(call, _OneAnswer)
        exchange.on_disconnect = call.client_disconnected
        attach(exchange, asked)
        call.submit(self._engine, asked)


class _OneAnswer(OneResponseCall):
    """For `generate`."""

    def _respond(self, response: Response) -> None:
        self.exchange.respond(200, [JSON], [encode_generate(response)])

    def _not_one(self, count: int) -> ShoalError:
        del count  # Triton's text does not name it
        return Internal(ONE_RESPONSE)


class _Events(ModelCall):
    """Sends each response as an event; the first one decides the status."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._started = False

    def deliver(self, response: Response) -> None:
        """Take a response, on the loop. Never raises: others wait behind it."""
        if response.final:
            self.request = None
        if self.left:
            return
        status, data = 200, b""
        if response.error is not None:
            status, data = self._failed(response.error)
        elif not response.is_end_only:
            try:
                data = encode_generate(response)
            except Exception as failure:  # noqa: BLE001 - becomes an event
                status, data = self._failed(as_shoal_error(failure))
        if not self._started:
            self._started = True
            self.exchange.start_stream(status, EVENT_HEADERS)
        if data:
            self.exchange.send_chunk(event(data))
        if response.final:
            self.exchange.end_stream()

    def _failed(self, error: ShoalError) -> tuple[int, bytes]:
        """The status and the event for an error."""
        status = STATUS[error.code]
        note_error(self.exchange, status, error.message)
        return status, error_body(error.message)
