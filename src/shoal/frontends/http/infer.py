"""POST .../infer, the slow path: every request that matches no template.

    exchange --decode--> Request --engine.infer--> ... --LoopInbox--> deliver --encode--> exchange

What takes long in any case (decompressing a body, parsing a long JSON text, reading many strings,
compressing a response) runs on a thread; everything else stays on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from shoal.core import bytes_tensor
from shoal.core.dtypes import BYTES
from shoal.core.inbox import LoopInbox, LoopReply
from shoal.core.model_loading import ModelLoading
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.core.signature import Signature
from shoal.core.tensor import Buffer
from shoal.engine import Engine
from shoal.errors import Unsupported
from shoal.frontends.forwarding import HeaderForwarding
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import as_shoal_error, send_error
from shoal.frontends.http.message import Header, HttpRequest
from shoal.frontends.http.options import HttpOptions
from shoal.frontends.http.routes import BINARY_MEDIA, JSON_MEDIA, MODEL_VERSION, Target, route
from shoal.frontends.http.traced import attach, serve_traced
from shoal.frontends.http.waiting import respond_when_loaded
from shoal.frontends.requests import build_request, is_slow, submit
from shoal.frontends.threads import without_frames
from shoal.wire import compression, http_body
from shoal.wire.compression import IDENTITY
from shoal.wire.http_body import EncodedBody, InferBody, InferBodyDecoder
from shoal.wire.regions import Regions

Result = TypeVar("Result")

LENGTH_NAME = http_body.LENGTH_HEADER.encode()
_LENGTH_FIELD = LENGTH_NAME.lower()
DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"
_ACCEPTED_CODINGS: Header = (b"Accept-Encoding", b"gzip, deflate")

# From these sizes on a thread is worth its wake-up. A compressed body can grow a thousandfold, so
# it is decompressed as far as the limit of a plain one, which takes a millisecond or two to parse.
_INFLATE_OFF_LOOP_BYTES = 8 * 1024
_PARSE_OFF_LOOP_BYTES = 256 * 1024
_COMPRESS_OFF_LOOP_BYTES = 64 * 1024
_CHECK_ROOM_BYTES = 64 * 1024  # larger bodies are not decoded for a queue that is full


def binary_headers(json_bytes: bytes, options: HttpOptions) -> list[Header]:
    """The headers of a response with bytes after its JSON, which has this length."""
    if options.length_type:
        return [(b"Content-Type", options.length_type + json_bytes)]
    return [(b"Content-Type", http_body.BINARY_TYPE), (LENGTH_NAME, json_bytes)]


class InferRoute:
    """Serves inference requests."""

    def __init__(
        self,
        engine: Engine,
        inbox: LoopInbox,
        options: HttpOptions,
        regions: Regions | None = None,
    ) -> None:
        """`regions` is the shared memory that requests may name."""
        self.regions = regions
        self.engine = engine
        self.inbox = inbox
        self.options = options
        pattern = options.header_forward_pattern
        self.forwarding = HeaderForwarding(pattern, options.hidden_headers) if pattern else None
        self.decoder = InferBodyDecoder(caches=options.plans)
        # Called with each request that the engine has accepted; set by the fast path.
        self.on_accepted: Callable[[HttpRequest, Target, InferBody, Request], None] | None = None

    @route(
        f"POST {MODEL_VERSION}/infer",
        api="inference",
        loads_model=True,
        summary="Inference",
        description="Tensors as JSON, or as bytes after the JSON: with the header "
        f"{http_body.LENGTH_HEADER}, which the response then has, too.",
        response="InferResponse",
        response_media=(JSON_MEDIA, BINARY_MEDIA),
        request="InferRequest",
        request_media=(JSON_MEDIA, BINARY_MEDIA),
        headers=(
            (
                http_body.LENGTH_HEADER,
                "bytes of JSON, after which tensors follow; without it the whole body is JSON",
            ),
        ),
    )
    def infer(self, exchange: Exchange, target: Target) -> None:
        """Respond to `exchange`, now or later. If this raises, there was no response."""
        tracer = self.engine.tracer
        if not (tracer.active and serve_traced(tracer, exchange, target, self.serve)):
            self.serve(exchange, target)

    def serve(self, exchange: Exchange, target: Target) -> None:
        """As `infer`, within a trace or without."""
        coding = compression.coding(exchange.request.header(b"content-encoding"))
        try:
            if self.engine.is_decoupled(target.model, target.version):
                raise Unsupported(DECOUPLED)
        except ModelLoading as pending:
            if pending.only_asks or coding is None:
                raise
            HttpInferCall(self, exchange, target, InferBody()).wait(pending, coding)
            return
        if coding is None:
            error = Unsupported("Unsupported compression type")
            send_error(exchange, error, [_ACCEPTED_CODINGS])
            return
        HttpInferCall(self, exchange, target, InferBody()).start(coding)


class HttpInferCall:
    """One inference: keeps what the response needs to know of the request."""

    __slots__ = (
        "_body",
        "_disconnected",
        "_exchange",
        "_request",
        "_route",
        "_signature",
        "_target",
    )

    def __init__(
        self, route: InferRoute, exchange: Exchange, target: Target, body: InferBody
    ) -> None:
        """`body` is what is known of the request before `start`."""
        self._route = route
        self._exchange = exchange
        self._target = target
        self._body = body
        self._signature: Signature | None = None
        self._request: Request | None = None
        self._disconnected = False

    def start(self, coding: str) -> None:
        """Decode the body, here or on a thread, and submit the request."""
        self._exchange.on_disconnect = self._client_disconnected
        sent = self._exchange.request.body
        if len(sent) > _CHECK_ROOM_BYTES:
            self._route.engine.check_room(self._target.model, self._target.version)
        body: Buffer | None = sent if coding == IDENTITY else None
        if body is None and len(sent) <= _INFLATE_OFF_LOOP_BYTES:
            most = min(_PARSE_OFF_LOOP_BYTES, self._route.options.max_input_bytes)
            body = compression.decompress_small(sent, most_bytes=most)
        if body is not None and self._is_quick(body):
            self._submit(self._decode(body))
        else:
            self._off_loop(lambda: self._decode(body), self._submit)

    def wait(self, pending: ModelLoading, coding: str) -> None:
        """Serve the request once its model is loaded, if its own time-out has not passed by then;
        the body is read for that."""
        self._exchange.on_disconnect = self._client_disconnected
        sent = self._exchange.request.body if coding == IDENTITY else None

        def timeout_us() -> int:
            body = self._decode(sent)
            body.release()
            return body.timeout_us

        self._off_loop(timeout_us, partial(self._serve_when_loaded, pending))

    def _serve_when_loaded(self, pending: ModelLoading, timeout_us: int = 0) -> None:
        if not self._disconnected:
            again = partial(self._route.serve, self._exchange, self._target)
            respond_when_loaded(pending, self._exchange, again, timeout_us)

    def _is_quick(self, body: Buffer) -> bool:
        """Whether decoding the body takes less time than waking a thread."""
        size = len(body)
        return (self._json_bytes(size) or size) <= _PARSE_OFF_LOOP_BYTES

    def _json_bytes(self, body_bytes: int) -> int | None:
        """How much of the body is JSON, as the request says; None if it says nothing."""
        request = self._exchange.request
        if 0 < request.plain_offset <= body_bytes:
            return request.plain_offset
        return http_body.parse_header_length(request.header(_LENGTH_FIELD), body_bytes)

    def _decode(self, body: Buffer | None) -> InferBody:
        """The body as tensors; None: the request's, which is compressed. May run on any thread."""
        request, target = self._exchange.request, self._target
        most = self._route.options.max_input_bytes
        if body is None:
            body = compression.decompress(request.body, most_bytes=most)
            return self._checked(self._decode(body))
        length = self._json_bytes(len(body))
        if http_body.is_raw(length, body):
            signature = self._route.engine.signature(target.model, target.version)
            return http_body.decode_raw(body, signature, max_raw_bytes=most)
        return self._route.decoder.decode(
            body,
            length,
            model_name=target.model,
            max_json_bytes=most,
            regions=self._route.regions,
        )

    def _checked(self, body: InferBody) -> InferBody:
        """A body that was compressed: it may have taken few bytes to send."""
        try:
            for tensor in body.inputs.values():
                if tensor.datatype is BYTES:
                    bytes_tensor.check_unsent(tensor.name, tensor.element_count, "if compressed")
        except BaseException:
            body.release()
            raise
        return body

    def _submit(self, body: InferBody) -> None:
        """Submit the request. If this raises, the engine has not taken it."""
        if self._disconnected:
            body.release()
            return
        try:
            self._infer(body)
        except BaseException:
            self._request = None  # as in `deliver`
            body.release()
            raise

    def _infer(self, body: InferBody) -> None:
        route, target = self._route, self._target
        self._body = body
        if route.forwarding is not None:
            route.forwarding.forward(self._exchange.request.headers, body.parameters)
        if any(output.classification for output in body.outputs):
            self._signature = route.engine.signature(target.model, target.version)
        self._request = request = build_request(
            (target.model, target.version),
            body,
            body.inputs,
            LoopReply(route.inbox, self.deliver),
            id=body.id,
            sequence_id=body.sequence_id,
            outputs=tuple([output.name for output in body.outputs]),
            parameters=body.parameters,
        )
        attach(self._exchange, request)
        if is_slow(body.inputs, body.leases):
            self._off_loop(lambda: self._submit_slow(body, request), lambda _: None)
            return
        route.engine.infer(request)
        if route.on_accepted is not None:
            route.on_accepted(self._exchange.request, target, body, request)

    def _submit_slow(self, body: InferBody, request: Request) -> None:
        """On a thread. If this raises, the engine has not taken the request."""
        try:
            submit(self._route.engine, request, body.leases)
        except BaseException:
            body.release()
            raise

    def _client_disconnected(self) -> None:
        self._disconnected = True
        if self._request is not None:
            self._request.cancel()

    def deliver(self, response: Response) -> None:
        """Answer, on the loop. Never raises: other responses wait behind it."""
        if not response.final:
            return
        self._request = None  # it refers to this call: otherwise only the collector frees both
        if self._disconnected or response.error is not None:
            self._body.release()
            if response.error is not None and not self._disconnected:
                send_error(self._exchange, response.error)
            return
        try:
            self._respond(response)
        except Exception as error:  # noqa: BLE001 - becomes the response
            self._fail(error)

    def _respond(self, response: Response) -> None:
        body = self._body
        if http_body.encodes_slowly(response, body.outputs, binary_default=body.binary_default):
            self._off_loop(lambda: self._encode(response), self._send)
        else:
            self._send(self._encode(response))

    def _encode(self, response: Response) -> EncodedBody:
        """The response; gives back the shared memory. May run on any thread."""
        body = self._body
        try:
            body.check()
            return http_body.encode_infer(
                response,
                body.outputs,
                binary_default=body.binary_default,
                signature=self._signature,
            )
        finally:
            body.release()

    def _send(self, encoded: EncodedBody) -> None:
        exchange = self._exchange
        headers: list[Header] = [(b"Content-Type", encoded.content_type)]
        if encoded.header_length is not None:
            headers = binary_headers(b"%d" % encoded.header_length, self._route.options)
        accepted = exchange.request.header(b"accept-encoding")
        coding = compression.negotiate(accepted) if accepted else IDENTITY
        if coding == IDENTITY:
            exchange.respond(200, headers, encoded.parts)
            return
        self._respond_compressed(headers, encoded.parts, coding)

    def _respond_compressed(self, headers: list[Header], parts: list[Buffer], coding: str) -> None:
        size = sum(memoryview(part).nbytes for part in parts)
        headers.append((b"Vary", b"Accept-Encoding"))
        if size < self._route.options.compress_from_bytes:
            self._exchange.respond(200, headers, parts)
            return
        headers.append((b"Content-Encoding", coding.encode()))

        def send(packed: list[bytes]) -> None:
            self._exchange.respond(200, headers, packed)

        if size <= _COMPRESS_OFF_LOOP_BYTES:
            send(compression.compress(parts, coding))
        else:
            self._off_loop(lambda: compression.compress(parts, coding), send)

    def _off_loop(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        """Do `work` on a thread, then `done` with its result on the loop."""

        def finish(future: asyncio.Future[Result]) -> None:
            failure = asyncio.CancelledError() if future.cancelled() else future.exception()
            if failure is not None:  # not raised here: it would hold the body until a collection
                self._fail(failure)
                return
            try:
                done(future.result())
            except Exception as error:  # noqa: BLE001 - as in deliver
                self._fail(error)

        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, without_frames(work)).add_done_callback(finish)

    def _fail(self, error: BaseException) -> None:
        self._request = None
        if isinstance(error, ModelLoading):  # the model was unloaded while the body was decoded
            self._serve_when_loaded(error)
            return
        send_error(self._exchange, as_shoal_error(error))
