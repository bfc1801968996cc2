"""The fast path of HTTP where requests need a key: quotas are counted, nothing is looked up.

A pattern has the head of a request, and with it the key, byte by byte. So whose key it is and
whether it permits the model is found when the pattern is made; a request that matches it costs one
`Caller.admit`. What a quota refuses takes the slow path, which responds.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from shoal.access.caller import Caller
from shoal.core.tensor import Buffer
from shoal.frontends.http.browsers import BrowserRules
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.exchange import ConnectionExchange
from shoal.frontends.http.fast_path import HttpFastPath
from shoal.frontends.http.infer import InferRoute
from shoal.frontends.http.keys import HttpKeys, KeyedExchange
from shoal.frontends.http.message import Head
from shoal.frontends.http.pattern import (
    BinaryPattern,
    HttpFastPathCall,
    HttpPattern,
    JsonPattern,
)
from shoal.frontends.http.protocol import HttpConnection

_API = "inference"
_END = b"\r\n\r\n"


class KeyedHttpFastPathCall(HttpFastPathCall):
    """A call that ends a request of its caller, once."""

    __slots__ = ("caller",)

    caller: Caller | None

    def client_disconnected(self) -> None:
        """Cancel the request."""
        caller, self.caller = self.caller, None
        if caller is not None:
            caller.end()
        super().client_disconnected()

    def _respond_through(self, exchange: ConnectionExchange) -> Exchange:
        caller, self.caller = self.caller, None
        if caller is None:
            return exchange
        exchange.caller = caller
        return KeyedExchange(exchange, caller)


class KeyedHttpConnection(HttpConnection):
    """A connection whose responses to calls of the fast path are counted."""

    __slots__ = ()

    def finish_with(self, call: Any, response: bytes) -> bool:
        """Write the response to `call`; see `HttpConnection`."""
        if not HttpConnection.finish_with(self, call, response):
            return False
        caller, call.caller = call.caller, None
        if caller is not None:
            caller.finish(len(response) - response.find(_END) - len(_END))
        return True


class _KeyedPattern:
    """What patterns with a key have in common: all requests of one are from one caller."""

    __slots__ = ()

    if TYPE_CHECKING:
        caller: Caller
        fast_path: Any

    def admit(self, call: Any, data: bytes, size: int) -> HttpFastPathCall | None:
        """The call that `data` has begun, with a body of `size` bytes; None, with nothing done, if
        a quota is used up."""
        fast_path = self.fast_path
        caller = self.caller
        if caller.admit(size, fast_path.now_ns):
            call.caller = caller
            return call  # type: ignore[no-any-return]
        fast_path.requests.pop()
        fast_path.refused = data
        call.request = None
        if fast_path.now_ns >= caller.ends_ns:  # its entry has changed
            fast_path.find_caller(self)
        return None


class KeyedBinaryPattern(_KeyedPattern, BinaryPattern):
    """A pattern of requests whose tensors are bytes."""

    __slots__ = ("caller",)

    def take(self, connection: HttpConnection, data: bytes) -> HttpFastPathCall | None:
        """See `BinaryPattern`."""
        call = BinaryPattern.take(self, connection, data)
        return None if call is None else self.admit(call, data, len(data) - len(self.head.raw))

    def take_large(
        self, connection: HttpConnection, front: bytes, body: Buffer
    ) -> HttpFastPathCall | None:
        """See `BinaryPattern`."""
        call = BinaryPattern.take_large(self, connection, front, body)
        return None if call is None else self.admit(call, front, len(body))


class KeyedJsonPattern(_KeyedPattern, JsonPattern):
    """A pattern of requests whose tensors are JSON."""

    __slots__ = ("caller",)

    def take(self, connection: HttpConnection, data: bytes) -> HttpFastPathCall | None:
        """See `JsonPattern`."""
        call = JsonPattern.take(self, connection, data)
        return None if call is None else self.admit(call, data, len(data) - len(self.head.raw))

    def take_large(
        self, connection: HttpConnection, front: bytes, body: Buffer
    ) -> HttpFastPathCall | None:
        """See `JsonPattern`."""
        call = JsonPattern.take_large(self, connection, front, body)
        return None if call is None else self.admit(call, front, len(body))


class KeyedHttpFastPath(HttpFastPath):
    """The templates of one listener, and the patterns of its clients' keys."""

    binary_pattern = KeyedBinaryPattern
    json_pattern = KeyedJsonPattern
    call_type = KeyedHttpFastPathCall
    connection_type = KeyedHttpConnection

    def __init__(self, route: InferRoute, browsers: BrowserRules, keys: HttpKeys) -> None:
        super().__init__(route, browsers)
        self._keys = keys
        self.refused: bytes | None = None  # the last request that was over its quota
        names = b"|".join(re.escape(name.encode()) for name in keys.access.secret_headers)
        self._credentials = re.compile(
            rb"\r\n(?:%b):([^\r]*)(?=\r\n)" % names, re.IGNORECASE
        ).findall

    def candidates(self, data: bytes) -> Sequence[HttpPattern]:
        """The patterns that `data` may match: those with its request line and key."""
        end = data.find(_END)
        return () if end < 0 else self._patterns.get(self._cache_key(data[: end + 2])) or ()

    def find(self, head: Head, data: bytes) -> HttpPattern | None:
        """As `HttpFastPath.find`; None, too, if the key does not permit the request, or if there
        is a pattern and the quota is used up."""
        refused, self.refused = self.refused, None
        if data is refused:
            return None
        pattern = super().find(head, data)
        return pattern if pattern is not None and self.find_caller(pattern) else None

    def find_caller(self, pattern: Any) -> bool:
        """Find whose key the pattern has; false if it does not permit the request."""
        caller = self._keys.known_caller(pattern.head.fields.get)
        if caller is None or not caller.permits(_API, pattern.target.model):
            return False  # the slow path responds
        pattern.caller = caller
        return True

    def _cache_key(self, head: bytes) -> Hashable:
        """The request line and the key: found by a hash, because a comparison with the heads of
        other clients would take the longer, the more of a key is right; and because clients are
        many."""
        return super()._cache_key(head), tuple(self._credentials(head))

    def _add_candidate(self, head: Head, pattern: HttpPattern, pattern_bytes: int) -> None:
        """Keep a pattern, if its key permits such requests."""
        if self.find_caller(pattern):
            super()._add_candidate(head, pattern, pattern_bytes)
