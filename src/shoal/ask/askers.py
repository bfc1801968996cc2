"""Who is asked, over which protocol: a connection that is kept, and opened again when it was lost.

    find(host, …) --> TcpAsker | HttpAsker --ask--> Answer

A question changes nothing on the server, so one whose connection broke is sent once more.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Protocol

from shoal.ask.question import (
    HTTP_PORT,
    TCP_PORT,
    Answer,
    Question,
    http_answer,
    http_message,
    tcp_answer,
    tcp_message,
)
from shoal.client import http_responses
from shoal.client.address import Address, parse
from shoal.client.codec import RawRequest, RawResponse
from shoal.client.connecting import Limits, context
from shoal.client.errors import ConnectionFailed, InvalidInput, ProtocolError, Timeout
from shoal.client.http_transport import HttpTransport
from shoal.client.sockets import RECEIVE_BYTES, Deadline, SocketConnection
from shoal.client.steps import RoundTrip

CONNECT_SECS = 5.0


class Asker(Protocol):
    """One server. Not for several threads at once."""

    @property
    def place(self) -> str:
        """Where it is and what it speaks, for people."""

    def ask(self, question: Question) -> tuple[Answer, float]:
        """The answer, and how many milliseconds it took.

        Raises ServerError when the server refuses, ConnectionFailed, Timeout and ProtocolError;
        it may be asked again after each of them.
        """

    def close(self) -> None:
        """Close the connection."""


class TcpAsker:
    """The plain-TCP port: a line of JSON out, a line of text back."""

    def __init__(self, host: str, port: int, model: str, timeout_secs: float) -> None:
        """Connects. Raises ConnectionFailed and Timeout when nobody is there."""
        self._host = host
        self._port = port
        self._model = model
        self._timeout_secs = timeout_secs
        self._line: SocketConnection | None = self._connect()

    @property
    def place(self) -> str:
        """Host, port and protocol."""
        return f"{_authority(self._host, self._port)} over TCP"

    def ask(self, question: Question) -> tuple[Answer, float]:
        """See `Asker`."""
        message = tcp_message(self._model, question)
        line, self._line = self._line, None  # what happens to it decides whether it is kept
        if line is not None and line.stale():
            line.close()
            line = None
        used = line is not None
        while True:
            line = line or self._connect()
            try:
                text, latency_ms = self._exchange(line, message)
            except _Unanswered as error:
                line.close()
                if not used:
                    raise ConnectionFailed(error.sentence) from None
                line, used = None, False  # closed while nobody asked: a new one may do
            except BaseException:
                line.close()
                raise
            else:
                line.used_secs = time.monotonic()
                self._line = line
                return tcp_answer(text), latency_ms

    def close(self) -> None:
        """Close the connection; asking again opens another one."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _connect(self) -> SocketConnection:
        where = _authority(self._host, self._port)
        try:
            connection = socket.create_connection((self._host, self._port), CONNECT_SECS)
        except socket.gaierror as error:
            raise _unknown_host(self._host, error) from None
        except TimeoutError:
            raise Timeout(
                f"no connection to {where} within {CONNECT_SECS:g} s; is the address right?"
            ) from None
        except OSError as error:
            raise ConnectionFailed(
                f"no server answers at {where}; is it running? Start one with "
                f"'shoal serve --demo --tcp-port={self._port}' ({error.strerror or error})"
            ) from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return SocketConnection(connection)

    def _exchange(self, line: SocketConnection, message: bytes) -> tuple[bytes, float]:
        """Send a message and receive a line. Raises _Unanswered when the connection ends."""
        where = _authority(self._host, self._port)
        deadline = Deadline(self._timeout_secs)
        received = bytearray()
        begin_ns = time.perf_counter_ns()
        try:
            line.limit(self._timeout_secs)
            line.send([message], len(message))
            while b"\n" not in received:
                line.limit(deadline.left())
                piece = line.socket.recv(RECEIVE_BYTES)
                if not piece:
                    raise _Unanswered(where, None)
                received += piece
        except TimeoutError:
            raise Timeout(
                f"no answer from {where} within {self._timeout_secs:g} s; allow more with --timeout"
            ) from None
        except OSError as error:
            raise _Unanswered(where, error) from None
        latency_ms = (time.perf_counter_ns() - begin_ns) / 1e6
        text, _, rest = bytes(received).partition(b"\n")
        if rest:
            raise ProtocolError(
                f"what answers at {where} does not speak the question protocol: it sent more than "
                f"one line; is this the --tcp-port of a server?"
            )
        return text, latency_ms


class HttpAsker:
    """POST …/answer on a connection that is kept."""

    def __init__(self, address: Address, model: str, timeout_secs: float) -> None:
        """Connects. Raises ConnectionFailed and Timeout when nobody is there."""
        self._address = address
        self._model = model
        self._timeout_secs = timeout_secs
        encryption = context(address, None, None, None, None, verify=True)
        self._transport = HttpTransport(address, encryption, Limits(CONNECT_SECS, 1))
        self._send(
            f"GET {address.prefix}/v2/health/live HTTP/1.1\r\nHost: {address.authority}\r\n"
            "\r\n".encode("latin-1")
        )

    @property
    def place(self) -> str:
        """Host, port and protocol."""
        kind = "HTTPS" if self._address.encrypted else "HTTP"
        return f"{self._address.authority} over {kind}"

    def ask(self, question: Question) -> tuple[Answer, float]:
        """See `Asker`."""
        message = http_message(self._address, self._model, question)
        begin_ns = time.perf_counter_ns()
        response = self._send(message)
        latency_ms = (time.perf_counter_ns() - begin_ns) / 1e6
        return http_answer(http_responses.document(response)), latency_ms

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def _send(self, message: bytes) -> RawResponse:
        request = RawRequest([message], len(message))
        return self._transport.exchange(RoundTrip(request, self._timeout_secs, repeatable=True))


def find(
    host: str, *, port: int | None, http: str, model: str, timeout_secs: float
) -> TcpAsker | HttpAsker:
    """Whoever answers: `http` and `port` choose a protocol.

    Where nothing is chosen, TCP's usual port is tried first, then HTTP's. Raises InvalidInput for
    what contradicts itself, ConnectionFailed and Timeout when nobody is there.
    """
    if http and port is not None:
        raise InvalidInput("--port is the TCP port and --http another way to ask; choose one")
    if http:
        address = parse(http)
        if address.protocol != "http":
            raise InvalidInput(f"--http takes an address of HTTP, found '{http}'")
        return HttpAsker(address, model, timeout_secs)
    if port is not None:
        return TcpAsker(host, port, model, timeout_secs)
    over_http = Address("http", host, HTTP_PORT, encrypted=False)
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        raise _unknown_host(host, error) from None
    with contextlib.suppress(ConnectionFailed, Timeout):
        return TcpAsker(host, TCP_PORT, model, timeout_secs)
    try:
        return HttpAsker(over_http, model, timeout_secs)
    except (ConnectionFailed, Timeout):
        raise ConnectionFailed(
            f"no server answers at {_authority(host, TCP_PORT)} (TCP) or "
            f"{over_http.authority} (HTTP); is it running? Start one with 'shoal serve --demo "
            f"--tcp-port={TCP_PORT}', or say where it is with --host, --port or --http"
        ) from None


class _Unanswered(Exception):
    """The connection ended before the answer did."""

    def __init__(self, where: str, error: OSError | None) -> None:
        super().__init__()
        reason = f" ({error.strerror or error})" if error is not None else ""
        self.sentence = f"the server at {where} closed the connection before it answered{reason}"


def _unknown_host(host: str, error: OSError) -> ConnectionFailed:
    return ConnectionFailed(f"no host '{host}' is known: {error.strerror or error}")


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
