"""From a byte stream to complete requests; no transport, no timer.

    feed(bytes) or fill(target) ... --take--> HttpRequest, one after the other

    NOTHING --first byte--> HEAD --empty line--> BODY --last byte--> NOTHING
      (a request that arrives in one piece is taken without the steps between)

The requests do not depend on how the stream is cut into pieces. A body of known length is
received straight into the memory it will stay in, and never a byte of the next request with it.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable

from shoal.frontends.http.body import SMALL_BYTES, BodyBuffer
from shoal.frontends.http.chunked import ChunkedDecoder
from shoal.frontends.http.head import check_partial_head
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.message import CHUNKED, GradualRequest, Head, HttpFault, HttpRequest
from shoal.frontends.memory_budget import MemoryBudget

_CARRIAGE_RETURN = 0x0D


class Arriving(enum.Enum):
    """What part of a request has begun to arrive."""

    NOTHING = "no byte of a request"
    HEAD = "part of a head"
    BODY = "a head and part of its body"


NOTHING, _HEAD, _BODY = Arriving


class RequestReader:
    """Reads the requests of one connection."""

    __slots__ = (
        "_body",
        "_clock",
        "_counted",
        "_decoder",
        "_head",
        "_limits",
        "_memory",
        "_parse_head",
        "_position",
        "_scanned",
        "arriving",
        "begun_ns",
        "inbox",
        "owes_continue",
        "progress",
        "target",
    )

    def __init__(
        self,
        parse_head: Callable[[bytes, HttpLimits], Head],
        limits: HttpLimits,
        memory: MemoryBudget,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`clock` is read where a body begins, never to decide anything."""
        self._parse_head = parse_head
        self._limits = limits
        self._memory = memory
        self._clock = clock
        self.begun_ns = 0  # when the body began, if one is arriving
        self.arriving = NOTHING
        self.progress = 0  # changes whenever a client that is expected to send has sent enough
        self.owes_continue = False  # the client waits for a 100 before it sends its body
        self.target: memoryview | None = None  # where the next bytes belong; None: use `feed`
        # What has arrived and is not part of a request yet, from _position on; empty without any.
        self.inbox = b""
        self._position = 0
        self._scanned = 0  # up to here the inbox holds no end of a head
        # While a body is arriving, its head and one of these:
        self._head: Head | None = None
        self._body: BodyBuffer | None = None
        self._decoder: ChunkedDecoder | None = None
        self._counted = 0  # of a large body: our part of the memory budget's unfinished bytes

    @property
    def head(self) -> Head | None:
        """The head whose body is arriving."""
        return self._head

    @property
    def body_bytes(self) -> int:
        """How much of the body has arrived."""
        body = self._decoder.body if self._decoder is not None else self._body
        return 0 if body is None else body.filled

    @property
    def waiting_bytes(self) -> int:
        """How much has been fed and not been taken."""
        return len(self.inbox) - self._position

    def feed(self, data: bytes) -> None:
        """Add bytes that arrived while `target` was None."""
        if self.inbox:
            data = self.inbox[self._position :] + data
            self._scanned -= self._position
        self.inbox = data
        self._position = 0

    def fill(self, count: int) -> bool:
        """Count in bytes that were written to `target`; true when a request is complete.

        Raises HttpFault if the clients have sent more than the server may buffer.
        """
        body = self._body
        assert body is not None
        body.advance(count)
        self.progress += 1
        self._count(body)
        self.target = None if body.complete else body.room()
        return body.complete

    def take(self) -> HttpRequest | None:
        """The next request, or None when more has to arrive first.

        Raises HttpFault for one that cannot be served; nothing can be read after it.
        """
        if self._head is not None:
            return self._take_body(self._head)
        data = self.inbox
        if not data:
            return None
        start = self._position
        if data[start] == _CARRIAGE_RETURN:  # empty lines before a request are allowed
            while data.startswith(b"\r\n", start):
                start += 2
            if len(data) - start <= 1 and data[start:] in (b"", b"\r"):
                self._keep_from(start)
                return None
        end = data.find(b"\r\n\r\n", max(start, self._scanned - 3))
        if end < 0:
            self._await_head(start)
            return None
        end += 4
        head = self._parse_head(data[start:end], self._limits)
        length = head.body_length
        if 0 <= length <= SMALL_BYTES:
            body_end = end + length
            if body_end <= len(data):
                self._keep_from(body_end)
                self.arriving = NOTHING
                self.progress += 1
                return HttpRequest(head, data[end:body_end])
        return self._begin_body(head, end)

    def drop(self) -> None:
        """Drop everything, and free its memory."""
        self._keep_from(len(self.inbox))
        self._head = self._body = self._decoder = self.target = None
        self.arriving = NOTHING
        self._uncount()

    def _keep_from(self, position: int) -> None:
        """Everything before `position` has been dealt with."""
        if position == len(self.inbox):
            self.inbox = b""
            position = 0
        self._position = position
        self._scanned = 0

    def _await_head(self, start: int) -> None:
        """The head that begins at `start` is not complete."""
        if self.arriving is NOTHING:
            self.arriving = _HEAD
            self.progress += 1
        partial = self.inbox[start:]
        check_partial_head(partial, max(self._scanned - start, 0), self._limits)
        self.inbox = partial
        self._position = 0
        self._scanned = len(partial)

    def _begin_body(self, head: Head, start: int) -> HttpRequest | None:
        """A body follows whose beginning, maybe all of it, is in the inbox from `start` on."""
        self._head = head
        self.begun_ns = self._clock()
        self.arriving = _BODY
        if head.body_length == CHUNKED:
            self._keep_from(start)
            self._decoder = ChunkedDecoder(BodyBuffer(head.tensor_offset, None), self._limits)
        else:
            if head.body_length > SMALL_BYTES and not self._memory.has_room(head.body_length):
                raise HttpFault(503, self._memory.refusal)
            end = min(start + head.body_length, len(self.inbox))
            body = BodyBuffer(head.tensor_offset, head.body_length)
            body.append(memoryview(self.inbox)[start:end])
            self._keep_from(end)
            self._body = body
            self.target = None if body.complete else body.room()
        request = self._take_body(head)
        self.owes_continue = request is None and head.expects_continue
        return request

    def _take_body(self, head: Head) -> HttpRequest | None:
        """The request once its body is complete."""
        self.progress += 1
        decoder = self._decoder
        if decoder is not None:
            data = self.inbox[self._position :]
            self._keep_from(len(self.inbox))
            complete = decoder.feed(data)
            body = decoder.body
            self._count(body)
            if not complete:
                return None
            self.inbox = decoder.rest
        else:
            assert self._body is not None
            body = self._body
            if not body.complete:
                return None
        self._head = self._body = self._decoder = None
        self.arriving = NOTHING
        content = body.take()
        if self._counted:
            self._uncount()
            assert isinstance(content, memoryview), "it is large"
            self._memory.hold(content)
        return GradualRequest(head, content, self.begun_ns)

    def _count(self, body: BodyBuffer) -> None:
        """Count what has arrived of a large body. Raises HttpFault beyond the budget."""
        if body.filled <= SMALL_BYTES:
            return
        memory = self._memory
        memory.unfinished_bytes += body.filled - self._counted
        self._counted = body.filled
        if not memory.has_room(0):
            raise HttpFault(503, memory.refusal)

    def _uncount(self) -> None:
        self._memory.unfinished_bytes -= self._counted
        self._counted = 0
