"""Where a client's ModelInferRequests have their id and their tensors: learnt once, tried again.

    message --by its length--> Layout --cut--> what is around | id | contents
                                                    |
                                    compared with what was read before

Requests of one client have the same fields at the same places; only the id and the contents
differ. What stands around those tells how long they are, so two messages of one layout that agree
there fall into the same fields: the second need not be walked through.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Generic, TypeAlias, TypeVar

from shoal.core.tensor import Buffer
from shoal.wire.plan import PlanCache

Read = TypeVar("Read")
Span: TypeAlias = tuple[int, int]  # start and end in a message

LARGEST_MESSAGE_BYTES = 32 << 10  # of larger ones only the contents take time
_COPIED_BYTES = 4 << 10  # slices of bytes are copies; up to here they cost less than views
_MOST_LENGTHS = 256
_MOST_LAYOUTS = 4  # of one length
_NOTHING = slice(0, 0)  # keeps itemgetter from returning a single slice bare


class Layout:
    """Cuts a message at fixed places."""

    __slots__ = ("around", "contents", "places", "sizes")

    def __init__(self, spans: tuple[Span, ...], length: int, *, has_id: bool) -> None:
        """`spans` are the id, where there is one, and the contents, in order."""
        ends = [0, *[end for _, end in spans]]
        starts = [*[start for start, _ in spans], length]
        around = [slice(end, start) for end, start in zip(ends, starts, strict=True)]
        inside = [slice(*span) for span in spans]
        if not has_id:
            inside.insert(0, _NOTHING)
        self.places = (spans, has_id)
        self.around: Any = itemgetter(*around, _NOTHING)
        self.contents: Any = itemgetter(*inside, _NOTHING)  # id, contents …, nothing
        self.sizes = tuple([end - start for start, end in spans[has_id:]])


class KnownMessages(Generic[Read]):
    """What was read from messages, found again by the bytes around their id and contents."""

    def __init__(self) -> None:
        self._layouts: dict[int, list[Layout]] = {}
        self._read: PlanCache[Read] = PlanCache()

    def find(self, message: bytes) -> tuple[Read, Sequence[Buffer], tuple[int, ...]] | None:
        """What was read from a message like this one, this one's id, contents and an empty slice,
        and the sizes of the contents; None for one that nobody has seen."""
        for layout in self._layouts.get(len(message), ()):
            read = self._read.get((layout, layout.around(message)))
            if read is not None:
                whole = message if len(message) <= _COPIED_BYTES else memoryview(message)
                return read, layout.contents(whole), layout.sizes
        return None

    def learn(self, message: bytes, ids: Sequence[Span], raw: Sequence[Span], read: Read) -> None:
        """Remember what was read from a message with its id and contents at these places."""
        spans = (*ids, *raw)
        length = len(message)
        if len(ids) > 1 or length > LARGEST_MESSAGE_BYTES or list(spans) != sorted(spans):
            return  # in an order in which protobuf's own libraries do not write
        layouts = self._layouts.setdefault(length, [])
        for layout in layouts:
            if layout.places == (spans, bool(ids)):
                break
        else:
            layout = Layout(spans, length, has_id=bool(ids))
            if len(layouts) >= _MOST_LAYOUTS:
                del layouts[0]
            layouts.append(layout)
            if len(self._layouts) > _MOST_LENGTHS:
                del self._layouts[next(iter(self._layouts))]
        around = layout.around(message)
        self._read.put((layout, around), read, sum(map(len, around)))
