"""A server as an ASGI application, to be mounted in one of FastAPI, Starlette or others.

    models = shoal.asgi_app(greet, "models")
    app = FastAPI(lifespan=models.lifespan)
    app.mount("/models", models)

    framework's loop --request--> AsgiServer --> the server's own loop: routes, keys, limits
                     <--send----- queue      <-- response, or its chunks

The server has no ports of its own unless settings name some. It starts with the lifespan or, where
the framework does not pass that on, with the first request.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import quote

from shoal.access.caller import Caller
from shoal.config.options import Options
from shoal.core.tensor import Buffer
from shoal.errors import ShoalError
from shoal.frontends.access_log import DISCONNECTED
from shoal.frontends.http.access import access_record
from shoal.frontends.http.application import Application
from shoal.frontends.http.errors import refusal_body
from shoal.frontends.http.head import parse_head
from shoal.frontends.http.message import Head, Header, HttpFault, HttpRequest
from shoal.inprocess.server import Server
from shoal.settings import http_limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# No ports, unless settings name some.
_NO_PORTS = {"allow_http": False, "allow_grpc": False, "allow_metrics": False}
_PORTS = {
    "allow_http": ("http_port", "http_address", "http_unix_socket"),
    "allow_grpc": ("grpc_port", "grpc_address", "grpc_unix_socket"),
    "allow_metrics": ("metrics_port", "metrics_listen_address"),
}
_AHEAD_BYTES = 256 * 1024  # of a stream that the framework has not sent yet
_JSON: Header = (b"content-type", b"application/json")
_UNSAFE = b"\r\n\0"


def asgi_app(*models: Any, options: Options | None = None, **settings: Any) -> AsgiServer:
    """An ASGI application that serves `models`; arguments are those of `shoal.Server`.

    Nothing is opened or read yet. Raises InvalidArgument.
    """
    if options is None:
        closed = {
            name: value
            for name, value in _NO_PORTS.items()
            if name not in settings and not any(port in settings for port in _PORTS[name])
        }
        settings = {**closed, **settings}
    return AsgiServer(Server(*models, options=options, **settings))


class AsgiServer:
    """The application. `server` is the server behind it, for programs that call it directly."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._starting = threading.Lock()  # guards _application
        self._application: Application | None = None

    @asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """Start the server, and stop it at the end: `FastAPI(lifespan=models.lifespan)`."""
        del app
        await asyncio.to_thread(self._start)
        try:
            yield
        finally:
            await asyncio.to_thread(self._stop)

    def _start(self) -> Application:
        with self._starting:
            if self._application is None:
                self.server.start()
                self._application = self.server._new_application()
            return self._application

    def _stop(self) -> None:
        with self._starting:
            self._application = None
            self.server.stop()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003})
        else:
            await self._serve(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await asyncio.to_thread(self._start)
        except ShoalError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await asyncio.to_thread(self._stop)
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        application = self._application
        if application is None:  # a framework that has not passed on the lifespan
            atexit.register(self._stop)
            application = await asyncio.to_thread(self._start)
        started_ns = time.monotonic_ns()
        limits = http_limits(self.server._options)
        try:
            head = parse_head(_raw_head(scope), limits)
            if application.check_head is not None:
                application.check_head(head)
            body = await _read_body(receive, limits.max_body_bytes)
        except HttpFault as fault:
            content = fault.body or refusal_body(str(scope["path"]), fault.status, fault.message)
            await _send_whole(send, fault.status, [_JSON, *fault.headers], content)
            return
        if body is None:  # the client has disconnected
            return
        call = _AsgiExchange(HttpRequest(head, body), _peer(scope), asyncio.get_running_loop())
        call.on_end = lambda: self._log(head, call, len(body), started_ns)
        self.server._call_soon(application.handle, call)
        leaving = asyncio.ensure_future(self._watch(receive, call))
        try:
            await call.forward(send, self.server._call_soon)
        finally:
            leaving.cancel()

    async def _watch(self, receive: Receive, call: _AsgiExchange) -> None:
        """Tell the server when the client disconnects."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.server._call_soon(call.client_disconnected)

    def _log(self, head: Head, call: _AsgiExchange, received: int, started_ns: int) -> None:
        """Write a line of the access log. On the server's loop."""
        log = self.server._access_log
        if log is not None:
            key = call.caller.name if call.caller is not None else ""
            log.record(
                access_record(
                    head,
                    call.peer,
                    key,
                    call.status,
                    received,
                    call.sent_bytes,
                    started_ns,
                    call.failure,
                    model=call.model,
                )
            )


class _AsgiExchange:
    """A request and its response; see `Exchange`. For the thread of the server's loop, except for
    `forward`."""

    def __init__(self, request: HttpRequest, peer: str, loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self.peer = peer
        self.caller: Caller | None = None
        self.model = ""
        self.on_disconnect: Callable[[], object] | None = None
        self.on_end: Callable[[], object] = lambda: None
        self.status = DISCONNECTED
        self.sent_bytes = 0
        self.failure = b""
        self._loop = loop  # the framework's
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._ahead_bytes = 0
        self._waiting: Callable[[], object] | None = None
        self._ended = False

    # ---- for the application, on the server's loop

    def respond(self, status: int, headers: Sequence[Header], parts: Sequence[Buffer]) -> None:
        """Send the whole response."""
        body = b"".join(bytes(part) for part in parts)
        if status >= 400:
            self.failure = body
        length = (b"content-length", b"%d" % len(body))
        self.start_stream(status, [*headers, *([length] if status not in (204, 304) else [])])
        self.send_chunk(body)
        self.end_stream()

    def start_stream(self, status: int, headers: Sequence[Header]) -> None:
        """Begin a response whose body follows in chunks."""
        self.status = status
        named = [(name.lower(), value) for name, value in headers]
        self._post({"type": "http.response.start", "status": status, "headers": named})

    def send_chunk(self, data: Buffer) -> None:
        """Send a chunk of that body."""
        content = bytes(data)
        if content and self.request.method != "HEAD":
            self._ahead_bytes += len(content)
            self.sent_bytes += len(content)
            self._post({"type": "http.response.body", "body": content, "more_body": True})

    def end_stream(self) -> None:
        """Complete a response."""
        self._post({"type": "http.response.body", "body": b"", "more_body": False})
        self._post(None)
        self._end()

    def abort(self) -> None:
        """End without completing the response, so that the connection is cut."""
        self._post({"type": "abort"})
        self.client_disconnected()

    def when_room(self, callback: Callable[[], object]) -> None:
        """Call back once the client has read enough."""
        if self._ahead_bytes < _AHEAD_BYTES or self._ended:
            callback()
        else:
            self._waiting = callback

    def client_disconnected(self) -> None:
        """The client has disconnected."""
        if self._ended:
            return
        self.status = DISCONNECTED
        callback, self.on_disconnect = self.on_disconnect, None
        self._post(None)
        self._end()
        if callback is not None:
            callback()

    def _end(self) -> None:
        self._ended = True
        self.on_disconnect = None
        self.on_end()

    def _sent(self, count: int) -> None:
        self._ahead_bytes -= count
        if self._waiting is not None and self._ahead_bytes < _AHEAD_BYTES:
            callback, self._waiting = self._waiting, None
            callback()

    def _post(self, message: Message | None) -> None:
        if not self._ended:
            with suppress(RuntimeError):  # the framework's loop is closed: no client is left
                self._loop.call_soon_threadsafe(self._messages.put_nowait, message)

    # ---- on the framework's loop

    async def forward(self, send: Send, call_soon: Callable[..., None]) -> None:
        """Pass the response on to the framework."""
        while (message := await self._messages.get()) is not None:
            if message["type"] == "abort":
                raise ConnectionAbortedError("the response could not be completed")
            await send(message)
            size = len(message.get("body", b""))
            if size:
                call_soon(self._sent, size)


async def _read_body(receive: Receive, most_bytes: int | None) -> bytes | None:
    """The body of a request; None if the client has disconnected. HttpFault if it is too large."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        size += len(part)
        if most_bytes is not None and size > most_bytes:
            raise HttpFault(413, f"the body has more than {most_bytes} bytes, the most allowed")
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _send_whole(send: Send, status: int, headers: Sequence[Header], body: bytes) -> None:
    named = [(name.lower(), value) for name, value in headers]
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*named, length]})
    await send({"type": "http.response.body", "body": body})


def _raw_head(scope: Message) -> bytes:
    """The head of a request as it would be on a connection. HttpFault if it could not be one."""
    path = bytes(scope.get("raw_path") or b"").partition(b"?")[0].decode("latin-1")
    path = path or quote(str(scope["path"]))
    root = quote(str(scope.get("root_path") or "")).rstrip("/")
    if root and path.startswith(root):
        path = path[len(root) :]
    target = (path or "/").encode("latin-1")
    query = bytes(scope.get("query_string") or b"")
    if query:
        target += b"?" + query
    fields = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
    # The framework has read the body, however it was framed.
    kept = [(name, value) for name, value in fields if name.lower() != b"transfer-encoding"]
    if not any(name.lower() == b"host" for name, _ in kept):
        kept.append((b"host", b"localhost"))
    lines = [b"%b %b HTTP/1.1" % (str(scope["method"]).encode("latin-1"), target)]
    lines += [b"%b: %b" % pair for pair in kept]
    if any(byte in line for line in lines for byte in _UNSAFE):
        raise HttpFault(400, "the head of the request has a line break in it")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _peer(scope: Message) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""
