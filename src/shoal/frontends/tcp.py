"""Question answering over plain TCP: a JSON object with text and question in, the answer out.

    {"text": "…", "question": "…"}  -->  engine.task("answer")  -->  the answer, as UTF-8

A connection may send any number of objects; several questions run at a time, and their answers come
in the same order. An answer ends with a newline if the question did, so a client may read lines or
whatever arrives. An error is a line that begins with `error: `.

Where keys are required, an object has the key as `api_key`; it holds for the later objects of the
connection, too.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

from shoal.access.access import Access
from shoal.access.caller import Caller
from shoal.engine import Engine
from shoal.errors import Internal, InvalidArgument, ShoalError, Unauthenticated
from shoal.frontends.access_log import AccessLog, AccessRecord
from shoal.frontends.client_limits import ClientLimits
from shoal.frontends.closing import EXIT_TIMEOUT, LINGER_SECS, close_unless_unread
from shoal.frontends.pace import Pace, is_too_slow
from shoal.frontends.sockets import SocketServer, bind_tcp, serve
from shoal.frontends.waiting import once_loaded
from shoal.statistics.trace import Trace
from shoal.tasks.request import TaskRequest
from shoal.wire import json_limits
from shoal.wire.json_objects import JsonObjects, Message, StreamError

logger = logging.getLogger(__name__)

_OPERATION = "answer"
_MOST_RUNNING = 8  # questions of one connection; the next ones wait
_SWEEP_SECS = 1.0
_LOOK_SECS = 0.05  # between two looks at the connections, while it drains


@dataclass(frozen=True, slots=True)
class TcpLimits:
    """Limits of one connection. A time of 0 means no limit."""

    max_object_bytes: int = 64 << 20
    max_buffered_bytes: int = 4 << 30  # of all connections together
    idle_secs: float = 600.0  # without a question, before the connection is closed
    object_idle_secs: float = 60.0  # between two reads of one object
    min_rate: float = 500.0  # bytes a second of one object, after that time; 0: any
    write_stall_secs: float = 60.0  # without the client reading, before an abort
    linger_secs: float = 5.0  # after the last error, for the client to read it


@dataclass(eq=False, slots=True)
class _Question:
    """A question, and its answer once there is one."""

    message: Message | None  # None for input that is not an object
    trace: Trace | None = None
    task: asyncio.Task[str] | None = None
    text: str | None = None
    error: bool = False
    start_ns: int = field(default_factory=time.monotonic_ns)

    def line(self) -> bytes:
        """The bytes to send; an error is always a whole line."""
        ends = self.error or (self.message is not None and self.message.line)
        prefix = "error: " if self.error else ""
        one_line = " ".join((self.text or "").splitlines())
        return f"{prefix}{one_line}{chr(10) if ends else ''}".encode(errors="replace")


class TcpListener:
    """One listening port and its connections. Everything happens on the loop that started it."""

    def __init__(
        self,
        engine: Engine,
        limits: TcpLimits | None = None,
        clients: ClientLimits | None = None,
        access: Access | None = None,
        access_log: AccessLog | None = None,
    ) -> None:
        """`clients` may be shared with other listeners. With `access`, questions need a key."""
        self.access_log = access_log
        self.engine = engine
        self.access = access
        self.limits = limits or TcpLimits()
        self.clients = clients or ClientLimits.of(self.limits.max_buffered_bytes)
        self.linger_until = math.inf  # while it drains: until then more questions are taken
        self.connections: set[QuestionConnection] = set()
        self._servers: list[SocketServer] = []
        self._timer: asyncio.TimerHandle | None = None
        self._last_questions: asyncio.TimerHandle | None = None

    async def start(self, host: str | None, port: int, *, reuse_port: bool = False) -> int:
        """Listen on every address of `host`, and return the port: with 0 the system chooses one.

        Raises OSError when the address is not available, and then holds no resources.
        """
        sockets = await bind_tcp(host, port, reuse_port=reuse_port)
        bound: int = sockets[0].getsockname()[1]
        self._servers += await serve(
            sockets, lambda: QuestionConnection(self), limits=self.clients.connections
        )
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_SWEEP_SECS, self._sweep, loop)
        return bound

    @property
    def open_connections(self) -> int:
        """The number of connected clients."""
        return len(self.connections)

    @property
    def takes_questions(self) -> bool:
        """Whether questions are taken that have not begun to arrive."""
        return time.monotonic() < self.linger_until

    async def stop_accepting(self, linger_secs: float = LINGER_SECS) -> None:
        """Accept the clients that have connected, and no more.

        After `linger_secs`, connections close once their questions are answered.
        """
        await asyncio.gather(*(server.stop() for server in self._servers))
        self.linger_until = time.monotonic() + linger_secs
        loop = asyncio.get_running_loop()
        self._last_questions = loop.call_later(linger_secs, self._advance_all)

    def _advance_all(self) -> None:
        """Look at every connection, again and again until all are closed."""
        for connection in list(self.connections):
            connection.advance()
        if self.connections:
            loop = asyncio.get_running_loop()
            self._last_questions = loop.call_later(_LOOK_SECS, self._advance_all)

    def give_up(self) -> None:
        """The exit timeout has passed: answer the running questions with an error."""
        for connection in list(self.connections):
            connection.give_up()

    def abort_all(self) -> None:
        """Abort every connection and stop the timer; running questions are cancelled."""
        for server in self._servers:
            server.close()
        if self._last_questions is not None:
            self._last_questions.cancel()
        for connection in list(self.connections):
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        for connection in list(self.connections):
            connection.sweep(loop.time())
        self._timer = loop.call_later(_SWEEP_SECS, self._sweep, loop)


class QuestionConnection(asyncio.Protocol):
    """One client."""

    def __init__(self, listener: TcpListener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._objects = JsonObjects(listener.limits.max_object_bytes)
        self._questions: deque[_Question] = deque()  # in the order of arrival
        self._active = self._loop.time()  # when bytes last arrived or an answer was sent
        self._stalled: float | None = None  # since when the client has not read
        self._reading = True  # false: the transport is paused
        self._ended = False  # the client has closed its side
        self._last = False  # accept no more questions; close after these
        self._lingering = False
        self._pace = Pace()
        self._answers = 0
        self._address = self._peer = ""
        self._counted = 0  # our part of the memory budget's unfinished bytes
        self._key: str | None = None  # as sent with the last object that had one

    # ---- callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by type
        self._listener.connections.add(self)
        peername = transport.get_extra_info("peername")
        self._address = str(peername[0]) if peername else ""
        self._peer = f"{self._address}:{peername[1]}" if peername else ""
        clients = self._listener.clients.connections
        refusal = clients.admit(self._address)
        if refusal and clients.crowded:
            self.abort()
        elif refusal:
            self._refuse(refusal, final=True)

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived."""
        if self._last:
            return
        self._active = self._loop.time()
        self._objects.feed(data)
        self._count_buffered()
        memory = self._listener.clients.memory
        if memory.has_room(0):
            self.advance()
        else:
            self._refuse(memory.refusal, final=True)

    def eof_received(self) -> bool:
        """The client sends nothing more, but may still wait for its answers."""
        self._ended = True
        if self._lingering:
            return False
        self.advance()
        return not self._transport.is_closing()

    def pause_writing(self) -> None:
        """The client reads more slowly than answers are sent."""
        self._stalled = self._loop.time()
        self.advance()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._stalled = None
        self.advance()

    def connection_lost(self, _: Exception | None) -> None:
        """The client has disconnected: cancel its questions."""
        self._listener.connections.discard(self)
        self._listener.clients.connections.leave(self._address)
        self._objects = JsonObjects(0)
        self._count_buffered()
        self._last = True
        for question in self._questions:
            if question.task is not None:
                question.task.cancel()
            if question.trace is not None:
                question.trace.leave()
        self._questions.clear()

    # ---- called by the listener

    def sweep(self, now: float) -> None:
        """Check the time limits."""
        limits = self._listener.limits
        quiet_secs = now - self._active
        if self._stalled is not None:
            if limits.write_stall_secs and now - self._stalled >= limits.write_stall_secs:
                self.abort()
        elif self._lingering:
            if quiet_secs >= limits.linger_secs:
                self.abort()
        elif self._questions:
            return
        elif self._objects.begun:
            secs, moved = self._pace.measure(self._answers, self._objects.buffered_bytes, now)
            if is_too_slow(secs, moved, limits.object_idle_secs, limits.min_rate):
                self._refuse("the object arrives too slowly", final=True)
            elif limits.object_idle_secs and quiet_secs >= limits.object_idle_secs:
                self._refuse(f"no byte of the object arrived for {quiet_secs:.0f} s", final=True)
        elif limits.idle_secs and quiet_secs >= limits.idle_secs:
            self._transport.close()

    def give_up(self) -> None:
        """Answer the questions that are left with an error, then close."""
        self._last = True
        for question in self._questions:
            if question.task is not None:
                question.task.cancel()
                question.task = None
            if question.text is None:
                question.text, question.error = EXIT_TIMEOUT, True
        self.advance()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    # ---- questions and answers

    def advance(self) -> None:
        """Send the answers that are due, start the next questions, close when all is done."""
        if self._transport.is_closing() or self._lingering:
            return
        self._send()
        while not self._last and len(self._questions) < _MOST_RUNNING and self._stalled is None:
            try:
                message = self._objects.take()
            except StreamError as error:
                self._add_error(error.message, final=error.final)
                continue
            if message is None:
                break
            self._begin(message)
        self._count_buffered()
        self._listen(
            not self._last and len(self._questions) < _MOST_RUNNING and self._stalled is None
        )
        if not self._questions and self._stalled is None:
            self._close_if_over()

    def _count_buffered(self) -> None:
        buffered = self._objects.buffered_bytes
        self._listener.clients.memory.unfinished_bytes += buffered - self._counted
        self._counted = buffered

    def _begin(self, message: Message) -> None:
        question = _Question(message)
        self._questions.append(question)
        question.task = self._loop.create_task(self._answer(question, message.data))

        def done(task: asyncio.Task[str]) -> None:
            question.task = None
            if task.cancelled() and self._last:  # the client has disconnected
                return
            try:
                question.text = task.result()
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - is sent
                question.text, question.error = _sentence(error), True
                self._last = self._last or isinstance(error, Unauthenticated)
            self._active = self._loop.time()
            self.advance()

        question.task.add_done_callback(done)

    async def _answer(self, question: _Question, data: bytes) -> str:
        start_ns = time.monotonic_ns()
        values = json_limits.loads(data, self._listener.limits.max_object_bytes)
        model = values.pop("model", "")
        if type(model) is not str:
            raise InvalidArgument("'model' must be the name of a model")
        if "questions" in values:
            raise InvalidArgument("over TCP, send one question at a time, as 'question'")
        caller = self._caller(values.pop("api_key", None))
        if caller is None:
            return await self._perform(question, model, values, start_ns)
        caller.check("inference", model)
        model = model or caller.only_model(await once_loaded(self._models), _OPERATION)
        caller.begin(len(data))
        try:
            answer = await self._perform(question, model, values, start_ns)
            caller.sent(len(answer))
            return answer
        finally:
            caller.end()

    def _caller(self, key: object) -> Caller | None:
        """Who asks, where keys are required. Raises Unauthenticated."""
        access = self._listener.access
        if access is None:
            return None
        if type(key) is str:
            self._key = key
        if self._key is None:
            access.refuse_missing()
            raise Unauthenticated('questions need a key here: send it as "api_key" in the object')
        return access.identify(self._key.encode(errors="replace"), None)

    async def _perform(
        self, question: _Question, model: str, values: dict[str, Any], start_ns: int
    ) -> str:
        engine = self._listener.engine
        traced_as = model or await once_loaded(self._only_model)
        if engine.tracer.active:
            question.trace = engine.tracer.start(traced_as, lambda _: None)
        if question.trace is not None:
            question.trace.event("TCP_RECV_START", start_ns)
            question.trace.event("TCP_RECV_END")
        call = await once_loaded(lambda: engine.task(_OPERATION, model))
        if question.trace is not None:
            call.trace(question.trace)
        try:
            answer = (await call.perform(TaskRequest((), values)))["answer"]
        finally:
            call.leave()
        return str(answer)

    def _only_model(self) -> str:
        """The model that answers questions; empty where there is none."""
        names = self._models()
        if len(names) > 1:
            raise InvalidArgument(
                f"several models answer questions ({', '.join(sorted(names))}): choose one with "
                '"model"'
            )
        return names[0] if names else ""

    def _models(self) -> list[str]:
        """The models that answer questions."""
        tasks = self._listener.engine.tasks()
        return [name for name, _, task in tasks if task.operation == _OPERATION]

    def _send(self) -> None:
        """Send the answers at the head of the queue."""
        while self._questions and self._questions[0].text is not None and self._stalled is None:
            question = self._questions.popleft()
            self._answers += 1
            trace = question.trace
            if trace is not None:
                trace.event("TCP_SEND_START")
                if question.error:
                    trace.failed(question.text or "")
            line = question.line()
            self._transport.write(line)
            if self._listener.access_log is not None:
                self._log(self._listener.access_log, question, len(line))
            if trace is not None:
                trace.event("TCP_SEND_END")
                trace.finish()

    def _log(self, log: AccessLog, question: _Question, sent_bytes: int) -> None:
        log.record(
            AccessRecord(
                protocol="tcp",
                client=self._peer,
                method="",
                path=_OPERATION,
                version="TCP",
                status=400 if question.error else 200,
                received_bytes=len(question.message.data) if question.message is not None else 0,
                sent_bytes=sent_bytes,
                seconds=(time.monotonic_ns() - question.start_ns) / 1e9,
                api="inference",
                error=(question.text or "") if question.error else "",
            )
        )

    def _refuse(self, sentence: str, *, final: bool) -> None:
        self._add_error(sentence, final=final)
        self.advance()

    def _add_error(self, sentence: str, *, final: bool) -> None:
        self._questions.append(_Question(None, text=sentence, error=True))
        self._last = self._last or final
        self._send()

    def _close_if_over(self) -> None:
        """All questions are answered: close unless more may follow."""
        if self._last and not self._ended:
            self._linger()
        elif self._last:
            self._transport.close()
        elif self._ended and self._objects.begun:
            self._refuse("the connection ended within an object", final=True)
        elif self._ended:
            self._transport.close()
        elif not self._listener.takes_questions and not self._objects.begun:
            # While the server drains, an object that has begun to arrive is still read.
            close_unless_unread(self._transport)

    def _linger(self) -> None:
        """Close our side, and discard what the client still sends.

        Closing with unread bytes would reset the connection and lose the error message.
        """
        self._lingering = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._listen(True)

    def _listen(self, reading: bool) -> None:
        if reading is not self._reading and not self._transport.is_closing():
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()


def _sentence(error: BaseException) -> str:
    if isinstance(error, ShoalError):
        error.__traceback__ = error.__context__ = None  # as for HTTP: frames refer to the text
        return error.message
    if isinstance(error, asyncio.CancelledError):
        return "the server is shutting down"
    logger.error("a question failed with an unexpected error", exc_info=error)
    return Internal(f"internal error: {type(error).__name__}: {error}").message
