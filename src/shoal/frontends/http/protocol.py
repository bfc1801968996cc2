"""One HTTP/1.1 connection: from bytes to requests, and from responses to bytes, in order.

    OPEN --request complete--> BUSY --response--> OPEN ... --last response--> CLOSING --> CLOSED
    any --invalid request--> LINGER --the client has had time to read the error--> CLOSED

One request at a time is with the application. What a client sends ahead is kept up to a bound,
then reading pauses. There is no task and no timer per connection: the socket moves the states,
and one `sweep` for all connections checks the time-outs.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import TYPE_CHECKING, cast

from shoal.frontends.access_log import DISCONNECTED
from shoal.frontends.closing import LINGER_SECS, close_unless_unread, unread_bytes
from shoal.frontends.http.access import access_record
from shoal.frontends.http.clocks import ConnectionClocks, ConnectionPhase, Overdue
from shoal.frontends.http.exchange import JSON_CONTENT, RETRY_AFTER, ConnectionExchange
from shoal.frontends.http.listener_state import SCRATCH_BYTES, ListenerState
from shoal.frontends.http.message import (
    Head,
    HttpFault,
    HttpRequest,
    Part,
    error_body,
    response_head,
)
from shoal.frontends.http.reader import NOTHING, Arriving, RequestReader
from shoal.frontends.sockets import is_unix
from shoal.statistics.recent_errors import recent_errors
from shoal.wire.template import LONGEST_KEY

if TYPE_CHECKING:
    from shoal.frontends.http.fast_path import HttpFastPath
    from shoal.frontends.http.pattern import HttpFastPathCall, HttpPattern

logger = logging.getLogger(__name__)

_READ_AHEAD_BYTES = 64 * 1024  # what a client may send before it has a response
_TURN_NS = 5_000_000  # of one connection, before the others have theirs


_OPEN, _BUSY, _LINGER, _CLOSING, _CLOSED = ConnectionPhase


class HttpConnection(asyncio.BufferedProtocol):
    """Serves one client. All methods belong to the event loop's thread."""

    __slots__ = (
        "_clocks",
        "_exchange",
        "_last_candidate",
        "_linger_left",
        "_pattern",
        "_reader",
        "_reading",
        "_responses",
        "_scratch",
        "_serving",
        "_started_ns",
        "_state",
        "_transport",
        "_unsent",
        "_written",
        "_written_before",
        "address",
        "peer",
        "phase",
        "writable",
    )

    def __init__(self, state: ListenerState) -> None:
        self.phase = _OPEN
        self.peer = ""
        self.address = ""  # the peer without its port; empty for a Unix socket
        self.writable = True
        self._state = state
        self._reader = RequestReader(state.heads.parse, state.limits, state.memory)
        self._transport: asyncio.Transport | None = None
        self._exchange: ConnectionExchange | HttpFastPathCall | None = None  # while BUSY
        self._pattern: HttpPattern | None = None  # of the last requests on the fast path
        self._last_candidate: HttpPattern | None = None  # the last that was searched and matched
        self._scratch = state.scratch  # where the next request begins to arrive
        self._reading = True
        self._serving = False  # _serve is on the stack
        self._linger_left = 0
        self._clocks = ConnectionClocks()
        self._responses = 0
        self._written = 0
        # For the access log, of the request that is with the application:
        self._started_ns = 0
        self._written_before = 0
        self._unsent = 0  # our part of the memory budget's queued bytes

    # --- called by the transport -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)
        sock = transport.get_extra_info("socket")
        if is_unix(sock):
            self.peer = f"unix:{sock.getsockname()}"
        else:
            self.peer = _address(transport.get_extra_info("peername"))
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        state = self._state
        state.connections.add(self)
        if state.draining:  # it has just connected, or finished its handshake: leave it some time
            state.linger_until = max(state.linger_until, time.monotonic() + LINGER_SECS)
        peername = transport.get_extra_info("peername")
        self.address = str(peername[0]) if isinstance(peername, tuple) else ""
        refusal = state.clients.admit(self.address)
        if refusal and state.clients.crowded:
            self.abort()
        elif refusal:
            self._refuse(HttpFault(503, refusal))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's name
        """Where the socket shall write: into the body's own memory when one is arriving."""
        target = self._reader.target
        return target if target is not None else self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """The socket has written `nbytes`."""
        reader = self._reader
        if reader.target is not None:
            try:
                complete = reader.fill(nbytes)
            except HttpFault as fault:
                self._refuse(fault)
                return
            if complete:
                self._serve()
            return
        phase = self.phase
        if phase is _OPEN or phase is _BUSY:
            data = self._state.scratch[:nbytes].tobytes()
            if (
                phase is _OPEN
                and self._state.fast_path is not None
                and self.writable
                and reader.arriving is NOTHING
                and not reader.inbox
                and self._match(self._state.fast_path, data)
            ):
                return
            reader.feed(data)
            self._serve()
        elif phase is _LINGER:
            self._linger_left -= nbytes
            if self._linger_left < 0:
                self.abort()

    def eof_received(self) -> bool | None:
        """The client will send no more; the transport closes itself unless this returns true.

        While a request is with the application this counts as going away: a client that waits
        for its response keeps its side open.
        """
        if self.phase is _BUSY:
            if self._state.draining and not self.address:
                return True  # a Unix socket: `close_unless_unread` may have stopped its input
            self.abort()
        elif self._reader.arriving is not Arriving.NOTHING:
            self._refuse(HttpFault(400, "the connection ended before the request did"))
        return None

    def pause_writing(self) -> None:
        """The client reads slower than we write."""
        self.writable = False
        self._count_unsent()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.writable = True
        self._count_unsent()
        if self._exchange is not None:
            self._exchange.client_writable()
        else:
            self._serve()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is lost: notify the application, and free everything."""
        if exc is not None:
            logger.debug("%s: connection lost: %s", self.peer, exc)
        self.phase = _CLOSED
        self._transport = None
        self._count_unsent()
        self._reader.drop()
        self._drop_exchange()
        state = self._state
        state.connections.discard(self)
        state.clients.leave(self.address)
        if not state.connections and state.on_empty is not None:
            state.on_empty()

    # --- called by the exchange --------------------------------------------------------------

    @property
    def draining(self) -> bool:
        """Whether the connection is to be closed after this response: while the server stops, and
        unless another request was received behind this one."""
        state = self._state
        return state.draining and not (self._reader.waiting_bytes and state.lingers)

    @property
    def date_line(self) -> bytes:
        """The current Date header."""
        return self._state.date_line

    def write(self, data: Part) -> None:
        """Send `data`, which must not change any more; dropped when the connection is lost."""
        transport = self._transport
        if transport is not None:
            self._written += len(data)
            transport.write(data)
            if not self.writable:
                self._count_unsent()

    def finish(self, exchange: ConnectionExchange, keep_alive: bool) -> None:
        """The response to `exchange` has been written: continue with the next request, or close."""
        if self._exchange is not exchange:
            return
        self._exchange = None
        self._responses += 1
        if self._state.access_log is not None:
            self._log(exchange, exchange.status)
        if not keep_alive:
            self._close_after_response()
            return
        self.phase = _OPEN
        if not self._serving and self._reader.waiting_bytes:
            # Later: the application must not get a new request while it responds to this one.
            self._state.defer(self._serve)

    def finish_with(self, call: HttpFastPathCall, response: bytes) -> bool:
        """Write the response to `call`; it is dropped if the client has disconnected. False, with
        nothing done, if this connection is to be closed after its response."""
        if self._exchange is not call:
            return True
        transport = self._transport
        if self._state.draining or transport is None:
            return False
        self._exchange = None
        self._responses += 1
        self.phase = _OPEN
        self._written += len(response)
        transport.write(response)
        if self._state.access_log is not None:
            self._log(call, 200)
        if self._reader.inbox:
            self._state.defer(self._serve)
        return True

    def refuse_with(self, call: HttpFastPathCall, response: bytes) -> bool:
        """As `finish_with`, for an error; false, too, if the access log needs its text."""
        return self._state.access_log is None and self.finish_with(call, response)

    def continue_with(self, call: HttpFastPathCall, exchange: ConnectionExchange) -> bool:
        """Let `exchange` respond instead of `call`; false if the client has disconnected."""
        if self._exchange is not call:
            return False
        self._exchange = exchange
        return True

    def abort(self) -> None:
        """Cut the connection at once; what has not been sent is lost."""
        transport, self._transport = self._transport, None
        if transport is not None:
            self.phase = _CLOSED
            self._count_unsent()
            self._reader.drop()
            transport.abort()
            self._drop_exchange()

    # --- called by the listener --------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a request is with the application."""
        return self._exchange is not None

    def close_if_idle(self) -> None:
        """Close the connection unless part of a request has arrived or a response is pending."""
        transport = self._transport
        if (
            self.phase is _OPEN
            and transport is not None
            and not self._reader.waiting_bytes
            and self._reader.arriving is Arriving.NOTHING
            and close_unless_unread(transport)
        ):
            self.phase = _CLOSING
            # All was read: a TLS client that does not confirm the end is cut off by the next sweep.
            self._clocks.expire(self._progress)

    def give_up(self, reason: str) -> None:
        """The server waits no longer: respond with 503 to the request in flight, then close."""
        exchange = self._exchange
        if exchange is None:
            if self.phase is _OPEN:
                self._refuse(HttpFault(503, reason))
            return
        if not isinstance(exchange, ConnectionExchange):
            call, exchange = exchange, ConnectionExchange(HttpRequest(exchange.head), self)
            exchange.caller = call.caller
            exchange.on_disconnect = call.client_disconnected
            self._exchange = exchange
        exchange.give_up(reason)

    def sweep(self, now: float) -> None:
        """Act on clocks that have run out. `now` is in seconds and only ever grows."""
        transport = self._transport
        if transport is None:
            return
        state = self._state
        unsent = transport.get_write_buffer_size()
        if unsent and self.phase is not _LINGER:
            verdict = self._clocks.unread(self._written - unsent, now, state.limits)
        else:
            verdict = self._clocks.check(
                self.phase, self._reader, self._progress, now, state.limits, state.draining
            )
        if verdict is Overdue.CUT:
            logger.debug("%s does not read: connection cut", self.peer)
            self.abort()
        elif verdict is Overdue.CLOSE:
            self._close()
        elif verdict is not None:
            self._refuse(verdict)

    @property
    def _progress(self) -> int:
        """Changes with each step of a request or a response."""
        return self._reader.progress + self._responses

    def _count_unsent(self) -> None:
        """Count what this client does not read, and cut the connection if all have no room."""
        transport = self._transport
        unsent = 0 if self.writable or transport is None else transport.get_write_buffer_size()
        memory = self._state.memory
        memory.queued_bytes += unsent - self._unsent
        self._unsent = unsent
        if unsent and not memory.has_room(0):
            logger.warning("%s does not read its answer, and %s", self.peer, memory.refusal)
            self.abort()

    # --- from requests to exchanges ----------------------------------------------------------

    def _match(self, fast_path: HttpFastPath, data: bytes) -> bool:
        """Begin the fast path with `data` if it matches a pattern; false, with nothing done, if
        not."""
        pattern = self._pattern
        call = None if pattern is None else pattern.take(self, data)
        if call is None:
            for candidate in fast_path.candidates(data):
                call = candidate.take(self, data)
                if call is not None:
                    # Requests that go to many models in turn are not compared with the last one.
                    self._pattern = candidate if candidate is self._last_candidate else None
                    self._last_candidate = candidate
                    break
            else:
                return False
        self._exchange = call
        self.phase = _BUSY
        if self._state.access_log is not None:
            self._began()
        return True

    def _match_large(self, fast_path: HttpFastPath, head: Head, body: Part) -> bool:
        """As `_match` and `_find_pattern`, for a body that is not copied."""
        front = b"".join((head.raw, body[: head.plain_offset]))
        pattern = self._pattern
        call = None if pattern is None else pattern.take_large(self, front, body)
        if call is None:
            for pattern in fast_path.candidates(front):
                call = pattern.take_large(self, front, body)
                if call is not None:
                    break
            else:
                pattern = fast_path.search(head, front)
                call = None if pattern is None else pattern.take_large(self, front, body)
        if call is None:
            return False
        self._pattern = pattern
        self._exchange = call
        self.phase = _BUSY
        if self._state.access_log is not None:
            self._began()
        fast_path.submit_large()
        return True

    def _find_pattern(self, fast_path: HttpFastPath, head: Head, data: bytes) -> bool:
        """As `_match`, for the first request of its kind."""
        pattern = fast_path.search(head, data)
        if pattern is None:
            return False
        self._pattern = pattern
        return self._match(fast_path, data)

    def _serve(self) -> None:
        """Hand requests to the application, one after the other, as far as they have arrived."""
        if self._serving:  # a response inside handle(): the loop below continues
            return
        self._serving = True
        reader = self._reader
        turn_end_ns = 0
        try:
            while self.phase is _OPEN and self.writable:
                request = reader.take()
                if request is None:
                    break
                self._dispatch(request)
                if reader.inbox:  # more requests, which were sent ahead
                    now_ns = time.monotonic_ns()
                    turn_end_ns = turn_end_ns or now_ns + _TURN_NS
                    if now_ns > turn_end_ns:
                        self._state.defer(self._serve)
                        break
        except HttpFault as error:
            self._refuse(error)
        finally:
            self._serving = False
        if reader.owes_continue:
            reader.owes_continue = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if reader.waiting_bytes or not self._reading:
            self._bound_reading()

    def _dispatch(self, request: HttpRequest) -> None:
        state = self._state
        large = len(request.body) > SCRATCH_BYTES
        self._scratch = state.head_scratch if large else state.scratch  # the next will be like it
        fast_path = state.fast_path
        if fast_path is not None:
            head, body = request.head, request.body
            if not head.plain or not body:
                pass
            elif not large:
                data = b"".join((head.raw, body))  # which may have arrived in several pieces
                if self._match(fast_path, data) or self._find_pattern(fast_path, head, data):
                    return
            elif 0 < head.plain_offset <= LONGEST_KEY and self._match_large(fast_path, head, body):
                return
            fast_path.submit()  # keeps the order of arrival
        self.phase = _BUSY
        if self._state.access_log is not None:
            self._began()
        exchange = ConnectionExchange(request, self)
        self._exchange = exchange
        try:
            self._state.handle(exchange)
        except Exception:
            logger.exception("handling %s %s failed", request.method, request.target)
            exchange.fail()

    def _bound_reading(self) -> None:
        """Read on while little is waiting, or while the reader itself sets the bound."""
        transport = self._transport
        if transport is None or self.phase is _CLOSING:
            return
        reader = self._reader
        reads = reader.waiting_bytes <= _READ_AHEAD_BYTES or (
            self.phase is _OPEN and self.writable and reader.arriving is Arriving.HEAD
        )
        if reads is not self._reading:
            self._reading = reads
            if reads:
                transport.resume_reading()
            else:
                transport.pause_reading()

    # --- closing -----------------------------------------------------------------------------

    def _refuse(self, error: HttpFault) -> None:
        """Respond to an invalid request, then close when the client has had time to read it."""
        logger.debug("%s: refused with %d: %s", self.peer, error.status, error.message)
        recent_errors.count("HTTP", str(error.status))
        body = error.body or error_body(error.message)
        closing = b"Content-Length: %d\r\n%bConnection: close\r\n\r\n" % (
            len(body),
            self._state.date_line,
        )
        if self._state.access_log is not None:
            head = error.head or self._reader.head
            self._state.access_log.record(
                access_record(head, self.peer, "", error.status, 0, len(body), 0, body)
            )
        headers = [JSON_CONTENT, *error.headers]
        if error.status == 503:
            headers.append(RETRY_AFTER)
        self.write(response_head(error.status, headers, closing) + body)
        self._linger()

    def _close_after_response(self) -> None:
        """Close after the last response; linger when the client has sent more."""
        if self._reader.waiting_bytes or not self._reading or self._has_unread():
            self._linger()
        else:
            self._close()

    def _linger(self) -> None:
        """End our side and throw away what still arrives, within bounds.

        Closing immediately would make the kernel reset the connection because of unread bytes, and
        the client would lose the response.
        """
        transport = self._transport
        if transport is None:
            return
        self._reader.drop()
        self.phase = _LINGER
        self._responses += 1  # the sweep counts from here
        self._linger_left = self._state.limits.linger_bytes
        if transport.can_write_eof():
            transport.write_eof()
        if not self._reading:
            self._reading = True
            transport.resume_reading()

    def _has_unread(self) -> bool:
        """While the server stops, whether the kernel has bytes of the client."""
        if not self._state.draining or self._transport is None:
            return False
        sock = self._transport.get_extra_info("socket")
        return sock is not None and unread_bytes(sock) > 0

    def _close(self) -> None:
        self.phase = _CLOSING
        self._reader.drop()
        if self._transport is not None:
            self._transport.close()

    def _drop_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            if self._state.access_log is not None:
                self._log(exchange, DISCONNECTED)
            exchange.client_disconnected()

    # --- the access log ----------------------------------------------------------------------

    def _began(self) -> None:
        self._started_ns = time.monotonic_ns()
        self._written_before = self._written

    def _log(self, exchange: ConnectionExchange | HttpFastPathCall, status: int) -> None:
        """The request has its response, or no client."""
        log = self._state.access_log
        assert log is not None
        caller = exchange.caller
        log.record(
            access_record(
                exchange.head,
                self.peer,
                caller.name if caller is not None else "",
                status,
                exchange.received_bytes,
                self._written - self._written_before,
                self._started_ns,
                exchange.failure,
                model=exchange.model,
            )
        )


def _address(peername: object) -> str:
    """`host:port` of a socket address, or what it is in other families."""
    if isinstance(peername, tuple) and len(peername) >= 2:
        host, port = peername[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(peername or "")
