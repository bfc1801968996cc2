"""An exchange around another one, for what CORS, keys and traces add to a response."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.access.caller import Caller
from shoal.core.tensor import Buffer
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.message import Header, HttpRequest


class WrappedExchange:
    """Passes everything on; see `Exchange`."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Exchange) -> None:
        self._inner = inner

    @property
    def request(self) -> HttpRequest:
        """The request."""
        return self._inner.request

    @property
    def peer(self) -> str:
        """The client's address."""
        return self._inner.peer

    @property
    def caller(self) -> Caller | None:
        """Whose key the request has."""
        return self._inner.caller

    @caller.setter
    def caller(self, caller: Caller | None) -> None:
        self._inner.caller = caller

    @property
    def model(self) -> str:
        """Whose route it is."""
        return self._inner.model

    @model.setter
    def model(self, model: str) -> None:
        self._inner.model = model

    @property
    def on_disconnect(self) -> Callable[[], object] | None:
        """Called when the client disconnects before the response."""
        return self._inner.on_disconnect

    @on_disconnect.setter
    def on_disconnect(self, callback: Callable[[], object] | None) -> None:
        self._inner.on_disconnect = callback

    def respond(self, status: int, headers: Sequence[Header], parts: Sequence[Buffer]) -> None:
        """Respond, exactly once."""
        self._inner.respond(status, headers, parts)

    def start_stream(self, status: int, headers: Sequence[Header]) -> None:
        """Begin a response whose body follows in chunks."""
        self._inner.start_stream(status, headers)

    def send_chunk(self, data: Buffer) -> None:
        """Send a chunk of that body."""
        self._inner.send_chunk(data)

    def abort(self) -> None:
        """Cut the connection."""
        self._inner.abort()

    def when_room(self, callback: Callable[[], object]) -> None:
        """Call back once the client has read enough."""
        self._inner.when_room(callback)

    def end_stream(self) -> None:
        """Complete a response that `start_stream` began."""
        self._inner.end_stream()


class EndedExchange(WrappedExchange):
    """One whose end counts: a response, or `_client_disconnected`, which calls `_callback`."""

    __slots__ = ("_callback",)

    def __init__(self, inner: Exchange) -> None:
        super().__init__(inner)
        self._callback: Callable[[], object] | None = None
        inner.on_disconnect = self._client_disconnected

    @property
    def on_disconnect(self) -> Callable[[], object] | None:
        """Called when the client disconnects before the response."""
        return self._callback

    @on_disconnect.setter
    def on_disconnect(self, callback: Callable[[], object] | None) -> None:
        self._callback = callback

    def respond(self, status: int, headers: Sequence[Header], parts: Sequence[Buffer]) -> None:
        """Respond, exactly once."""
        self._callback = None  # what it belongs to refers to this exchange
        super().respond(status, headers, parts)

    def end_stream(self) -> None:
        """Complete a response that `start_stream` began."""
        self._callback = None
        super().end_stream()

    def _client_disconnected(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()
