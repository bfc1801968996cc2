"""Questions over plain TCP: a JSON object with text and question in, the answer's words out.

    {"text": "…", "question": "…"}  -->  engine.task("answer")  -->  the answer, as UTF-8

Any number of objects may follow each other on a connection; they are answered in order, several at
a time. An answer ends with a newline if one was seen to follow its question, so programs that read
lines and programs that read what there is both get on. What goes wrong comes as a line that begins
with `error: `.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import Protocol, cast

from shoal.errors import Internal, InvalidArgument, ShoalError
from shoal.tasks.asked import Asked
from shoal.tasks.door import TaskCall, TaskDoor
from shoal.wire import json_text
from shoal.wire.json_objects import JsonObjects, Message, StreamError

logger = logging.getLogger(__name__)

_OPERATION = "answer"
_BACKLOG = 1024
_AHEAD = 8  # questions of one connection that are being answered; the next ones wait
_SWEEP_SECS = 1.0


class Engine(Protocol):
    """Whom to ask."""

    def task(self, operation: str, name: str = "", version: int = -1) -> TaskCall:
        """Begin a call of a task."""

    def tasks(self) -> list[tuple[str, int, TaskDoor]]:
        """Every model that has a task."""


@dataclass(frozen=True, slots=True)
class TcpLimits:
    """What one client may ask of us. A time of 0 means that this clock never runs out."""

    max_object_bytes: int = 64 << 20
    idle_secs: float = 600.0  # without a question; then the connection is closed
    object_idle_secs: float = 60.0  # between two pieces of an object
    write_stall_secs: float = 60.0  # a client that stopped reading; then the connection is cut
    linger_secs: float = 5.0  # after the last error, so that the client gets to read it


@dataclass(eq=False, slots=True)
class _Turn:
    """A question, and its answer once there is one."""

    message: Message | None  # None for what was no object
    task: asyncio.Task[str] | None = None
    text: str | None = None
    error: bool = False

    def line(self) -> bytes:
        """What is sent; errors are whole lines in any case."""
        ends = self.error or (self.message is not None and self.message.line)
        prefix = "error: " if self.error else ""
        one_line = " ".join((self.text or "").splitlines())
        return f"{prefix}{one_line}{chr(10) if ends else ''}".encode(errors="replace")


class TcpListener:
    """One listening port and its connections. Everything happens on the loop that started it."""

    def __init__(self, engine: Engine, limits: TcpLimits | None = None) -> None:
        self.engine = engine
        self.limits = limits or TcpLimits()
        self.draining = False
        self.connections: set[TcpConnection] = set()
        self._server: asyncio.AbstractServer | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, host: str | None, port: int, *, reuse_port: bool = False) -> int:
        """Listen on every address of `host`, and return the port: with 0 the system chooses one.

        Raises OSError when the address cannot be had; nothing is left behind then.
        """
        loop = asyncio.get_running_loop()
        self._server = server = await loop.create_server(
            lambda: TcpConnection(self),
            host or None,
            port,
            backlog=_BACKLOG,
            reuse_port=reuse_port or None,
        )
        self._timer = loop.call_later(_SWEEP_SECS, self._sweep, loop)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    @property
    def open_connections(self) -> int:
        """How many clients are connected."""
        return len(self.connections)

    def stop_accepting(self) -> None:
        """Take no more connections. Those that are open close once they have been answered."""
        self.draining = True
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.go_on()

    def abort_all(self) -> None:
        """Cut every connection and stop the clock; questions in flight are withdrawn."""
        self.stop_accepting()
        for connection in list(self.connections):
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        for connection in list(self.connections):
            connection.sweep(loop.time())
        self._timer = loop.call_later(_SWEEP_SECS, self._sweep, loop)


class TcpConnection(asyncio.Protocol):
    """One client."""

    def __init__(self, listener: TcpListener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._objects = JsonObjects(listener.limits.max_object_bytes)
        self._turns: deque[_Turn] = deque()  # in the order of their questions
        self._heard = self._loop.time()  # when something arrived or was answered
        self._stalled: float | None = None  # since when the client does not read
        self._reading = True  # or the transport has been told to pause
        self._ended = False  # the client sends nothing more
        self._last = False  # nothing more is taken: after these turns, the end
        self._lingering = False

    # ---- what the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by type
        self._listener.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Some bytes have come."""
        if self._last:
            return
        self._heard = self._loop.time()
        self._objects.feed(data)
        self.go_on()

    def eof_received(self) -> bool:
        """The client sends nothing more, but may well wait for its answers."""
        self._ended = True
        if self._lingering:
            return False
        self.go_on()
        return not self._transport.is_closing()

    def pause_writing(self) -> None:
        """The client reads more slowly than it is answered."""
        self._stalled = self._loop.time()
        self.go_on()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._stalled = None
        self.go_on()

    def connection_lost(self, _: Exception | None) -> None:
        """The client has gone: nobody wants the answers any more."""
        self._listener.connections.discard(self)
        self._last = True
        for turn in self._turns:
            if turn.task is not None:
                turn.task.cancel()
        self._turns.clear()

    # ---- what the listener tells

    def sweep(self, now: float) -> None:
        """Look at the clocks."""
        limits = self._listener.limits
        quiet_secs = now - self._heard
        if self._stalled is not None:
            if limits.write_stall_secs and now - self._stalled >= limits.write_stall_secs:
                self.abort()
        elif self._lingering:
            if quiet_secs >= limits.linger_secs:
                self.abort()
        elif self._turns:
            return
        elif self._objects.begun:
            if limits.object_idle_secs and quiet_secs >= limits.object_idle_secs:
                self._refuse(f"the object stood still for {quiet_secs:.0f} s", final=True)
        elif limits.idle_secs and quiet_secs >= limits.idle_secs:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection at once."""
        self._transport.abort()

    # ---- turns

    def go_on(self) -> None:
        """Send what can be sent, begin what can be begun, and close when all is done."""
        if self._transport.is_closing() or self._lingering:
            return
        self._send()
        while not self._last and len(self._turns) < _AHEAD and self._stalled is None:
            try:
                message = self._objects.take()
            except StreamError as error:
                self._add_error(error.message, final=error.final)
                continue
            if message is None:
                break
            self._begin(message)
        # While the server leaves, what has begun to arrive is still taken, and nothing after it.
        wanted = not self._last and (self._objects.begun or not self._listener.draining)
        self._listen(wanted and len(self._turns) < _AHEAD and self._stalled is None)
        if not self._turns and self._stalled is None:
            self._close_if_over()

    def _begin(self, message: Message) -> None:
        turn = _Turn(message)
        self._turns.append(turn)
        turn.task = self._loop.create_task(self._answer(message.data))

        def done(task: asyncio.Task[str]) -> None:
            turn.task = None
            if task.cancelled() and self._last:  # the client has gone
                return
            try:
                turn.text = task.result()
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - is told
                turn.text, turn.error = _sentence(error), True
            self._heard = self._loop.time()
            self.go_on()

        turn.task.add_done_callback(done)

    async def _answer(self, data: bytes) -> str:
        values = json_text.loads(data)
        model = values.pop("model", "")
        if type(model) is not str:
            raise InvalidArgument("'model' must be the name of a model")
        if "questions" in values:
            raise InvalidArgument("here questions are asked one at a time: send 'question'")
        call = self._begin_call(model)
        try:
            answer = (await call.perform(Asked((), values)))["answer"]
        finally:
            call.leave()
        return str(answer)

    def _begin_call(self, model: str) -> TaskCall:
        engine = self._listener.engine
        if not model:
            names = [name for name, _, door in engine.tasks() if door.operation == _OPERATION]
            if len(names) > 1:
                raise InvalidArgument(
                    f"several models answer questions ({', '.join(sorted(names))}): say which one "
                    'with "model"'
                )
        return engine.task(_OPERATION, model)

    def _send(self) -> None:
        """The answers that are there, as far as those before them are."""
        while self._turns and self._turns[0].text is not None and self._stalled is None:
            self._transport.write(self._turns.popleft().line())

    def _refuse(self, sentence: str, *, final: bool) -> None:
        self._add_error(sentence, final=final)
        self.go_on()

    def _add_error(self, sentence: str, *, final: bool) -> None:
        self._turns.append(_Turn(None, text=sentence, error=True))
        self._last = self._last or final
        self._send()

    def _close_if_over(self) -> None:
        """All that was asked is answered: is there more to come?"""
        if self._last and not self._ended:
            self._linger()
        elif self._last or (self._listener.draining and not self._objects.begun):
            self._transport.close()
        elif self._ended and self._objects.begun:
            self._refuse("the connection ended within an object", final=True)
        elif self._ended:
            self._transport.close()

    def _linger(self) -> None:
        """Say that nothing more comes, and swallow what the client is still sending.

        To close with bytes unread would make its system throw away the error before it is read.
        """
        self._lingering = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._listen(True)

    def _listen(self, wanted: bool) -> None:
        if wanted is not self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()


def _sentence(error: BaseException) -> str:
    if isinstance(error, ShoalError):
        return error.message
    if isinstance(error, asyncio.CancelledError):
        return "the server is going down"
    logger.error("a question failed in an unforeseen way", exc_info=error)
    return Internal(f"internal error: {type(error).__name__}: {error}").message
