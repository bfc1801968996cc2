"""ModelStreamInfer: many requests and their responses on one call.

    message 1 ─▶ engine ─▶ response ─┐
    message 2 ─▶ engine ─▶ response ─┴─▶ in the order of the requests
    message 3 ─▶ engine ─▶ response, response, … ─▶ at once, as a decoupled model makes them

An error is a response like any other, inside the stream, unless the client sent the metadata
`triton_grpc_error: true`: then the first one ends the stream with its status.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from shoal.access.caller import Caller
from shoal.core.model_loading import ModelLoading
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.core.signature import Signature
from shoal.core.tensor import Buffer
from shoal.errors import ShoalError, Unavailable
from shoal.frontends.grpc.call import Call
from shoal.frontends.grpc.errors import SHUTTING_DOWN, as_shoal_error, note_error, status_of
from shoal.frontends.grpc.infer import OnlyResponse
from shoal.frontends.grpc.inference import GrpcInference
from shoal.frontends.grpc.status import StatusCode
from shoal.frontends.grpc.traced import begin
from shoal.frontends.requests import is_slow, parse_version, submit
from shoal.frontends.threads import without_frames
from shoal.frontends.waiting import when_loaded
from shoal.statistics.trace import Trace
from shoal.wire.grpc_request import InferMessage, peek
from shoal.wire.grpc_response import encode_stream, encode_stream_error, encodes_slowly
from shoal.wire.regions import RegionSlice

ERRORS_END_STREAM = ("triton_grpc_error", "true")
# Requests of one stream that may be unanswered before we stop reading more of them.
MOST_UNANSWERED = 2_048
_FEW_UNANSWERED = MOST_UNANSWERED // 2


class StreamInferMethod:
    """Serves ModelStreamInfer."""

    def __init__(self, inference: GrpcInference) -> None:
        self._inference = inference
        # Weak: a stream lives as long as its call or one of its requests does.
        self._open: weakref.WeakSet[_InferStream] = weakref.WeakSet()
        self._draining = False

    def start(self, call: Call) -> None:
        """Serve the requests of `call` until it ends."""
        stream = _InferStream(self._inference, call)
        self._open.add(stream)
        if self._draining:
            stream.drain()

    def drain(self) -> None:
        """Have every stream end as soon as its requests are answered."""
        self._draining = True
        for stream in list(self._open):
            stream.drain()


class _InferStream:
    """One call and its requests that have no response yet."""

    __slots__ = (
        "__weakref__",
        "_call",
        "_draining",
        "_encoding",
        "_ended",
        "_errors_end",
        "_half_closed",
        "_held",
        "_inference",
        "_load",
        "_ordered",
        "_paused",
        "_running",
    )

    def __init__(self, inference: GrpcInference, call: Call) -> None:
        self._inference = inference
        self._call = call
        self._ordered: deque[_StreamRequest] = deque()  # not decoupled, the oldest first
        self._running: set[_StreamRequest] = set()  # the engine has them
        self._held: deque[_Held] = deque()  # behind a request whose model has to be loaded
        self._load: Callable[[], None] | None = None  # while it is; calling it ends the waiting
        # Responses behind one that is being encoded on a thread; None if none is.
        self._encoding: deque[tuple[_StreamRequest, Response]] | None = None
        self._errors_end = ERRORS_END_STREAM in call.metadata
        self._half_closed = False
        self._draining = False
        self._ended = False
        self._paused = False  # the client is kept from sending more
        call.on_message = self._message
        call.on_half_close = self._half_close
        call.on_cancel = self._stop
        call.on_drain = self._update

    def drain(self) -> None:
        """Take no more requests, and end when the others have their responses."""
        self._draining = True
        self._update()

    # What the client does.

    def _message(self, message: Buffer) -> None:
        if self._ended:
            return
        entry = _StreamRequest(self)
        refusal: Exception | None = None
        try:
            tracer = self._inference.engine.tracer
            arrived_ns = time.monotonic_ns() if tracer.active else 0
            if self._draining:
                raise Unavailable(SHUTTING_DOWN)
            entry.begin(self._call.caller, len(message))
            entry.message = self._inference.decode(message, self._call)
            if arrived_ns:
                name = entry.message.head.model_name
                entry.trace = begin(tracer, self._call, name, arrived_ns)
        except Exception as error:  # noqa: BLE001 - becomes the response
            refusal = error
        if self._load is None:
            self._take(entry, message, refusal)
        else:
            self._held.append((entry, message, refusal))  # requests are taken in their order
        self._update()

    def _take(self, entry: _StreamRequest, message: Buffer, refusal: Exception | None) -> None:
        """Submit a request, or respond with the error."""
        try:
            if refusal is not None:
                raise refusal
            assert entry.message is not None
            self._submit(entry, entry.message)
        except ModelLoading as pending:
            self._held.appendleft((entry, message, None))
            self._load = when_loaded(pending, self._loaded, entry.timeout_us)
        except Exception as error:  # noqa: BLE001 - becomes the response
            self._refuse(entry, message, error)

    def _refuse(self, entry: _StreamRequest, message: Buffer, error: BaseException) -> None:
        """Respond with the error of a request that the engine has not taken."""
        self._running.discard(entry)
        entry.release()
        if entry.names is None:
            entry.names = peek(message)
        if not entry.decoupled and entry not in self._ordered:
            self._ordered.append(entry)
        self._respond(entry, as_shoal_error(error), final=True)

    def _loaded(self, error: ShoalError | None) -> None:
        """The model that the first of the held requests waits for is there, or failed."""
        self._load = None
        entry, message, _ = self._held.popleft()
        self._take(entry, message, error)
        self._take_held()

    def _take_held(self) -> None:
        """Submit what waits, as far as it need not wait any longer."""
        while self._held and self._load is None and not self._ended:
            self._take(*self._held.popleft())
        self._update()

    def _submit(self, entry: _StreamRequest, message: InferMessage) -> None:
        """Submit the request. If this raises, the engine has not taken it."""
        engine, head = self._inference.engine, message.head
        name, version = head.model_name, parse_version(head.model_version)
        entry.names = (name, head.model_version, message.id)
        entry.decoupled = engine.is_decoupled(name, version)
        entry.outputs = head.outputs
        entry.wants_empty_final = head.empty_final_response
        if head.classifies:
            entry.signature = engine.signature(name, version)
        if not entry.decoupled:
            self._ordered.append(entry)
        entry.request = self._inference.request(message, version, self._call, entry)
        if entry.trace is not None:
            entry.trace.attach(entry.request)
        self._running.add(entry)
        if is_slow(message.inputs, message.leases):
            self._load = _do_nothing  # the requests behind it wait
            work = without_frames(partial(submit, engine, entry.request, message.leases))
            loop = asyncio.get_running_loop()
            loop.run_in_executor(None, work).add_done_callback(partial(self._submitted, entry))
            return
        engine.infer(entry.request)

    def _submitted(self, entry: _StreamRequest, outcome: asyncio.Future[None]) -> None:
        """A thread has submitted the request, or could not."""
        self._load = None
        failure = asyncio.CancelledError() if outcome.cancelled() else outcome.exception()
        if failure is not None and self._ended:
            entry.release()
        elif isinstance(failure, ModelLoading):  # it was unloaded meanwhile: find it again
            self._running.discard(entry)
            if entry in self._ordered:
                self._ordered.remove(entry)
            self._held.appendleft((entry, b"", None))
            self._load = when_loaded(failure, self._loaded, entry.timeout_us)
        elif failure is not None:
            self._refuse(entry, b"", failure)
        self._take_held()

    def _half_close(self) -> None:
        self._half_closed = True
        self._update()

    def _stop(self) -> None:
        """The call has ended: cancel its requests."""
        self._ended = True
        if self._load is not None:
            self._load()
        while self._held:
            held, _, _ = self._held.popleft()
            held.release()
            if held.trace is not None:
                held.trace.leave()
        for answered in self._ordered:
            if answered.trace is not None:
                answered.trace.leave()
        self._ordered.clear()
        while self._running:
            entry = self._running.pop()
            assert entry.request is not None
            entry.request.cancel()
            if entry.trace is not None:
                entry.trace.leave()

    # What the engine calls.

    def post(self, deliver: Callable[[Response], None], response: Response) -> None:
        """Bring a response to the loop, from whichever thread made it."""
        self._inference.inbox.post(deliver, response)

    def deliver(self, entry: _StreamRequest, response: Response) -> None:
        """Take a response, on the loop. Never raises: others wait behind it."""
        if self._encoding is not None:
            self._encoding.append((entry, response))  # behind one that a thread encodes
            return
        if response.final:
            self._running.discard(entry)
        if self._ended:
            if response.final:
                entry.release()
            return
        whole: Response | None = response
        if not entry.decoupled:
            whole = entry.only.take(response)
        elif response.is_end_only and not entry.wants_empty_final:
            whole = None
        if whole is not None:
            if whole.error is None and encodes_slowly(whole, entry.slices):
                self._encoding = deque()
                loop = asyncio.get_running_loop()
                done = partial(self._encoded, entry, whole.final)
                loop.run_in_executor(None, partial(_encode, entry, whole)).add_done_callback(done)
                return
            self._send_encoded(entry, _encode(entry, whole), final=whole.final)
        elif response.final:  # there is nothing to send
            entry.release()
            if entry.trace is not None:
                entry.trace.finish()
        self._update()

    def _send_encoded(self, entry: _StreamRequest, outcome: Outcome, *, final: bool) -> None:
        if final:
            entry.release()
        self._respond(entry, outcome, final=final)

    def _encoded(
        self, entry: _StreamRequest, final: bool, outcome: asyncio.Future[Outcome]
    ) -> None:
        """A thread has encoded a response; those behind it had to wait."""
        waiting, self._encoding = self._encoding, None
        if self._ended:
            if final:
                entry.release()
        else:
            self._send_encoded(entry, outcome.result(), final=final)
            self._update()
        for each, response in waiting or ():
            self.deliver(each, response)

    def _respond(self, entry: _StreamRequest, outcome: Outcome, *, final: bool) -> None:
        """Send a response or an error, in the order of the requests."""
        if entry.decoupled:
            self._send(entry, outcome, final=final)
            return
        entry.outcome = outcome
        ordered = self._ordered
        while ordered and ordered[0].outcome is not None:
            first = ordered.popleft()
            answer, first.outcome = first.outcome, None  # an error may refer to its request
            assert answer is not None
            self._send(first, answer, final=True)

    def _send(self, entry: _StreamRequest, outcome: Outcome, *, final: bool) -> None:
        trace = entry.trace
        if trace is not None:
            trace.event("GRPC_SEND_START")
        if isinstance(outcome, ShoalError):
            if trace is not None:
                trace.failed(outcome.message)
            model = entry.names[0] if entry.names is not None else ""
            note_error(self._call, status_of(outcome), outcome.message, model)
            if self._errors_end:
                self._finish(status_of(outcome), outcome.message)
            else:
                assert entry.names is not None
                names = entry.names
                self._call.send(encode_stream_error(outcome.message, names, final=final))
        else:
            self._call.send(outcome)
        if trace is not None:
            trace.event("GRPC_SEND_END")
            if final or self._ended:
                trace.finish()

    def _update(self) -> None:
        """After any change: end the stream if it is over, and let the client send or wait."""
        if self._ended:
            return
        unanswered = max(len(self._running), len(self._ordered)) + len(self._held)
        if self._encoding is not None:
            unanswered += 1 + len(self._encoding)
        if not unanswered and self._half_closed:
            self._finish(StatusCode.OK, "")
        elif not unanswered and self._draining:
            self._finish(StatusCode.UNAVAILABLE, SHUTTING_DOWN)
        elif self._paused:
            if self._call.writable and unanswered <= _FEW_UNANSWERED:
                self._paused = False
                self._call.resume_receiving()
        elif unanswered >= MOST_UNANSWERED or not self._call.writable:
            self._paused = True
            self._call.pause_receiving()

    def _finish(self, code: StatusCode, text: str) -> None:
        self._call.finish(code, text)
        self._stop()


def _encode(entry: _StreamRequest, response: Response) -> Outcome:
    """A response as it is sent. Any thread may call this."""
    if response.error is not None:
        return response.error
    try:
        entry.check()
        return encode_stream(response, entry.outputs, entry.signature, entry.slices)
    except Exception as error:  # noqa: BLE001 - becomes the response
        return as_shoal_error(error)


def _do_nothing() -> None:
    """For the end of a stream whose request a thread is submitting."""


Outcome = list[Buffer] | ShoalError
_Held: TypeAlias = "tuple[_StreamRequest, Buffer, Exception | None]"


class _StreamRequest:
    """One request of a stream: what its responses need, and a response that waits for earlier ones.

    It is the reply of its own request.
    """

    __slots__ = (
        "_stream",
        "caller",
        "decoupled",
        "message",
        "names",
        "only",
        "outcome",
        "outputs",
        "request",
        "signature",
        "trace",
        "wants_empty_final",
    )

    def __init__(self, stream: _InferStream) -> None:
        self._stream = stream
        self.caller: Caller | None = None  # while it is one of the caller's requests in flight
        self.names: tuple[str, str, str] | None = None  # model name, model version, id
        self.decoupled = False
        self.message: InferMessage | None = None
        self.outputs: dict[str, int] = {}
        self.wants_empty_final = False
        self.signature: Signature | None = None
        self.request: Request | None = None
        self.trace: Trace | None = None
        self.only = OnlyResponse()
        self.outcome: Outcome | None = None

    @property
    def slices(self) -> Mapping[str, RegionSlice]:
        """Where in shared memory outputs go."""
        return {} if self.message is None else self.message.slices

    @property
    def timeout_us(self) -> int:
        """How long it may wait; 0: for as long as it takes."""
        return 0 if self.message is None else self.message.head.timeout_us

    def check(self) -> None:
        """Raise a ShoalError if an input in shared memory could not be read."""
        if self.message is not None:
            self.message.check()

    def begin(self, caller: Caller | None, size: int) -> None:
        """Begin a request of `size` bytes; raises QuotaExceeded if the caller may not."""
        if caller is not None:
            caller.begin(size)
            self.caller = caller

    def release(self) -> None:
        """The request is over: give back shared memory that it used, and end it for its caller."""
        self.request = None  # it refers to this: only a collection of garbage would free both
        if self.message is not None:
            self.message.release()
        if self.caller is not None:
            self.caller.end()
            self.caller = None

    def send(self, response: Response) -> None:
        """Take the engine's response from whichever thread made it."""
        self._stream.post(self._deliver, response)

    def _deliver(self, response: Response) -> None:
        self._stream.deliver(self, response)
