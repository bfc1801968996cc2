"""Calls like the last one on their connection: recognised by their bytes, frames and all.

    HEADERS | WINDOW_UPDATE | DATA header, prefix | message     equal but for the stream's id
    '------------------- front -------------------'

Clients repeat themselves: with the same header block and a message of the same length, all that
stands before the message is the same, but for the stream's id. So it is put together with the id
that comes next and compared at once, instead of being read field by field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from shoal.frontends.grpc.flow import Stream
from shoal.frontends.grpc.headers import RequestHead

if TYPE_CHECKING:
    from shoal.frontends.grpc.call import Call
    from shoal.frontends.grpc.control import ControlFrames


class Form:
    """What a call that came whole looked like. It holds while its header block is remembered."""

    __slots__ = (
        "block",
        "front_bytes",
        "head",
        "increment",
        "known",
        "lane",
        "message_bytes",
        "pieces",
        "total_bytes",
    )

    def __init__(
        self, front: bytes, block: bytes, head: RequestHead, increment: int, message_bytes: int
    ) -> None:
        """`front` is all before the message; `increment` what its WINDOW_UPDATE granted, or 0."""
        id_places = [5, 9 + len(block) + 5]
        if increment:
            id_places.append(id_places[-1] + 4 + 4 + 5)
        ends = [0, *[place + 4 for place in id_places]]
        starts = [*id_places, len(front)]
        self.pieces = tuple([front[end:start] for end, start in zip(ends, starts, strict=True)])
        self.front_bytes = len(front)
        self.message_bytes = message_bytes
        self.total_bytes = len(front) + message_bytes
        self.block = block
        self.head = head
        self.increment = increment
        self.lane: Lane | None = None
        self.known: Any = None  # what its lane remembers of the last message


class UsualWay(Protocol):
    """How calls are made that are not familiar."""

    def accept(
        self, connection: ControlFrames, stream: Stream, head: RequestHead, message: bytes | None
    ) -> None:
        """Start a call on `stream`, with all that the client sends."""

    def call(self, connection: ControlFrames, stream: Stream, head: RequestHead) -> Call:
        """A call on `stream` to answer with; it is not started."""


class Lane(Protocol):
    """A short way for familiar calls."""

    def take(
        self, connection: ControlFrames, form: Form, stream_id: int, window: int, message: bytes
    ) -> bool:
        """Start a call with `message` on a stream to be made; false, with nothing done, if this
        one has to go the usual way."""

    def read_ended(self) -> None:
        """That was all for now from this connection: go on with what was taken, now or soon."""

    def hand_over(self) -> None:
        """Go on with what was taken: another call is about to go the usual way."""
