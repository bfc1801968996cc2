"""Clients that keep a server busy until it has stopped, and count what became of each request.

    count = StopCount()
    with clients(count, [partial(http_client, connect, fresh=True)] * 32):
        ...  # stop the server
    assert count.lost == []

A request is lost if the server's kernel has confirmed all of its bytes and no response came. The
client knows this exactly: what it has sent and what was not confirmed is in its own kernel. What
was not confirmed, or came after a GOAWAY, was not received; clients may send that again elsewhere.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import socket
import ssl
import struct
import termios
import threading
from collections.abc import Callable, Iterator, Sequence

import hpack

from tests.support.fakes import WAIT_SECS

Connect = Callable[[], socket.socket]

# While the port closes, new handshakes get no answer; the system tries again after a second.
CONNECT_SECS = 0.3
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_REFUSED_STREAM, _CANCEL = 7, 8
_CANCELLED = "1"  # the status


class StopCount:
    """What became of the requests of all clients."""

    def __init__(self) -> None:
        self.answered = 0
        self.not_received = 0  # the client knows it: unconfirmed, or told so by GOAWAY
        self.refused = 0  # connections
        self.cancelled = 0  # calls, by the server
        self.lost: list[str] = []
        self.failed: list[str] = []  # responses that are errors
        self._changed = threading.Condition()

    def add_answer(self, failure: str = "") -> None:
        """A response has arrived; `failure` if it is not the one that was expected."""
        with self._changed:
            self.answered += 1
            if failure:
                self.failed.append(failure)
            self._changed.notify_all()

    def add_end(self, sock: socket.socket, what: str) -> None:
        """The connection has ended after a request, without a response."""
        if _unconfirmed_bytes(sock):
            self.not_received += 1
        else:
            self.lost.append(what)

    def wait_for_answers(self, number: int) -> None:
        """Wait until so many responses have arrived."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.answered >= number, WAIT_SECS)


@contextlib.contextmanager
def clients(count: StopCount, kinds: Sequence[Callable[[StopCount], None]]) -> Iterator[None]:
    """Run a thread for each client, until the server refuses connections."""
    faults: list[BaseException] = []

    def run(kind: Callable[[StopCount], None]) -> None:
        try:
            kind(count)
        except BaseException as error:
            faults.append(error)
            raise

    threads = [threading.Thread(target=run, args=(kind,), daemon=True) for kind in kinds]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(WAIT_SECS)
    assert not any(thread.is_alive() for thread in threads), "a client still waits"
    assert faults == []


def to_port(port: int, tls: ssl.SSLContext | None = None) -> Connect:
    """Connections to a port of this machine."""

    def connect() -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", port), CONNECT_SECS)
        sock.settimeout(WAIT_SECS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return sock
        try:
            return tls.wrap_socket(sock, server_hostname="localhost")
        except (OSError, ssl.SSLError) as error:
            sock.close()
            raise ConnectionRefusedError(f"no TLS: {error}") from error

    return connect


def to_file(path: str) -> Connect:
    """Connections to a Unix socket."""

    def connect() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(WAIT_SECS)
        try:
            sock.connect(path)
        except OSError:
            sock.close()
            raise
        return sock

    return connect


def connections(connect: Connect, count: StopCount) -> Iterator[socket.socket]:
    """One connection after the other, until they are refused."""
    while True:
        try:
            sock = connect()
        except (ConnectionError, TimeoutError, FileNotFoundError):
            count.refused += 1
            return
        with contextlib.closing(sock):
            yield sock


def http_client(connect: Connect, request: bytes, count: StopCount, *, fresh: bool) -> None:
    """Send `request` again and again; if `fresh`, each on a connection of its own."""
    for sock in connections(connect, count):
        stays = True
        while stays:
            try:
                sock.sendall(request)
            except OSError:
                count.not_received += 1
                break
            response = _read_http(sock)
            if response is None:
                count.add_end(sock, f"HTTP, fresh={fresh}")
                break
            head, body = response
            ok = head.startswith(b"HTTP/1.1 200 ")
            count.add_answer("" if ok else (head + body).decode())
            stays = b"\r\nConnection: close\r\n" not in head and not fresh


def _read_http(sock: socket.socket) -> tuple[bytes, bytes] | None:
    """Head and body of a response; None if the connection ends first."""
    received = b""
    while True:
        head, found, body = received.partition(b"\r\n\r\n")
        if found:
            fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
            if len(body) >= int(fields[b"Content-Length"]):
                return head + b"\r\n", body
        piece = _receive(sock)
        if not piece:
            return None
        received += piece


def line_client(connect: Connect, question: bytes, count: StopCount, *, fresh: bool) -> None:
    """The same for a protocol whose responses are lines."""
    for sock in connections(connect, count):
        while True:
            try:
                sock.sendall(question)
            except OSError:
                count.not_received += 1
                break
            line = b""
            while not line.endswith(b"\n") and (piece := _receive(sock)):
                line += piece
            if not line.endswith(b"\n"):
                count.add_end(sock, f"TCP, fresh={fresh}")
                break
            count.add_answer()
            if fresh:
                break


class GrpcMessages:
    """Unary calls as frames that are the same on every stream but for its id."""

    def __init__(self, path: str, message: bytes) -> None:
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        literal = [hpack.NeverIndexedHeaderTuple(*field) for field in fields]
        self._block = hpack.Encoder().encode(literal)
        self._body = struct.pack(">BI", 0, len(message)) + message

    def call(self, stream_id: int) -> bytes:
        """A whole call."""
        return _frame(_HEADERS, _END_HEADERS, stream_id, self._block) + _frame(
            _DATA, _END_STREAM, stream_id, self._body
        )


def grpc_client(
    connect: Connect, calls: GrpcMessages, count: StopCount, *, fresh: bool, at_once: int = 1
) -> None:
    """Make calls over HTTP/2, `at_once` at a time; if `fresh`, only those on a connection."""
    for sock in connections(connect, count):
        _GrpcConnection(sock, calls, count, fresh=fresh, at_once=at_once).run()


class _GrpcConnection:
    def __init__(
        self,
        sock: socket.socket,
        calls: GrpcMessages,
        count: StopCount,
        *,
        fresh: bool,
        at_once: int,
    ) -> None:
        self._sock = sock
        self._calls = calls
        self._count = count
        self._fresh = fresh
        self._at_once = at_once
        self._next_id = 1
        self._open: set[int] = set()
        self._last_id = 2**31 - 1  # by GOAWAY: calls above it are not served
        self._buffer = b""
        self._decoder = hpack.Decoder()

    def run(self) -> None:
        """Until GOAWAY, or the end of the connection."""
        try:
            self._sock.sendall(PREFACE + _frame(_SETTINGS, 0, 0) + self._more())
            while self._read():
                if not self._open and (self._fresh or self._last_id < 2**31 - 1):
                    return
        except OSError:  # in sending: what was sent before may still have been received
            pass
        self._end()

    def _more(self) -> bytes:
        """The next calls, unless the server wants no more."""
        calls = b""
        while len(self._open) < self._at_once:
            self._open.add(self._next_id)
            calls += self._calls.call(self._next_id)
            self._next_id += 2
        return calls

    def _end(self) -> None:
        served = [stream_id for stream_id in self._open if stream_id <= self._last_id]
        self._count.not_received += len(self._open) - len(served)
        for stream_id in served:
            what = f"gRPC, fresh={self._fresh}, stream {stream_id}, GOAWAY {self._last_id}"
            self._count.add_end(self._sock, what)

    def _read(self) -> bool:
        piece = _receive(self._sock)
        if not piece:
            return False
        self._buffer += piece
        while len(self._buffer) >= 9:
            size = int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < 9 + size:
                break
            kind, flags, stream_id = struct.unpack_from(">BBI", self._buffer, 3)
            payload, self._buffer = self._buffer[9 : 9 + size], self._buffer[9 + size :]
            self._take(kind, flags, stream_id, payload)
        return True

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            self._sock.sendall(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._sock.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind == _GOAWAY:
            self._last_id = int.from_bytes(payload[:4], "big")
            unserved = {each for each in self._open if each > self._last_id}
            self._open -= unserved
            self._count.not_received += len(unserved)
        elif kind == _RST_STREAM and stream_id in self._open:
            self._open.discard(stream_id)
            code = int.from_bytes(payload, "big")
            if code == _REFUSED_STREAM:
                self._count.not_received += 1
            elif code == _CANCEL:
                self._count.cancelled += 1
            else:
                self._count.lost.append(f"gRPC, reset with {code}")
        elif kind == _HEADERS:
            fields = dict(self._decoder.decode(payload))
            if not flags & _END_STREAM or stream_id not in self._open:
                return
            self._open.discard(stream_id)
            status = fields.get("grpc-status")
            if status == _CANCELLED:
                self._count.cancelled += 1
            else:
                self._count.add_answer("" if status == "0" else f"gRPC status {fields}")
            if not self._fresh and self._last_id == 2**31 - 1:
                self._sock.sendall(self._more())


def _frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    size = struct.pack(">I", len(payload))[1:]
    return size + struct.pack(">BBI", kind, flags, stream_id) + payload


def _receive(sock: socket.socket) -> bytes:
    """What has arrived; empty at the end of the connection, however it ends."""
    try:
        return sock.recv(1 << 16)
    except (ConnectionError, ssl.SSLError):
        return b""


def _unconfirmed_bytes(sock: socket.socket) -> int:
    """How many bytes were sent that the server's kernel has not confirmed."""
    if sock.family == socket.AF_UNIX:
        return 0  # whatever could be sent is in the server's socket
    count = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, count)
    return count[0]
