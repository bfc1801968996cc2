"""Keys over HTTP: who sends a request, what it may do, and what its response counts for.

    exchange --admit--> KeyedExchange --> handler     response or disconnect --> Caller.end

A request with a large body is checked when its head has arrived, so that clients without a key
cannot make the server receive it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from shoal.access.access import AUTHORIZATION, Access
from shoal.access.caller import Caller
from shoal.core.tensor import Buffer
from shoal.errors import ShoalError, Unauthenticated
from shoal.frontends.http.browsers import Field
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import OPENAI, error_headers
from shoal.frontends.http.message import CHUNKED, Head, Header, HttpFault
from shoal.frontends.http.wrapped_exchange import EndedExchange

_AUTHORIZATION = AUTHORIZATION.encode()
_LARGE_BODY_BYTES = 64 * 1024


class HttpKeys:
    """Finds and checks the keys of requests."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._header = access.header.encode()

    def caller(self, field: Field) -> Caller:
        """Who sends these headers. Raises Unauthenticated."""
        own = field(self._header) if self._header else None
        return self.access.identify(own, field(_AUTHORIZATION))

    def known_caller(self, field: Field) -> Caller | None:
        """The same for the fast path; see `Access.known`."""
        own = field(self._header) if self._header else None
        return self.access.known(own, field(_AUTHORIZATION))

    def caller_if_any(self, field: Field) -> Caller | None:
        """Who sends these headers, for a request that needs no key; None without a valid one."""
        found = self.known_caller(field)
        if found is None and any(field(name.encode()) for name in self.access.secret_headers):
            with suppress(Unauthenticated):
                return self.caller(field)
        return found

    def admit(self, exchange: Exchange, api: str, model: str = "") -> Exchange:
        """The exchange to continue with; its response ends the request.

        Raises Unauthenticated, Forbidden or QuotaExceeded.
        """
        if self.access.is_open(api, model):
            return exchange
        request = exchange.request
        caller = exchange.caller = self.caller(request.header)
        caller.check(api, model)
        caller.begin(len(request.body))
        return KeyedExchange(exchange, caller)

    def check_head(self, head: Head) -> None:
        """Raise HttpFault for a request without a valid key whose large body is about to arrive."""
        if head.body_length != CHUNKED and head.body_length <= _LARGE_BODY_BYTES:
            return
        try:
            self.caller(head.fields.get)
        except Unauthenticated as error:
            raise _fault(head, error) from None


class KeyedExchange(EndedExchange):
    """An exchange whose response, or whose client's disconnect, ends a request of its caller."""

    __slots__ = ("_caller", "_ended")

    def __init__(self, inner: Exchange, caller: Caller) -> None:
        """The caller has begun the request."""
        super().__init__(inner)
        self._ended = False
        self._caller = caller

    def respond(self, status: int, headers: Sequence[Header], parts: Sequence[Buffer]) -> None:
        """Respond, exactly once."""
        super().respond(status, headers, parts)
        self._count(parts)
        self._end()

    def send_chunk(self, data: Buffer) -> None:
        """Send a chunk of that body."""
        self._inner.send_chunk(data)
        self._count((data,))

    def end_stream(self) -> None:
        """Complete a response that `start_stream` began."""
        super().end_stream()
        self._end()

    def _client_disconnected(self) -> None:
        self._end()
        super()._client_disconnected()

    def _count(self, parts: Sequence[Buffer]) -> None:
        self._caller.sent(sum(memoryview(part).nbytes for part in parts))

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._caller.end()


def _fault(head: Head, error: ShoalError) -> HttpFault:
    body = None
    if head.path.startswith(OPENAI):
        from shoal.frontends.http.openai import errors as openai  # not at start-up

        body = openai.error_body(error)
    return HttpFault(401, error.message, error_headers(error), body)
