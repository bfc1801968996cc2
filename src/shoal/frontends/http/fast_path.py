"""The fast path of HTTP inference: requests that match a template, bytes and all.

    connection --data--> HttpPattern.take --> call, PlannedRequest --> Coalescer
    connection <--one write per call-- write_all, once per batch <-------'

A client's requests are alike but for their ids and their tensors. Here they are compared, from the
first byte of their head, with one that was parsed and accepted before, so that nothing is parsed
again and a call is one object. What does not match takes the slow path (`infer`), and so does a
response that cannot be written with those of its batch.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from shoal.core.planned import PlannedRequest, PlannedResponses, RequestTemplate
from shoal.core.request import Request
from shoal.errors import Forbidden, QueueRejected
from shoal.frontends.coalescer import Coalescer
from shoal.frontends.http.browsers import BrowserRules
from shoal.frontends.http.errors import JSON, STATUS, as_shoal_error, error_headers
from shoal.frontends.http.infer import DECOUPLED, LENGTH_NAME, InferRoute
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.message import Head, HttpRequest, error_body, response_lines
from shoal.frontends.http.pattern import (
    MOST_LENGTH_DIGITS,
    BinaryPattern,
    HttpFastPathCall,
    HttpPattern,
    JsonPattern,
)
from shoal.frontends.http.planned_responses import ResponseWriter, writer_for
from shoal.frontends.http.protocol import HttpConnection
from shoal.frontends.http.routes import Target, resolve
from shoal.statistics.recent_errors import recent_errors
from shoal.wire import json_frame
from shoal.wire.http_body import InferBody
from shoal.wire.json_frame import JsonFrame
from shoal.wire.template import LONGEST_KEY, TemplateCache, split_json_id

_ID_KEY = b'{"id":'
_ID_PREFIX = "[request id: "  # of errors
_LENGTH_FIELD = LENGTH_NAME.lower()
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)
_LONGEST_LINE_BYTES = 512  # of requests on the fast path
_MOST_PATTERNS = 16  # with one request line
_MOST_MISSES = 8  # searches for a pattern in a row without success; then there are fewer
_MISSES_PER_SEARCH = 64
_LARGEST_REQUEST_BYTES = 64 * 1024  # what a connection reads at once


class _HttpTemplate(NamedTuple):
    """A template, and how its requests and responses are written."""

    template: RequestTemplate
    frame: JsonFrame | None  # None: its tensors are bytes
    binary: bool  # whether its outputs are to be sent as bytes


class HttpFastPath(Coalescer):
    """The templates of one listener, and the requests that match them."""

    binary_pattern: type[BinaryPattern] = BinaryPattern
    json_pattern: type[JsonPattern] = JsonPattern
    call_type: type[HttpFastPathCall] = HttpFastPathCall
    connection_type: type[HttpConnection] = HttpConnection

    def __init__(self, route: InferRoute, browsers: BrowserRules) -> None:
        """`route` is the slow path; what it accepts becomes a template here."""
        super().__init__(route.engine, route.inbox, (self.call_type,), as_shoal_error, DECOUPLED)
        self.route = route
        self._browsers = browsers
        self._longest_header = min(LONGEST_KEY, route.options.max_input_bytes)
        route.on_accepted = self._learn
        self.limits = HttpLimits()  # of the listener, which sets them
        self._templates: TemplateCache[_HttpTemplate] = TemplateCache()
        self._last_after = b""  # the id, of the last pattern
        # By request line, for all connections. A model has few: one for each kind of client and
        # each length of its ids.
        self._patterns: TemplateCache[tuple[HttpPattern, ...]] = TemplateCache()
        # Searches in a row without success, by request line: the first request to each of many
        # models has none, and says nothing about the others.
        self._misses: TemplateCache[int] = TemplateCache()

    # ---- in

    def candidates(self, data: bytes) -> Sequence[HttpPattern]:
        """The patterns that `data` may match: those with its request line."""
        end = data.find(b"\r\n", 0, _LONGEST_LINE_BYTES)
        return self._patterns.get(data[:end]) or ()

    def search(self, head: Head, data: bytes) -> HttpPattern | None:
        """As `find`, unless several searches for requests like `data` had no success."""
        line = head.raw[: head.raw.index(b"\r\n")]
        misses = self._misses.get(line) or 0
        pattern = None
        if misses < _MOST_MISSES or not misses % _MISSES_PER_SEARCH:
            pattern = self.find(head, data)
        if pattern is not None:
            self._misses.evict(line)
        elif self._may_send(head):  # what is refused says nothing about other requests
            self._misses.put(line, misses + 1, len(line))
        return pattern

    def find(self, head: Head, data: bytes) -> HttpPattern | None:
        """A new pattern for requests like `data`, which is one with `head` and matches no other;
        of a large request, it is what comes before the tensors. None if there is no template for
        it, or if it comes from a web page that may not send it.

        What matches a pattern has the same head, byte by byte, so it is checked only here.
        """
        if (
            head.method != "POST"
            or not head.keep_alive
            or head.version != "1.1"
            or head.body_length < len(data) - len(head.raw)
            or self._engine.tracer.active
        ):
            return None
        target = resolve(head.path)
        if target is None or target.route.name != "infer":
            return None
        if not self._may_send(head):
            return None  # the slow path responds
        if head.plain_offset:
            return self._find_binary(head, target, data)
        if head.plain and _LENGTH_FIELD not in head.fields:
            return self._find_json(head, target, data)
        return None

    def _may_send(self, head: Head) -> bool:
        """Whether it comes from a program, or from a web page that may call the server."""
        try:
            self._browsers.check(head.method, head.fields.get)
        except Forbidden:
            return False
        return True

    def _find_binary(self, head: Head, target: Target, data: bytes) -> BinaryPattern | None:
        offset, body_at = head.plain_offset, len(head.raw)
        if offset > min(self._longest_header, head.body_length):
            return None
        request_id, rest = split_json_id(data[body_at : body_at + offset])
        known = self._templates.get((target.model, target.version, request_id is None, rest))
        if known is None or known.frame is not None or known.template.live_model() is None:
            return None
        id_at = body_at
        id_bytes = 0
        if request_id is not None:
            id_at = data.index(b'"', body_at + len(_ID_KEY)) + 1
            id_bytes = len(request_id)
        before = data[:id_at]
        after = data[id_at + id_bytes : body_at + offset]
        if after == self._last_after:  # requests to many models read the same memory
            after = self._last_after
        self._last_after = after
        template, _, binary = known
        pattern = self.binary_pattern(
            self, template, target, head, before, after, id_bytes, binary=binary
        )
        self._add_candidate(head, pattern, body_at + offset)
        return pattern

    def _find_json(self, head: Head, target: Target, data: bytes) -> JsonPattern | None:
        body_at = len(head.raw)
        cut = json_frame.cut(data, body_at)
        if cut is None or body_at + MOST_LENGTH_DIGITS > self.limits.max_head_bytes:
            return None
        known = self._templates.get((target.model, target.version, *cut.key))
        frame = None if known is None else known.frame
        if known is None or frame is None or known.template.live_model() is None:
            return None
        length = _CONTENT_LENGTH.search(head.raw)
        if length is None:
            return None
        id_at = id_end = cut.lists[0].start
        if cut.request_id is not None:
            id_at = data.index(b'"', body_at + len(_ID_KEY)) + 1
            id_end = id_at + len(cut.request_id)
        parts = (
            head.raw[: length.start(1)],
            head.raw[length.end(1) :],
            data[body_at:id_at],
            data[id_end : cut.lists[0].start],
        )
        for other in self.candidates(data):
            if isinstance(other, JsonPattern) and other.is_of(known.template, parts):
                return None  # it did not match because of its numbers
        limits = [_LARGEST_REQUEST_BYTES, self.route.options.max_input_bytes]
        if self.limits.max_body_bytes is not None:
            limits.append(self.limits.max_body_bytes)
        template, _, binary = known
        most_bytes = min(limits)
        pattern = self.json_pattern(
            self, template, target, head, frame, parts, most_bytes, binary=binary
        )
        self._add_candidate(head, pattern, sum(map(len, parts)) + frame.key_bytes)
        return pattern

    def _add_candidate(self, head: Head, pattern: HttpPattern, pattern_bytes: int) -> None:
        """Keep a pattern before the others that have its request line."""
        key = self._cache_key(head.raw)
        others = self._patterns.get(key) or ()
        most = min(_MOST_PATTERNS, LONGEST_KEY // pattern_bytes)
        live = [other for other in others if other.template.live_model() is not None]
        patterns = (pattern, *live[: max(0, most - 1)])
        self._patterns.put(key, patterns, min(len(patterns) * pattern_bytes, LONGEST_KEY))

    def _cache_key(self, head: bytes) -> Hashable:
        """Under which `candidates` finds patterns with such a head."""
        return head[: head.index(b"\r\n")]

    def _learn(
        self, request: HttpRequest, target: Target, body: InferBody, accepted: Request
    ) -> None:
        """Make a template of a request that the engine has accepted, if others can match it."""
        frame = body.frame
        if (
            body.template_key is None
            or not request.plain
            or (frame is None and not request.plain_offset)
            or (frame is not None and len(request.body) > _LARGEST_REQUEST_BYTES)
            or (frame is not None and frame.nbytes > _LARGEST_REQUEST_BYTES)
        ):
            return
        formats = {output.binary for output in body.outputs} or {body.binary_default}
        if len(formats) > 1 or any(output.classification for output in body.outputs):
            return
        key = (target.model, target.version, *body.template_key)
        known = self._templates.get(key)
        if known is not None and known.template.live_model() is accepted.served_by:
            return
        template = RequestTemplate.of(accepted, body.inputs, self)
        if template is not None:
            (binary,) = formats
            key_bytes = frame.key_bytes if frame is not None else len(body.template_key[1])
            self._templates.put(key, _HttpTemplate(template, frame, binary), key_bytes)

    # ---- out

    def write_refusals(
        self, error: QueueRejected, requests: Sequence[PlannedRequest]
    ) -> Sequence[PlannedRequest]:
        """The bytes that `send_error` would write; see `Coalescer`."""
        left: list[PlannedRequest] = []
        status = STATUS[error.code]
        lines = response_lines(status, [JSON, *error_headers(error)])
        front, back = error_body(_ID_PREFIX + "%b] " + error.reason.replace("%", "%%")).split(b"%b")
        form = b"".join((lines, b"Content-Length: %d\r\n%b\r\n", front, b"%b", back))
        length = len(front) + len(back % ())
        for request in requests:
            call: Any = request.reply  # an HttpFastPathCall
            request_id = call.request_id or b"<id_unknown>"
            connection = call.connection
            whole = form % (length + len(request_id), connection.date_line, request_id)
            if connection.refuse_with(call, whole):
                call.request = None
            else:
                left.append(request)
        if len(left) < len(requests):
            place = f"{call.head.method} {call.head.path}"
            count = len(requests) - len(left)
            recent_errors.note("HTTP", place, str(status), error.reason, count=count)
        return left

    def write_all(self, responses: PlannedResponses, requests: Sequence[PlannedRequest]) -> None:
        """One write per call; see `Coalescer`."""
        layout = responses.layout
        writer: ResponseWriter | None = layout.encoded
        if writer is None:
            call: Any = requests[0].reply
            binary = call.pattern.binary
            writer = layout.encoded = writer_for(layout, self.route.options, binary=binary)
        if writer is None or not writer.write(responses, requests):
            self.write_individually(responses, requests)
