"""The clients: many sockets on one thread, each asks again as soon as it was answered.

    Crowd(target, scripts) --ask(times)--> Sample: latencies, failures, what the work cost

One thread that waits for all sockets costs less than a thread for each, so that the clients of 50
sessions do not take from the server what is to be measured. Requests are made beforehand.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shoal.ask.question import Question, http_message, tcp_answer, tcp_message
from shoal.client import http_answers
from shoal.client.address import Address
from shoal.client.codec import Answer as HttpAnswer
from shoal.client.errors import ProtocolError
from shoal.client.http1 import Response
from shoal.errors import ShoalError
from shoal.perf.worker import processor_wait_ns

CONNECT_SECS = 10.0
_RECEIVE_BYTES = 65_536
_LONGEST_TURN_SECS = 1.0


class Reply(Protocol):
    """An answer while it arrives."""

    def feed(self, data: bytes) -> bool:
        """Take what came; true when it is complete. Raises ShoalError for what is no answer."""

    def check(self) -> None:
        """Raises ShoalError for a refusal."""

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may be used again."""


@dataclass(frozen=True, slots=True)
class Target:
    """Who is asked, and how."""

    protocol: str  # "tcp" or "http"
    host: str
    port: int
    model: str = ""  # empty lets the server choose
    prefix: str = ""

    @property
    def place(self) -> str:
        """For people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def message(self, question: Question) -> bytes:
        """A question on its way."""
        if self.protocol == "tcp":
            return tcp_message(self.model, question)
        address = Address("http", self.host, self.port, encrypted=False, prefix=self.prefix)
        return http_message(address, self.model, question)

    def reply(self) -> Reply:
        """What an answer arrives in."""
        return _TcpReply() if self.protocol == "tcp" else _HttpReply()


@dataclass(slots=True)
class Sample:
    """What happened while the clients asked."""

    latencies_ns: list[int] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    duration_ns: int = 0
    cpu_ns: int = 0
    starved_ns: int = 0


class Crowd:
    """All clients of one cell. Their connections live as long as the crowd."""

    def __init__(
        self,
        target: Target,
        scripts: Sequence[Sequence[bytes]],
        *,
        timeout_secs: float,
        tick: Callable[[int], None] = lambda _done: None,
    ) -> None:
        """`scripts` are the messages of each client, which begins again at their end. `tick` hears
        again and again how many questions are done."""
        self._target = target
        self._timeout_ns = int(timeout_secs * 1e9)
        self._turn_secs = min(_LONGEST_TURN_SECS, timeout_secs / 4)
        self._look_secs = 0.0  # when to look for late answers again
        self._tick = tick
        self._selector = selectors.DefaultSelector()
        self._clients = [_Client(script) for script in scripts]
        self._sample = Sample()
        self._done = 0  # questions of the sample, answered or not

    def ask(self, times: int, sample: Sample) -> None:
        """Every client asks so often. What happened is in `sample` afterwards; so it is, as far
        as it came, when this is interrupted."""
        self._sample = sample
        self._done = 0
        begin_ns, cpu_ns, wait_ns = _now()
        try:
            for client in self._clients:
                client.left = times
                self._go_on(client)
            while self._done < times * len(self._clients):
                for key, mask in self._selector.select(self._turn_secs):
                    self._serve(key.data, mask)
                if time.monotonic() >= self._look_secs:
                    self._drop_late()
                self._tick(self._done)
        finally:
            end_ns, end_cpu_ns, end_wait_ns = _now()
            sample.duration_ns = end_ns - begin_ns
            sample.cpu_ns = end_cpu_ns - cpu_ns
            sample.starved_ns = end_wait_ns - wait_ns

    def close(self) -> None:
        """Hang up."""
        for client in self._clients:
            self._hang_up(client)
        self._selector.close()

    # ---- one client

    def _go_on(self, client: _Client) -> None:
        """Have the client ask its next question, if it has one; what cannot be sent has failed."""
        while client.left and not client.waiting:
            client.left -= 1
            client.waiting = True
            try:
                if client.socket is None:
                    self._connect(client)
                self._send(client)
            except OSError as error:
                self._fail(client, _unreachable(self._target, error))
                if client.socket is None and client.never:
                    # Nobody is there: trying again for each question would only take time.
                    self._sample.failures[_unreachable(self._target, error)] += client.left
                    self._done += client.left
                    client.left = 0

    def _connect(self, client: _Client) -> None:
        client.never = True
        place = (self._target.host, self._target.port)
        client.socket = socket.create_connection(place, CONNECT_SECS)
        client.never = False
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.socket.setblocking(False)
        self._selector.register(client.socket, selectors.EVENT_READ, client)

    def _send(self, client: _Client) -> None:
        client.reply = self._target.reply()
        client.unsent = memoryview(client.next_message())
        client.begin_ns = time.perf_counter_ns()
        self._send_rest(client)

    def _send_rest(self, client: _Client) -> None:
        assert client.socket is not None
        was_cut = client.cut
        try:
            sent = client.socket.send(client.unsent)
        except BlockingIOError:
            sent = 0
        client.unsent = client.unsent[sent:]
        client.cut = bool(client.unsent)
        if client.cut != was_cut:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.cut else 0)
            self._selector.modify(client.socket, events, client)

    def _serve(self, client: _Client, mask: int) -> None:
        """Something can be read or written."""
        if client.socket is None:  # given up meanwhile
            return
        try:
            if mask & selectors.EVENT_WRITE and client.unsent:
                self._send_rest(client)
            if mask & selectors.EVENT_READ:
                self._receive(client)
        except OSError as error:
            self._fail(client, f"the connection was lost: {error.strerror or error}")
        except ShoalError as error:
            self._fail(client, error.message)
        self._go_on(client)

    def _receive(self, client: _Client) -> None:
        assert client.socket is not None
        try:
            data = client.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        if not client.waiting:  # the end, or what nobody asked for
            self._hang_up(client)
            return
        if not data:
            raise ProtocolError("the server closed the connection before it answered")
        if not client.reply.feed(data):
            return
        latency_ns = time.perf_counter_ns() - client.begin_ns
        client.waiting = False
        self._done += 1
        if not client.reply.keep_alive:
            self._hang_up(client)
        try:
            client.reply.check()
        except ShoalError as error:  # a refusal is an answer, too: the connection stays
            self._sample.failures[error.message] += 1
        else:
            self._sample.latencies_ns.append(latency_ns)

    def _drop_late(self) -> None:
        self._look_secs = time.monotonic() + self._turn_secs
        latest_ns = time.perf_counter_ns() - self._timeout_ns
        for client in self._clients:
            if client.waiting and client.begin_ns < latest_ns:
                self._fail(client, f"no answer within {self._timeout_ns / 1e9:g} s")
                self._go_on(client)

    def _fail(self, client: _Client, why: str) -> None:
        """The connection is of no use any more; nor is the question, if there is one."""
        self._hang_up(client)
        if client.waiting:
            client.waiting = False
            self._sample.failures[why] += 1
            self._done += 1

    def _hang_up(self, client: _Client) -> None:
        if client.socket is not None:
            self._selector.unregister(client.socket)
            client.socket.close()
            client.socket = None
            client.unsent = memoryview(b"")
            client.cut = False


class _Client:
    """One connection and where it is."""

    def __init__(self, script: Sequence[bytes]) -> None:
        self._script = script
        self._place = 0
        self.left = 0  # questions still to ask
        self.socket: socket.socket | None = None
        self.reply: Reply = _TcpReply()
        self.unsent = memoryview(b"")
        self.cut = False  # whether a part of the message waits for room
        self.waiting = False
        self.never = False  # whether the last attempt to connect failed
        self.begin_ns = 0

    def next_message(self) -> bytes:
        message = self._script[self._place]
        self._place = (self._place + 1) % len(self._script)
        return message


class _TcpReply:
    """A line."""

    def __init__(self) -> None:
        self._line = bytearray()

    def feed(self, data: bytes) -> bool:
        self._line += data
        if b"\n" not in data:
            return False
        if not self._line.endswith(b"\n") or self._line.count(b"\n") > 1:
            raise ProtocolError("the server sent more than one line for an answer")
        return True

    def check(self) -> None:
        tcp_answer(bytes(self._line[:-1]))

    @property
    def keep_alive(self) -> bool:
        return True


class _HttpReply:
    """A response."""

    def __init__(self) -> None:
        self._response = Response()

    def feed(self, data: bytes) -> bool:
        return self._response.feed(data)

    def check(self) -> None:
        head = self._response.head
        assert head is not None
        if head.status != 200:
            raise http_answers.refusal(HttpAnswer(head.status, head.headers, self._response.body))

    @property
    def keep_alive(self) -> bool:
        return self._response.head is not None and self._response.head.keep_alive


def _now() -> tuple[int, int, int]:
    """The time, what this thread has computed, and how long it waited for a processor."""
    return time.perf_counter_ns(), time.thread_time_ns(), processor_wait_ns()


def _unreachable(target: Target, error: OSError) -> str:
    return f"no connection to {target.place}: {error.strerror or error}"
