"""A connection on a socket: between asyncio and `h2.Connection`, one write per loop iteration.

    socket --get_buffer--> scratch, or the message's own memory --> Connection --> out --> socket

All connections of a listener share one scratch buffer: asyncio and uvloop fill what `get_buffer`
returned and call `buffer_updated` before they do anything else. The incomplete rest of a frame
is kept aside in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from shoal.frontends.closing import LINGER_SECS, close_unless_unread
from shoal.frontends.grpc.dispatch import Dispatcher
from shoal.frontends.grpc.h2 import Connection
from shoal.frontends.grpc.keepalive import Action, Lifetime
from shoal.frontends.grpc.receive_mark import LEAST_BYTES, ReceiveMark, ReceiveMarks
from shoal.frontends.sockets import is_unix
from shoal.wire.http2_frames import H2Error

_log = logging.getLogger(__name__)

_SCRATCH_BYTES = 128 << 10
# While messages arrive in small frames: 600 KB in one or two reads cost 5 % less than in five.
_RUN_BYTES = 1 << 20
# While they arrive in large frames: room for what stands before a message. The socket writes the
# message itself where it belongs, and what a read brings of it must be copied.
_FRONT_BYTES = 4 << 10
_COPIED_BYTES = 16 << 10  # bytes are faster to read than a view; up to here the copy costs nothing
_EXTRA_BYTES = 64 << 10
_JOINED_BYTES = 64 << 10
_HIGH_WATER_BYTES = 256 << 10
_MOST_PUMPS = 4  # what one connection may write before the others
_MOST_UNREAD_BYTES = 1 << 20  # of acknowledgements and the like for a client that does not read


class ConnectionRegistry:
    """What the connections of one listener share."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        loop: asyncio.AbstractEventLoop,
        after_batches: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`after_batches` calls its argument in this loop iteration, once batches have run."""
        self.dispatcher = dispatcher
        self.loop = loop
        self._after_batches = after_batches or loop.call_soon
        dispatcher.shared.turns.loop = loop
        self.transports: set[Transport] = set()
        self.draining = False
        self.linger_until = 0.0  # while it drains: until then a client may send its first calls
        self.idle = asyncio.Event()
        self.idle.set()
        block_bytes = dispatcher.settings.limits.max_header_block_bytes
        self.large_scratch = memoryview(bytearray(max(_RUN_BYTES, 2 * block_bytes)))
        self.scratch = self.large_scratch[: max(_SCRATCH_BYTES, 2 * block_bytes)]
        self.small_scratch = self.large_scratch[:_FRONT_BYTES]
        self.marks = ReceiveMarks()
        self._dirty: list[Transport] = []

    def add(self, transport: Transport) -> None:
        """A client has connected."""
        self.transports.add(transport)
        self.idle.clear()

    def linger(self) -> None:
        """Leave clients that have just connected some time."""
        self.linger_until = self.loop.time() + LINGER_SECS

    def remove(self, transport: Transport) -> None:
        """A connection was lost."""
        self.transports.discard(transport)
        if not self.transports:
            self.idle.set()

    def flush_soon(self, transport: Transport) -> None:
        """Flush `transport` at the end of this loop iteration."""
        if not self._dirty:
            self._after_batches(self._flush)
        self._dirty.append(transport)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for transport in dirty:
            try:
                transport.flush()
            except Exception:  # noqa: BLE001 - the others must still be flushed
                _log.exception("cannot write to %s", transport.connection.peer)
                transport.abort()


class Transport(asyncio.BufferedProtocol):
    """One client."""

    def __init__(self, registry: ConnectionRegistry) -> None:
        dispatcher = registry.dispatcher
        settings = dispatcher.settings
        now_ns = dispatcher.clock()
        self.connection = Connection(
            settings,
            dispatcher.accept,
            self._wake,
            dispatcher.clock,
            dispatcher.shared,
            dispatcher.fast_path,
        )
        self._registry = registry
        self._limits = settings.limits
        self._stalled_sweeps = round(settings.limits.stalled_request_secs / settings.sweep_secs)
        self._unsent_sweeps = round(settings.limits.write_stall_secs / settings.sweep_secs)
        self._lifetime = Lifetime(settings.keepalive, now_ns)
        self._pending = b""  # the beginning of a frame
        self._large_frames = False  # whether the last message had some
        self._mark: ReceiveMark | None = None  # once a large message has arrived
        self._heard = False
        self._paused = False
        self._put_off_reading = False  # true while whole frames wait for the next turn
        self._extra = bytearray()  # what arrives meanwhile
        self._unread_bytes = 0  # in the socket's queue at the last sweep
        # Clocks of the sweep: since when the handshake, a stalled write or the end takes.
        self._made_ns = now_ns
        self._stalled_ns: int | None = None
        self._unread_limit: int | None = None  # while paused: what may wait for the client at most
        self._ending = False
        self._ending_ns: int | None = None
        self._last_apart = False
        self._transport: asyncio.Transport | None = None
        self._address = ""  # the peer without its port; empty for a Unix socket

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        # Some versions of asyncio (3.12, 3.13) do not pause us in `writelines`, which would let
        # `flush` run until everything is in memory; they do in `write`. uvloop does in both.
        self._last_apart = type(transport).__module__.startswith("asyncio.")
        self.connection.peer = _peer(transport)
        self._registry.add(self)
        if self._registry.draining:
            self._registry.linger()
            self.connection.drain()
        address = transport.get_extra_info("peername")
        self._address = str(address[0]) if isinstance(address, tuple) else ""
        if self._registry.dispatcher.clients.connections.admit(self._address):
            # Without a word: after a GOAWAY grpc-core would connect again at once, and again.
            self.abort()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - we know better
        """Where the next bytes go."""
        if self._put_off_reading:  # TLS may have some more at hand
            self._extra = bytearray(_EXTRA_BYTES)
            return memoryview(self._extra)
        direct = self.connection.direct
        if direct is not None:
            self._large_frames = True
            return direct
        pending = self._pending
        registry = self._registry
        mark = self._mark
        if self.connection.in_run or (mark is not None and mark.size):
            scratch = registry.large_scratch
        elif self._large_frames and not pending:
            return registry.small_scratch
        else:
            scratch = registry.scratch
        if pending:
            scratch[: len(pending)] = pending
            return scratch[len(pending) :]
        return scratch

    def buffer_updated(self, nbytes: int) -> None:
        """`nbytes` have arrived in the buffer of `get_buffer`."""
        connection = self.connection
        if self._put_off_reading:
            self._pending += self._extra[:nbytes]
            return
        connection.sender.awake = True  # we flush below, whatever happens
        self._heard = True
        try:
            if connection.direct is not None:
                connection.direct_filled(nbytes)
                self._expect()
            else:
                size = len(self._pending) + nbytes
                arrived = self._registry.large_scratch[:size]
                data: bytes | memoryview = arrived
                if size <= _COPIED_BYTES or (
                    not connection.in_run and connection.begins_with_match(arrived)
                ):
                    data = arrived.tobytes()
                used = connection.receive(data)
                self._pending = bytes(data[used:]) if used < size else b""
                if nbytes >= _FRONT_BYTES:
                    self._large_frames = False  # unless `direct` is next
                    if nbytes > _FRONT_BYTES:  # else the event loop reads on at once
                        self._expect()
                elif self._mark is not None and self._mark.size:
                    self._expect()
                if connection.interrupted:
                    self._put_off()
        except Exception:  # noqa: BLE001 - an error of ours must not leave this client waiting
            _log.exception("cannot go on with the connection from %s", connection.peer)
            connection.fail(H2Error.INTERNAL_ERROR, "the server made a mistake")
        self._after_reading()

    def _expect(self) -> None:
        """Wait for the rest of a large message, so that one read brings all of it."""
        missing = self.connection.missing_bytes() - len(self._pending)
        mark = self._mark
        if mark is None:
            if missing < LEAST_BYTES:
                return
            mark = self._mark = self._registry.marks.of(self._transport)
        mark.expect(missing)

    def _put_off(self) -> None:
        """Read on after the other connections have had their turn."""
        if self._transport is not None and not self._put_off_reading:
            self._put_off_reading = True
            self._transport.pause_reading()
        self._registry.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        """Work through what an earlier turn has left."""
        connection = self.connection
        data, self._pending = self._pending, b""
        if self._transport is None or connection.closed:
            return
        connection.sender.awake = True
        connection.begin_turn()
        try:
            used = connection.receive(data)
            self._pending = data[used:]
            if connection.interrupted:
                self._put_off()
            elif not self._transport.is_closing():
                self._put_off_reading = False
                self._expect()
                self._transport.resume_reading()
        except Exception:  # noqa: BLE001 - as in `buffer_updated`
            _log.exception("cannot go on with the connection from %s", connection.peer)
            connection.fail(H2Error.INTERNAL_ERROR, "the server made a mistake")
        self._after_reading()

    def _after_reading(self) -> None:
        """Write what the frames of this turn have brought about."""
        connection = self.connection
        sender = connection.sender
        if sender.out or sender.sendable or connection.closed or self._paused:
            self.flush()
        else:  # responses mostly follow later
            sender.awake = False

    def eof_received(self) -> bool:
        """The client has closed its side: no one reads a response."""
        # The input of a Unix socket may have been stopped by `close_unless_unread`.
        return self.connection.draining and not self._address and bool(self.connection.streams)

    def pause_writing(self) -> None:
        """The socket's queue is full."""
        self._paused = True
        self.connection.sender.open = False

    def resume_writing(self) -> None:
        """The socket's queue has emptied."""
        self._paused = False
        self._stalled_ns = self._unread_limit = None
        self.connection.sender.open = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is about to be closed, and with it every call."""
        if self._mark is not None:
            self._mark.close()
            self._mark = None
        if self._transport is not None:
            self._transport.close()  # Python 3.10 complains about TLS transports left open
        self._transport = None
        self.connection.close()
        self._pending = b""
        self._registry.remove(self)
        self._registry.dispatcher.clients.connections.leave(self._address)
        if exc is not None:
            _log.debug("connection from %s lost: %s", self.connection.peer, exc)

    # What the listener calls.

    def flush(self) -> None:
        """Write what there is to write, as far as the socket takes it."""
        sender = self.connection.sender
        transport = self._transport
        sender.awake = True
        pumps = 0
        while True:
            if sender.sendable and pumps < _MOST_PUMPS:
                sender.pump()
                pumps += 1
            out = sender.out
            if not out:
                break
            sender.out = []
            if transport is None or transport.is_closing() or self._ending:
                continue
            if len(out) == 1:
                transport.write(out[0])
            elif sum(map(len, out)) <= _JOINED_BYTES:
                transport.write(b"".join(out))
            elif self._last_apart:
                transport.writelines(out[:-1])
                transport.write(out[-1])
            else:
                transport.writelines(out)
        sender.awake = False
        if transport is None:
            return
        if sender.sendable:  # the others first
            sender.awake = True
            self._wake()
        if self.connection.closed:
            self._end(transport)
        elif self._paused and self._reads_nothing(transport.get_write_buffer_size()):
            _log.debug("%s reads nothing of what it asks for", self.connection.peer)
            self.abort()

    def sweep(self, now_ns: int) -> None:
        """Look at this connection's clocks."""
        limits = self._limits
        if self._ending:
            if self._ending_ns is None:
                self._ending_ns = now_ns
            elif now_ns - self._ending_ns >= limits.linger_secs * 1e9:
                self.abort()
            return
        connection = self.connection
        if self._expired(connection.settled, limits.handshake_secs, now_ns - self._made_ns):
            self.abort()
            return
        if self._paused and self._write_stalled(now_ns):
            self.abort()
            return
        heard, self._heard = self._heard, False
        action = self._lifetime.sweep(
            now_ns,
            heard=heard,
            calls_open=bool(connection.streams),
            sent_frames=connection.sender.sent_frames,
        )
        if action is Action.PING:
            connection.ping()
        elif action is Action.DRAIN:
            self.drain("max_age")
        elif action is Action.ABORT:
            self.abort()
        if self._stalled_sweeps:
            connection.sweep_stalled(self._stalled_sweeps)
        if self._unsent_sweeps:
            connection.sweep_unsent(self._unsent_sweeps)

    def drain(self, message: str = "") -> None:
        """Let open calls finish, then close."""
        self.connection.drain(message)
        self.flush()

    def end_drain(self) -> None:
        """The client has had its time: take no new calls, whether or not it knows of the drain, and
        close a connection without calls. Libraries may not read while they have none."""
        transport = self._transport
        if transport is None:
            return
        if self._ending or not (self.connection.greeted or self._pending):
            close_unless_unread(transport)
        elif self.connection.greeted:
            self.connection.end_drain()
            self.flush()

    def give_up(self, message: str) -> None:
        """Respond to open calls with UNAVAILABLE, then close."""
        self.connection.give_up_all(message)
        self.flush()

    def abort(self) -> None:
        """Close at once; open calls are cancelled."""
        self.connection.close()
        if self._transport is not None:
            self._transport.abort()

    def _wake(self) -> None:
        self._registry.flush_soon(self)

    def _end(self, transport: asyncio.Transport) -> None:
        """Close so that the client can read the last frames: data that arrives at a closed
        socket would make the system take them back."""
        if self._ending:
            return
        self._ending = True
        if self.connection.fault:
            _log.debug("closing %s: %s", self.connection.peer, self.connection.fault)
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def _expired(self, done: bool, limit_secs: float, elapsed_ns: int) -> bool:
        return not done and limit_secs > 0 and elapsed_ns >= limit_secs * 1e9

    def _reads_nothing(self, unread_bytes: int) -> bool:
        """Whether too much has arrived since we were paused. Responses do not count: a client
        may be owed several large ones at once, and reads them in its own time."""
        if self._unread_limit is None:
            self._unread_limit = unread_bytes + _MOST_UNREAD_BYTES
        return unread_bytes > self._unread_limit

    def _write_stalled(self, now_ns: int) -> bool:
        assert self._transport is not None
        unread_bytes = self._transport.get_write_buffer_size()
        if self._stalled_ns is None or unread_bytes != self._unread_bytes:
            self._stalled_ns = now_ns
            self._unread_bytes = unread_bytes
        return self._expired(False, self._limits.write_stall_secs, now_ns - self._stalled_ns)


def _peer(transport: asyncio.BaseTransport) -> str:
    """The address of a client as gRPC writes it."""
    sock = transport.get_extra_info("socket")
    if is_unix(sock):
        return f"unix:{sock.getsockname()}"
    address = transport.get_extra_info("peername")
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = address[0], address[1]
        return f"ipv6:[{host}]:{port}" if ":" in str(host) else f"ipv4:{host}:{port}"
    return "unknown"
