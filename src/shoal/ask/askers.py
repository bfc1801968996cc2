"""Connections for questions, over plain TCP or HTTP; they are reopened when lost.

    find(host, …) --> TcpAsker | HttpAsker --ask--> Answer

A question changes nothing on the server, so it is resent once when its connection breaks.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

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
from shoal.client.connecting import Limits, NoResponse, context, lost
from shoal.client.errors import ConnectionFailed, InvalidInput, ProtocolError, Timeout
from shoal.client.http_transport import HttpTransport
from shoal.client.sockets import RECEIVE_BYTES, Deadline, SocketConnection
from shoal.client.steps import RoundTrip

CONNECT_SECS = 5.0
TlsSettings: TypeAlias = Mapping[str, Any]
_NO_TLS: TlsSettings = MappingProxyType({"ca": None, "cert": None, "key": None, "verify": True})


class Asker(Protocol):
    """One server. Not for several threads at once."""

    @property
    def description(self) -> str:
        """Address and protocol, for display."""

    def ask(self, question: Question) -> tuple[Answer, float]:
        """The answer and its latency in milliseconds.

        Raises ServerError when the server refuses, ConnectionFailed, Timeout and ProtocolError;
        it can be used again after each of them.
        """

    def close(self) -> None:
        """Close the connection."""


class TcpAsker:
    """The plain-TCP port: sends a line of JSON, receives a line of text."""

    def __init__(
        self, host: str, port: int, model: str, timeout_secs: float, api_key: str = ""
    ) -> None:
        """Connects. Raises ConnectionFailed and Timeout when there is no server."""
        self._api_key = api_key
        self._address = Address("tcp", host, port, encrypted=False)
        self._model = model
        self._timeout_secs = timeout_secs
        self._connection: SocketConnection | None = self._connect()

    @property
    def description(self) -> str:
        """Host, port and protocol."""
        return f"{self._address.authority} over TCP"

    def ask(self, question: Question) -> tuple[Answer, float]:
        """See `Asker`."""
        message = tcp_message(self._model, question, self._api_key)
        connection, self._connection = self._connection, None  # kept only after a success
        if connection is not None and connection.stale():
            connection.close()
            connection = None
        used = connection is not None
        while True:
            connection = connection or self._connect()
            try:
                text, latency_ms = self._exchange(connection, message)
            except NoResponse as error:
                connection.close()
                if not used:
                    raise lost(self._address, error.reason) from None
                connection, used = None, False  # closed while idle: retry on a new one
            except BaseException:
                connection.close()
                raise
            else:
                connection.used_secs = time.monotonic()
                self._connection = connection
                return tcp_answer(text), latency_ms

    def close(self) -> None:
        """Close the connection; the next question opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> SocketConnection:
        where = self._address.authority
        try:
            connection = socket.create_connection(
                (self._address.host, self._address.port), CONNECT_SECS
            )
        except socket.gaierror as error:
            raise _unknown_host(self._address.host, error) from None
        except TimeoutError:
            raise Timeout(
                f"no connection to {where} within {CONNECT_SECS:g} s; is the address right?"
            ) from None
        except OSError as error:
            raise ConnectionFailed(
                f"no server answers at {where}; is it running? Start one with "
                f"'shoal serve --demo --tcp-port={self._address.port}' ({error.strerror or error})"
            ) from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return SocketConnection(connection)

    def _exchange(self, connection: SocketConnection, message: bytes) -> tuple[bytes, float]:
        """Send a message and receive a line. Raises NoResponse when the connection ends."""
        where = self._address.authority
        deadline = Deadline(self._timeout_secs)
        received = bytearray()
        begin_ns = time.perf_counter_ns()
        try:
            connection.limit(self._timeout_secs)
            connection.send([message], len(message))
            while b"\n" not in received:
                connection.limit(deadline.left())
                piece = connection.socket.recv(RECEIVE_BYTES)
                if not piece:
                    raise NoResponse(None)
                received += piece
        except TimeoutError:
            raise Timeout(
                f"no answer from {where} within {self._timeout_secs:g} s; allow more with --timeout"
            ) from None
        except OSError as error:
            raise NoResponse(error) from None
        latency_ms = (time.perf_counter_ns() - begin_ns) / 1e6
        text, _, rest = bytes(received).partition(b"\n")
        if rest:
            raise ProtocolError(
                f"what answers at {where} does not speak the question protocol: it sent more than "
                f"one line; is this the --tcp-port of a server?"
            )
        return text, latency_ms


class HttpAsker:
    """POST …/answer on a persistent connection."""

    def __init__(
        self,
        address: Address,
        model: str,
        timeout_secs: float,
        api_key: str = "",
        tls: TlsSettings = _NO_TLS,
    ) -> None:
        """Connects. Raises ConnectionFailed and Timeout when there is no server."""
        self._api_key = api_key
        self._address = address
        self._model = model
        self._timeout_secs = timeout_secs
        encryption = context(address, None, **tls)
        self._transport = HttpTransport(address, encryption, Limits(CONNECT_SECS, 1))
        self._send(
            f"GET {address.prefix}/v2/health/live HTTP/1.1\r\nHost: {address.authority}\r\n"
            "\r\n".encode("latin-1")
        )

    @property
    def description(self) -> str:
        """Host, port and protocol."""
        kind = "HTTPS" if self._address.encrypted else "HTTP"
        return f"{self._address.shown} over {kind}"

    def ask(self, question: Question) -> tuple[Answer, float]:
        """See `Asker`."""
        message = http_message(self._address, self._model, question, self._api_key)
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
    host: str,
    *,
    port: int | None,
    http: str,
    model: str,
    timeout_secs: float,
    api_key: str = "",
    tls: TlsSettings = _NO_TLS,
) -> TcpAsker | HttpAsker:
    """A connected asker; `http` and `port` choose the protocol. `tls` are the arguments ca, cert,
    key and verify of a client.

    Otherwise the default TCP port is tried first, then that of HTTP. Raises InvalidInput for
    contradicting arguments, ConnectionFailed and Timeout when there is no server.
    """
    if http and port is not None:
        raise InvalidInput("--port is for TCP and --http for HTTP; choose one of them")
    if http:
        address = parse(http)
        if address.protocol != "http":
            raise InvalidInput(f"--http takes an HTTP address, found '{http}'")
        return HttpAsker(address, model, timeout_secs, api_key, tls)
    if any((tls["ca"], tls["cert"], tls["key"])):
        raise InvalidInput("--ca, --cert and --key are for HTTPS; add --http https://<host>")
    if port is not None:
        return TcpAsker(host, port, model, timeout_secs, api_key)
    http_address = Address("http", host, HTTP_PORT, encrypted=False)
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        raise _unknown_host(host, error) from None
    with contextlib.suppress(ConnectionFailed, Timeout):
        return TcpAsker(host, TCP_PORT, model, timeout_secs, api_key)
    try:
        return HttpAsker(http_address, model, timeout_secs, api_key)
    except (ConnectionFailed, Timeout):
        raise ConnectionFailed(
            f"no server answers at port {TCP_PORT} (TCP) or {HTTP_PORT} (HTTP) of '{host}'; is it "
            f"running? Start one with 'shoal serve --demo "
            f"--tcp-port={TCP_PORT}', or name its address with --host, --port or --http"
        ) from None


def _unknown_host(host: str, error: OSError) -> ConnectionFailed:
    return ConnectionFailed(f"unknown host '{host}': {error.strerror or error}")
