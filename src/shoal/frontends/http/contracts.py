"""The interface between the transport and the routes, so that routes can be tested without sockets.

transport --Exchange--> Application --> Engine
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from shoal.access.caller import Caller
from shoal.core.tensor import Buffer
from shoal.frontends.http.message import Header, HttpRequest


class Exchange(Protocol):
    """A request and its response. For the event loop's thread only."""

    on_disconnect: Callable[[], object] | None  # called at most once, before the response
    caller: Caller | None  # whose key the request has; None where none is required
    model: str  # whose route it is, for the access log; empty where the path has the name

    @property
    def request(self) -> HttpRequest:
        """The request."""

    @property
    def peer(self) -> str:
        """The client's address, such as `127.0.0.1:50123` or `[::1]:50123`."""

    def respond(self, status: int, headers: Sequence[Header], parts: Sequence[Buffer]) -> None:
        """Respond, exactly once. Omits the body itself for HEAD."""

    def start_stream(self, status: int, headers: Sequence[Header]) -> None:
        """Begin a response whose body follows in chunks."""

    def send_chunk(self, data: Buffer) -> None:
        """Send a chunk of that body."""

    def end_stream(self) -> None:
        """Complete a response that `start_stream` began."""

    def abort(self) -> None:
        """Cut the connection, so that the client notices an incomplete response."""

    def when_room(self, callback: Callable[[], object]) -> None:
        """Call back once the client has read enough of the chunks, maybe at once."""
