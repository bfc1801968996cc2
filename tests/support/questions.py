"""A stand-in for a server that answers questions, for the programs that ask.

    with QuestionServer() as server:
        TcpAsker("127.0.0.1", server.tcp_port, 10).ask(Question("It is red.", "What colour?"))

It speaks both protocols, plain TCP and HTTP; the function `reply` makes the answers.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import socketserver
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from shoal.inprocess.keywords import LOOPBACK

Reply = Callable[[str, str], str]
UNKNOWN = "Unknown"


class Refusal(Exception):
    """Raised by a reply: the server refuses with this sentence."""


def last_word(text: str, question: str) -> str:
    """The last word of the text; unknown where the question ends in "not?"."""
    return UNKNOWN if question.endswith("not?") else text.rsplit(maxsplit=1)[-1].rstrip(".")


class QuestionServer:
    """Both ports, for a `with` block. `reply` may be changed at any time."""

    def __init__(self, reply: Reply = last_word) -> None:
        self.reply = reply
        self.asked: list[tuple[str, str]] = []  # by every client, in the order of arrival
        self.paths: list[str] = []  # of HTTP requests
        self._lock = threading.Lock()  # guards the lists and _connections
        self._connections: set[socket.socket] = set()
        self._listeners = (
            _Listener(self, _TcpConversation),
            _Listener(self, _HttpConversation),
        )

    @property
    def tcp_port(self) -> int:
        """The port for plain TCP."""
        return self._listeners[0].port

    @property
    def http_port(self) -> int:
        """The port for HTTP."""
        return self._listeners[1].port

    def answer(self, document: Any) -> str:
        """What to say to one request. Raises Refusal."""
        if not isinstance(document, dict) or not {"text", "question"} <= set(document):
            raise Refusal("a question has a text and a question")
        text, question = str(document["text"]), str(document["question"])
        with self._lock:
            self.asked.append((text, question))
        return self.reply(text, question)

    def disconnect(self) -> None:
        """Close the connections of all clients; new ones are welcome."""
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):  # this client has gone by itself
                    connection.shutdown(socket.SHUT_RDWR)

    def joined(self, connection: socket.socket) -> None:
        """A client has come."""
        with self._lock:
            self._connections.add(connection)

    def left(self, connection: socket.socket) -> None:
        """A client is gone."""
        with self._lock:
            self._connections.discard(connection)

    def requested(self, path: str) -> None:
        """A request has come by HTTP."""
        with self._lock:
            self.paths.append(path)

    def __enter__(self) -> QuestionServer:  # noqa: PYI034 - Python 3.10 has no Self
        for listener in self._listeners:
            listener.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for listener in self._listeners:
            listener.stop()
        self.disconnect()


class _Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False  # a client may still wait for its answer
    request_queue_size = 128

    def __init__(
        self, owner: QuestionServer, handler: type[socketserver.BaseRequestHandler]
    ) -> None:
        super().__init__((LOOPBACK, 0), handler)
        self.owner = owner
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.owner.joined(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.owner.left(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects is no error here."""


class _TcpConversation(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True
    server: _Listener

    def handle(self) -> None:
        for line in self.rfile:
            try:
                said = self.server.owner.answer(json.loads(line))
            except Refusal as refusal:
                said = f"error: {refusal}"
            self.wfile.write(f"{said}\n".encode())


class _HttpConversation(http.server.BaseHTTPRequestHandler):
    disable_nagle_algorithm = True
    protocol_version = "HTTP/1.1"
    server: _Listener

    def do_GET(self) -> None:
        self._send(200, {})

    def do_POST(self) -> None:
        owner = self.server.owner
        body = self.rfile.read(int(self.headers["Content-Length"]))
        owner.requested(self.path)
        try:
            document = json.loads(body)
            answer = owner.answer(document)
        except Refusal as refusal:
            self._send(400, {"error": str(refusal)})
            return
        start = str(document["text"]).rfind(answer)
        known = answer != UNKNOWN and start >= 0
        self._send(
            200,
            {
                "model_name": "questions",
                "model_version": "1",
                "answer": answer,
                "score": 0.75 if known else 0.1,
                "start": start if known else None,
                "end": start + len(answer) if known else None,
            },
        )

    def _send(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests have a log of their own."""
