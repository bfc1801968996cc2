"""Requests by a platform's rules, as requests of our own API.

    POST /invocations --rewrite--> POST /v2/models/<model>/infer --> Application

Only the head of a request is rewritten, when it is parsed. Everything behind that is the same as on
the HTTP port: templates, keys, restrictions, limits, traces and the access log.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from shoal.errors import InvalidArgument, ShoalError, quoted
from shoal.frontends.http.application import Application
from shoal.frontends.http.errors import as_shoal_error, send_error
from shoal.frontends.http.exchange import ConnectionExchange
from shoal.frontends.http.infer import LENGTH_NAME
from shoal.frontends.http.message import Head

_LENGTH_FIELD = LENGTH_NAME.lower()
_NUMBER = re.compile(r"[ \t]*([+-]?[0-9]+)")
_LARGEST = 2**31 - 1
_NOT_PASSED = (b"accept", b"accept-encoding")


class RewrittenHead(Head):
    """The head of a request of our API, made from another one."""

    __slots__ = ("_sent_method",)

    def __init__(self, head: Head, method: str, path: str, json_bytes: int | None = None) -> None:
        """`json_bytes` is how much of the body is JSON, where bytes of tensors follow.

        Responses are never compressed: platforms do not pass `Content-Encoding` on. Their health
        checks want no body, whatever they accept.
        """
        fields = {name: value for name, value in head.fields.items() if name not in _NOT_PASSED}
        if json_bytes is not None:
            fields[_LENGTH_FIELD] = b"%d" % json_bytes
        super().__init__(
            raw=head.raw,
            method=method,
            target=head.target,
            path=path,
            query=head.query,
            version=head.version,
            headers=head.headers,
            fields=fields,
            body_length=head.body_length,
            tensor_offset=head.tensor_offset if json_bytes is None else json_bytes,
            keep_alive=head.keep_alive,
            expects_continue=head.expects_continue,
        )
        self._sent_method = head.method

    @property
    def sent_method(self) -> str:
        """The method of the request line."""
        return self._sent_method


def json_bytes(head: Head, media_type: str) -> int | None:
    """How much of the body is JSON, by a Content-Type of `media_type` followed by the number.

    None for another type: the whole body then. Raises InvalidArgument with Triton's texts.
    """
    sent = head.fields.get(b"content-type", b"").decode("latin-1")
    at = sent.find(media_type)
    if at < 0:
        return None
    if at > 0:
        raise InvalidArgument(
            f"expect MIME type for binary data starts with '{media_type}', got: {quoted(sent)}"
        )
    text = sent[len(media_type) :]
    match = _NUMBER.match(text)
    if match is None:
        raise InvalidArgument(f"Unable to parse inference header size, got: {quoted(text)}")
    if len(match[1]) > len(str(_LARGEST)) + 1 or abs(int(match[1])) > _LARGEST:
        raise InvalidArgument(
            "Unable to parse inference header size, value is out of range, got: " + quoted(text)
        )
    size = int(match[1])
    known = head.body_length >= 0 and b"content-encoding" not in head.fields
    if size < 0 or (known and size > head.body_length):
        end = head.body_length if known else _LARGEST
        raise InvalidArgument(
            f"inference header size should be in range (0, {end}), got: {quoted(text)}"
        )
    return size


class RewritingApplication(ABC):
    """Serves a port whose requests are rewritten. `rewrite` and `handle` are for its listener."""

    def __init__(self, application: Application) -> None:
        """`application` serves the requests of our own API."""
        self.application = application

    def rewrite(self, head: Head) -> Head | None:
        """The head to use in place of `head`; None if the request needs more than that."""
        try:
            return self._rewritten(head)
        except ShoalError:
            return None  # `_serve` raises it again

    def handle(self, exchange: ConnectionExchange) -> None:
        """Respond to `exchange`, exactly once, now or later. Never raises."""
        if isinstance(exchange.request.head, RewrittenHead):
            self.application.handle(exchange)
            return
        try:
            self._serve(exchange)
        except Exception as error:  # noqa: BLE001 - becomes the response
            send_error(exchange, as_shoal_error(error))

    @abstractmethod
    def _rewritten(self, head: Head) -> Head | None:
        """As `rewrite`; raises a ShoalError for a request that is wrong."""

    @abstractmethod
    def _serve(self, exchange: ConnectionExchange) -> None:
        """Respond to a request that was not rewritten. If this raises, there was no response."""
