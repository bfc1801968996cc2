"""Calls like the last ones on their connection: matched by their bytes, frames and all.

    HEADERS | WINDOW_UPDATE | DATA header, prefix | message     equal but for the stream's id
    '------------------- front -------------------'

Clients repeat themselves: with the same header block and a message of the same length, everything
before the message is the same, but for the stream's id. So it is put together with the id that
comes next and compared at once, instead of being read field by field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.frontends.grpc.headers import RequestHead
from shoal.wire.grpc_pattern import MessagePattern

if TYPE_CHECKING:
    from shoal.access.caller import Caller
    from shoal.core.planned import RequestTemplate
    from shoal.frontends.grpc.fast_path import GrpcFastPath


class CallPattern:
    """The frames of a call that arrived in one piece. It holds while its header block is cached."""

    __slots__ = (
        "block",
        "caller",
        "fast_path",
        "front_bytes",
        "head",
        "increment",
        "message",
        "message_bytes",
        "permitted",
        "pieces",
        "total_bytes",
    )

    def __init__(
        self,
        front: bytes,
        block: bytes,
        head: RequestHead,
        increment: int,
        message_bytes: int,
        fast_path: GrpcFastPath | None,
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
        self.fast_path = fast_path
        self.message: MessagePattern | None = None  # of the last message
        self.caller: Caller | None = None  # whose key is in the block, once that is known
        self.permitted: RequestTemplate | None = None  # the last that the key permits
