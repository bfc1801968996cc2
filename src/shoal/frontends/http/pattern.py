"""The patterns of HTTP requests on the fast path, and the call that a match begins.

    data --take--> HttpFastPathCall, and a PlannedRequest for the coalescer

A pattern is the bytes of a request with what changes left out: the id and the tensors of a
`BinaryPattern`; the id, the numbers and the Content-Length of a `JsonPattern`.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeAlias

from shoal.core.planned import PlannedRequest, RequestTemplate
from shoal.core.response import Response
from shoal.core.tensor import Buffer
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.exchange import ConnectionExchange
from shoal.frontends.http.infer import HttpInferCall
from shoal.frontends.http.message import Head, HttpRequest
from shoal.frontends.http.protocol import HttpConnection
from shoal.frontends.http.routes import Target
from shoal.wire.http_body import InferBody
from shoal.wire.json_frame import JsonFrame
from shoal.wire.template import is_plain_id

if TYPE_CHECKING:
    from shoal.access.caller import Caller
    from shoal.frontends.http.fast_path import HttpFastPath

MOST_LENGTH_DIGITS = 6  # of a body on the fast path


@lru_cache(maxsize=256)
def _places(start: int, sizes: tuple[int, ...]) -> tuple[slice, ...]:
    """Where tensors of these sizes are in a message, one behind the other. The requests to many
    models have the same places, which are the same in memory, too."""
    ends = list(accumulate(sizes, initial=start))
    return tuple([slice(*place) for place in pairwise(ends)])


class BinaryPattern:
    """The bytes of a request with its id and its tensors, which are bytes, left out."""

    __slots__ = (
        "_after",
        "_after_at",
        "_before",
        "_front_bytes",
        "_id_at",
        "_length",
        "_places",
        "binary",
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
        *,
        binary: bool,
    ) -> None:
        """`before` is everything up to the id, `after` what follows it up to the tensors. `binary`:
        whether the outputs are to be sent as bytes."""
        self.fast_path = fast_path
        self.template = template
        self.target = target
        self.head = head
        self.binary = binary
        self._before = before
        self._after = after
        self._after_at = len(before) + id_bytes
        self._id_at = slice(len(before), self._after_at) if id_bytes else None
        self._front_bytes = self._after_at + len(after)
        self._places = _places(self._front_bytes, template.sizes)
        self._length = self._front_bytes + sum(template.sizes)

    def take(self, connection: HttpConnection, data: bytes) -> HttpFastPathCall | None:
        """Begin a call with `data`, everything that arrived; None, with nothing changed, if it does
        not match or the template no longer holds."""
        if (
            len(data) != self._length
            or not data.startswith(self._before)  # which names the model
            or not data.startswith(self._after, self._after_at)
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
        call = fast_path.call_type(connection, self, request_id)
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

    def take_large(
        self, connection: HttpConnection, front: bytes, body: Buffer
    ) -> HttpFastPathCall | None:
        """As `take`, for a body that stays where it was received; `front` is what comes before the
        tensors: the head, and the JSON once more."""
        head_bytes = len(self.head.raw)
        if (
            len(front) != self._front_bytes
            or len(body) != self._length - head_bytes
            or not front.startswith(self._after, self._after_at)
            or not front.startswith(self._before)
        ):
            return None
        request_id = b"" if self._id_at is None else front[self._id_at]
        if request_id and not is_plain_id(request_id):
            return None
        places = [
            slice(place.start - head_bytes, place.stop - head_bytes) for place in self._places
        ]
        return _begin_call(self, connection, request_id, body, tuple(places))


class JsonPattern:
    """The bytes of a request with its Content-Length, its id and its lists of numbers left out."""

    __slots__ = (
        "_after_id",
        "_after_length",
        "_before",
        "_frame",
        "_has_id",
        "_head_end_bytes",
        "_most_bytes",
        "_parts",
        "binary",
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
        frame: JsonFrame,
        parts: tuple[bytes, bytes, bytes, bytes],
        most_bytes: int,
        *,
        binary: bool,
    ) -> None:
        """`parts` are what is before the Content-Length, after it in the head, in the body before
        the id, and after the id up to the first list; the last is empty where no id is first.
        `most_bytes` is the longest body that is accepted."""
        self.fast_path = fast_path
        self.template = template
        self.target = target
        self.head = head
        self.binary = binary
        self._frame = frame
        self._parts = parts
        self._before, head_end, body_start, self._after_id = parts
        self._head_end_bytes = len(head_end)
        self._after_length = head_end + body_start
        self._has_id = bool(self._after_id)
        self._most_bytes = most_bytes

    def is_of(self, template: RequestTemplate, parts: tuple[bytes, bytes, bytes, bytes]) -> bool:
        """Whether another one with these would match the same requests."""
        return self.template is template and self._parts == parts

    def take_large(
        self, _connection: HttpConnection, _front: bytes, _body: Buffer
    ) -> HttpFastPathCall | None:
        """A large body is parsed on a thread, by the slow path."""
        return None

    def take(self, connection: HttpConnection, data: bytes) -> HttpFastPathCall | None:
        """As `BinaryPattern.take`."""
        if not data.startswith(self._before):
            return None
        length_at = len(self._before)
        end = data.find(b"\r", length_at, length_at + MOST_LENGTH_DIGITS + 1)
        if end < 0 or not data.startswith(self._after_length, end):
            return None
        size = len(data) - end - self._head_end_bytes
        if size > self._most_bytes or data[length_at:end] != b"%d" % size:
            return None
        position = end + len(self._after_length)
        request_id = b""
        if self._has_id:
            end = data.find(b'"', position)
            if end < 0 or not data.startswith(self._after_id, end):
                return None
            request_id = data[position:end]
            if not request_id.isalnum() and not is_plain_id(request_id):
                return None
            position = end + len(self._after_id)
        frame = self._frame
        packed = frame.pack(data, position)
        if packed is None:
            return None
        return _begin_call(self, connection, request_id, packed, frame.places)


def _begin_call(
    pattern: HttpPattern,
    connection: HttpConnection,
    request_id: bytes,
    message: Buffer,
    places: tuple[slice, ...],
) -> HttpFastPathCall | None:
    """Begin a call whose tensors are at `places` in `message`; None if the template expired."""
    template = pattern.template
    fast_path = pattern.fast_path
    if fast_path.template is not template and not fast_path.begin(template):
        return None
    call = fast_path.call_type(connection, pattern, request_id)
    call.request = request = PlannedRequest(
        template,
        message,
        places,
        request_id.decode("ascii") if request_id else "",
        call,
        fast_path.model,
        fast_path.now_ns,
    )
    fast_path.requests.append(request)
    return call


HttpPattern: TypeAlias = BinaryPattern | JsonPattern


class HttpFastPathCall:
    """A request that matched: what its connection is busy with, and its reply."""

    caller: Caller | None = None  # whose key it has, where keys are required

    __slots__ = ("connection", "pattern", "request", "request_id")

    failure = b""  # an error is answered by an exchange
    model = ""  # its path has the name

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
        exchange = ConnectionExchange(HttpRequest(pattern.head), self.connection)
        if self.connection.continue_with(self, exchange):
            route = pattern.fast_path.route
            body = InferBody(binary_default=pattern.binary)
            through = self._respond_through(exchange)
            HttpInferCall(route, through, pattern.target, body).deliver(response)

    def _respond_through(self, exchange: ConnectionExchange) -> Exchange:
        """The exchange that responds instead of this call."""
        return exchange

    # ---- what the connection calls

    @property
    def head(self) -> Head:
        """The head of the request."""
        return self.pattern.head

    @property
    def received_bytes(self) -> int:
        """The size of the request."""
        head = self.pattern.head
        return len(head.raw) + head.body_length

    def client_disconnected(self) -> None:
        """Cancel the request."""
        request, self.request = self.request, None
        if request is not None:
            request.cancel()

    def client_writable(self) -> None:
        """Nothing waits for that: a response is written at once."""
