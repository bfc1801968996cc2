"""The fast path of HTTP inference: requests that match a template, bytes and all.

    connection --data--> HttpPattern.take --> call, PlannedRequest --> Coalescer
    connection <--one write per call-- write_all, once per batch <-------'

A client's requests are alike but for their ids and their tensors. Here they are compared, from the
first byte of their head, with one that was parsed and accepted before, so that nothing is parsed
again and a call is one object. What does not match takes the slow path (`infer`), and so does a
response that cannot be written with those of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.core.dtypes import BYTES
from shoal.core.planned import PlannedRequest, PlannedResponses, RequestTemplate
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.errors import Forbidden
from shoal.frontends.coalescer import Coalescer
from shoal.frontends.http.browsers import BrowserRules
from shoal.frontends.http.errors import as_shoal_error
from shoal.frontends.http.exchange import ConnectionExchange
from shoal.frontends.http.infer import DECOUPLED, LENGTH_NAME, HttpInferCall, InferRoute
from shoal.frontends.http.message import Head, HttpRequest, response_lines
from shoal.frontends.http.protocol import HttpConnection
from shoal.frontends.http.routes import Target, resolve
from shoal.wire.http_body import BINARY_TYPE, InferBody, binary_json
from shoal.wire.template import LONGEST_KEY, TemplateCache, is_plain_id, split_json_id

_ID_KEY = b'{"id":'
_LONGEST_LINE_BYTES = 512  # of requests on the fast path
_MOST_PATTERNS = 16  # with one request line
_LARGEST_REQUEST_BYTES = 64 * 1024  # what a connection reads at once
_LARGEST_RESPONSE_BYTES = 16 * 1024  # larger ones are sent from where they are
_HEAD_LINES = response_lines(200, [(b"Content-Type", BINARY_TYPE), (LENGTH_NAME, b"%d")])
_WITH_ID = b'\r\n{"id":"'
_WITHOUT_ID = b"\r\n{"


class HttpPattern:
    """The bytes of a request that arrived in one piece, with its id and its tensors left out."""

    __slots__ = (
        "_after",
        "_after_at",
        "_before",
        "_id_at",
        "_length",
        "_places",
        "fast_path",
        "head",
        "target",
        "template",
    )

    def __init__(
        self,
        fast_path: HttpFastPath,
        template: RequestTemplate,
        target: Target,
        head: Head,
        before: bytes,
        after: bytes,
        id_bytes: int,
    ) -> None:
        """`before` is everything up to the id, `after` what follows it up to the tensors."""
        self.fast_path = fast_path
        self.template = template
        self.target = target
        self.head = head
        self._before = before
        self._after = after
        self._after_at = len(before) + id_bytes
        self._id_at = slice(len(before), self._after_at) if id_bytes else None
        end = self._after_at + len(after)
        places = []
        for size in template.sizes:
            places.append(slice(end, end + size))
            end += size
        self._places = tuple(places)
        self._length = end

    def take(self, connection: HttpConnection, data: bytes) -> HttpFastPathCall | None:
        """Begin a call with `data`, everything that arrived; None, with nothing changed, if it does
        not match or the template no longer holds."""
        if (
            len(data) != self._length
            or not data.startswith(self._after, self._after_at)
            or not data.startswith(self._before)
        ):
            return None
        request_id = b""
        if self._id_at is not None:
            request_id = data[self._id_at]
            if not request_id.isalnum() and not is_plain_id(request_id):
                return None
        template = self.template
        fast_path = self.fast_path
        if fast_path.template is not template and not fast_path.begin(template):
            return None
        call = HttpFastPathCall(connection, self, request_id)
        call.request = request = PlannedRequest(
            template,
            data,
            self._places,
            request_id.decode("ascii") if request_id else "",
            call,
            fast_path.model,
            fast_path.now_ns,
        )
        fast_path.requests.append(request)
        return call


class _ResponseHeads:
    """What stands before and after the id in responses of one layout, up to the tensors."""

    __slots__ = ("_json", "_made", "_tensor_bytes")

    def __init__(self, json: bytes, tensor_bytes: int) -> None:
        """`json` is the JSON after the id."""
        self._json = json
        self._tensor_bytes = tensor_bytes
        self._made = (-1, b"", b"", b"")  # for the last length of an id, and the last second

    def around(self, id_bytes: int, date_line: bytes) -> tuple[bytes, bytes]:
        """The two parts, for an id of `id_bytes` bytes and the current Date header."""
        made_for, date, front, after = self._made
        if made_for != id_bytes or date is not date_line:
            after = b'",' + self._json if id_bytes else self._json
            opening = _WITH_ID if id_bytes else _WITHOUT_ID
            json_bytes = len(opening) - 2 + id_bytes + len(after)
            length = b"Content-Length: %d\r\n" % (json_bytes + self._tensor_bytes)
            front = b"".join((_HEAD_LINES % json_bytes, length, date_line, opening))
            self._made = (id_bytes, date_line, front, after)
        return front, after


class HttpFastPath(Coalescer):
    """The templates of one listener, and the requests that match them."""

    def __init__(self, route: InferRoute, browsers: BrowserRules) -> None:
        """`route` is the slow path; what it accepts becomes a template here."""
        super().__init__(route.engine, route.inbox, HttpFastPathCall, as_shoal_error, DECOUPLED)
        self.route = route
        self._browsers = browsers
        self._longest_header = min(LONGEST_KEY, route.options.max_input_bytes)
        route.on_accepted = self._learn
        self._templates: TemplateCache[RequestTemplate] = TemplateCache()
        # By request line, for all connections. A model has few: one for each kind of client and
        # each length of its ids.
        self._patterns: TemplateCache[tuple[HttpPattern, ...]] = TemplateCache()

    # ---- in

    def candidates(self, data: bytes) -> Sequence[HttpPattern]:
        """The patterns that `data` may match: those with its request line."""
        end = data.find(b"\r\n", 0, _LONGEST_LINE_BYTES)
        return self._patterns.get(data[:end]) or ()

    def find(self, head: Head, data: bytes) -> HttpPattern | None:
        """A new pattern for requests like `data`, which is one with `head` and matches no other.
        None if there is no template for it, or if it comes from a web page that may not send it.

        What matches a pattern has the same head, byte by byte, so it is checked only here.
        """
        offset, body_at = head.plain_offset, len(head.raw)
        if (
            head.method != "POST"
            or not head.keep_alive
            or head.version != "1.1"
            or not 0 < offset <= min(self._longest_header, head.body_length)
            or head.body_length != len(data) - body_at
        ):
            return None
        target = resolve(head.path)
        if target is None or target.route.name != "infer":
            return None
        try:
            self._browsers.check(head.method, head.fields.get)
        except Forbidden:
            return None  # the slow path responds
        request_id, rest = split_json_id(data[body_at : body_at + offset])
        template = self._templates.get((target.model, target.version, request_id is None, rest))
        if template is None or template.live_model() is None or self._engine.tracer.active:
            return None
        id_at = body_at
        id_bytes = 0
        if request_id is not None:
            id_at = data.index(b'"', body_at + len(_ID_KEY)) + 1
            id_bytes = len(request_id)
        before = data[:id_at]
        after = data[id_at + id_bytes : body_at + offset]
        pattern = HttpPattern(self, template, target, head, before, after, id_bytes)
        self._add_candidate(head, pattern, body_at + offset)
        return pattern

    def _add_candidate(self, head: Head, pattern: HttpPattern, pattern_bytes: int) -> None:
        """Keep a pattern before the others that have its request line."""
        line = head.raw[: head.raw.index(b"\r\n")]
        others = self._patterns.get(line) or ()
        most = min(_MOST_PATTERNS, LONGEST_KEY // pattern_bytes)
        live = [other for other in others if other.template.live_model() is not None]
        patterns = (pattern, *live[: max(0, most - 1)])
        self._patterns.put(line, patterns, min(len(patterns) * pattern_bytes, LONGEST_KEY))

    def _learn(
        self, request: HttpRequest, target: Target, body: InferBody, accepted: Request
    ) -> None:
        """Make a template of a request that the engine has accepted, if others can match it."""
        if (
            body.template_key is None
            or not request.plain_offset
            or len(request.body) > _LARGEST_REQUEST_BYTES
            or (not body.outputs and not body.binary_default)
            or any(not output.binary or output.classification for output in body.outputs)
        ):
            return
        key = (target.model, target.version, *body.template_key)
        known = self._templates.get(key)
        if known is not None and known.live_model() is accepted.served_by:
            return
        template = RequestTemplate.of(accepted, body.inputs, self)
        if template is not None:
            self._templates.put(key, template, len(body.template_key[1]))

    # ---- out

    def write_all(self, responses: PlannedResponses, requests: Sequence[PlannedRequest]) -> None:
        """One write per call; see `Coalescer`."""
        layout = responses.layout
        heads: _ResponseHeads | None = layout.encoded
        if heads is None:
            outputs = [
                (*output, size) for output, size in zip(layout.outputs, layout.sizes, strict=True)
            ]
            json = binary_json(layout.model_name, layout.model_version, tuple(outputs))
            strings = any(datatype is BYTES for _, datatype, _ in layout.outputs)
            if json is None or strings or layout.total_bytes > _LARGEST_RESPONSE_BYTES:
                self.write_individually(responses, requests)
                return
            heads = layout.encoded = _ResponseHeads(json, layout.total_bytes)
        id_bytes = -1
        front = after = b""
        rows = zip(*responses.columns(), strict=True)
        for index, (request, row) in enumerate(zip(requests, rows, strict=True)):
            call: Any = request.reply  # an HttpFastPathCall; a `cast` takes 5 % of this loop
            request_id = call.request_id
            if len(request_id) != id_bytes:
                id_bytes = len(request_id)
                front, after = heads.around(id_bytes, call.connection.date_line)
            whole = b"".join((front, request_id, after, *row))
            if call.connection.finish_with(call, whole):
                call.request = None  # which refers to this call: both are freed at once
            else:
                call.deliver(responses.response(index, request.id))


class HttpFastPathCall:
    """A request that arrived in one piece: what its connection is busy with, and its reply."""

    __slots__ = ("connection", "pattern", "request", "request_id")

    def __init__(self, connection: HttpConnection, pattern: HttpPattern, request_id: bytes) -> None:
        self.connection = connection
        self.pattern = pattern
        self.request_id = request_id
        self.request: PlannedRequest | None = None  # None: it has its response, or no client

    # ---- what the engine calls (Reply)

    def send(self, response: Response) -> None:
        """Take a response from the thread that made it."""
        self.pattern.fast_path.inbox.post(self.deliver, response)

    def deliver(self, response: Response) -> None:
        """Answer as the slow path does, on the loop; nothing happens if the client disconnected."""
        request = self.request
        if request is None or not response.final:
            return
        self.request = None
        pattern = self.pattern
        received = HttpRequest(pattern.head, request.message[len(pattern.head.raw) :])
        exchange = ConnectionExchange(received, self.connection)
        if self.connection.continue_with(self, exchange):
            route = pattern.fast_path.route
            body = InferBody(binary_default=True)
            HttpInferCall(route, exchange, pattern.target, body).deliver(response)

    # ---- what the connection calls

    def client_disconnected(self) -> None:
        """Cancel the request."""
        request, self.request = self.request, None
        if request is not None:
            request.cancel()

    def client_writable(self) -> None:
        """Nothing waits for that: a response is written at once."""
