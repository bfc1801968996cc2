"""Where a client's ModelInferRequests have their ids and their tensors: learnt once, tried again.

    message --by its length--> Layout --cut--> what is around | id | sequence's id | contents
                                                    |
                                    compared with what was read before

Requests of one client have the same fields at the same places; only the ids and the contents
differ. What stands around those tells how long they are, so two messages of one layout that agree
there fall into the same fields: the second need not be walked through.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, TypeAlias, TypeVar

from shoal.core.tensor import Buffer
from shoal.wire.protobuf_wire import tag, take_out
from shoal.wire.template import TemplateCache

Read = TypeVar("Read")
Span: TypeAlias = tuple[int, int]  # start and end in a message

LARGEST_MESSAGE_BYTES = 32 << 10  # of larger ones only the contents take time
_COPIED_BYTES = 4 << 10  # slices of bytes are copies; up to here they cost less than views
_MOST_LENGTHS = 256
_MOST_LAYOUTS = 4  # of one length
_PARAMETERS_FIELD = 4  # of ModelInferRequest: a map, whose entries have key and value
_KEY = b"\x0a\x0bsequence_id"
_VALUE_TAG = tag(2)
_NUMBER_TAG = 2 << 3  # int64_param and string_param of InferParameter
_TEXT_TAG = tag(3)
_ALL_BITS = 2**64 - 1
_NOTHING = slice(0, 0)  # keeps itemgetter from returning a single slice bare


class Sequence(enum.Enum):
    """How a message names its sequence."""

    NONE = 0
    NUMBER = 1  # in a varint
    TEXT = 2


@dataclass(frozen=True, slots=True)
class Places:
    """Where a message has what differs from call to call."""

    ids: tuple[Span, ...]
    contents: tuple[Span, ...]
    sequence: Sequence = Sequence.NONE
    sequence_id: tuple[Span, ...] = ()

    @property
    def spans(self) -> tuple[Span, ...]:
        """All of them, in the order in which protobuf's own libraries write them."""
        return (*self.ids, *self.sequence_id, *self.contents)


class Layout:
    """Cuts a message at fixed places."""

    __slots__ = ("around", "content_places", "contents", "id_place", "places", "sizes")

    def __init__(self, places: Places, length: int) -> None:
        spans = places.spans
        ends = [0, *[end for _, end in spans]]
        starts = [*[start for start, _ in spans], length]
        around = [slice(end, start) for end, start in zip(ends, starts, strict=True)]
        inside = [_NOTHING, _NOTHING, *[slice(*span) for span in places.contents]]
        for index, span in enumerate((places.ids, places.sequence_id)):
            if span:
                inside[index] = slice(*span[0])
        self.places = places
        self.around: Any = itemgetter(*around, _NOTHING)
        self.contents: Any = itemgetter(*inside, _NOTHING)
        self.id_place = inside[0] if places.ids else None
        self.content_places = tuple(inside[2:])
        self.sizes = tuple([end - start for start, end in places.contents])


@dataclass(slots=True)
class Found(Generic[Read]):
    """A message like one that was read before."""

    read: Read
    parts: tuple[Buffer, ...]  # id, the sequence's id, contents …, nothing
    sizes: tuple[int, ...]  # of the contents
    sequence_id: int | str | None  # None: what was read before says it


class Pattern(Generic[Read]):
    """A message that was read before, to be tried on the next one of its length."""

    __slots__ = ("_around", "_expected", "contents", "id", "read", "sizes")

    def __init__(self, layout: Layout, expected: tuple[bytes, ...], read: Read) -> None:
        self._around = layout.around
        self._expected = expected
        self.id = layout.id_place
        self.contents = layout.content_places
        self.sizes = layout.sizes
        self.read = read

    def fits(self, message: bytes) -> bool:
        """Whether a message of the same length has the same around its id and contents."""
        return bool(self._around(message) == self._expected)


class KnownMessages(Generic[Read]):
    """What was read from messages, found again by the bytes around their ids and contents."""

    def __init__(self) -> None:
        self._layouts: dict[int, list[Layout]] = {}
        self._read: TemplateCache[Read] = TemplateCache()

    def find(self, message: bytes) -> Found[Read] | None:
        """What is known of a message like this one; None for one that nobody has seen."""
        for layout in self._layouts.get(len(message), ()):
            read = self._read.get((layout, layout.around(message)))
            if read is None:
                continue
            whole = message if len(message) <= _COPIED_BYTES else memoryview(message)
            parts = layout.contents(whole)
            if layout.places.sequence is Sequence.NONE:
                return Found(read, parts, layout.sizes, None)
            sequence_id = _sequence_id(layout.places.sequence, bytes(parts[1]))
            return Found(read, parts, layout.sizes, sequence_id) if sequence_id else None
        return None

    def pattern(self, message: bytes) -> Pattern[Read] | None:
        """A pattern from a known message that is of no sequence."""
        for layout in self._layouts.get(len(message), ()):
            around = layout.around(message)
            read = self._read.get((layout, around))
            if read is not None and layout.places.sequence is Sequence.NONE:
                return Pattern(layout, around, read)
        return None

    def learn(self, message: bytes, places: Places, read: Read) -> None:
        """Remember what was read from a message with this at these places."""
        spans = places.spans
        length = len(message)
        if len(places.ids) > 1 or length > LARGEST_MESSAGE_BYTES or list(spans) != sorted(spans):
            return
        layouts = self._layouts.setdefault(length, [])
        for layout in layouts:
            if layout.places == places:
                break
        else:
            layout = Layout(places, length)
            if len(layouts) >= _MOST_LAYOUTS:
                del layouts[0]
            layouts.append(layout)
            if len(self._layouts) > _MOST_LENGTHS:
                del self._layouts[next(iter(self._layouts))]
        around = layout.around(message)
        self._read.put((layout, around), read, sum(map(len, around)))


def _sequence_id(kind: Sequence, content: bytes) -> int | str:
    """The id in a message like one that was read before; 0 or empty if it is none, or odd."""
    if kind is Sequence.TEXT:
        try:
            return content.decode()
        except UnicodeDecodeError:
            return ""
    number = shift = 0
    for byte in content[:-1]:
        if byte < 0x80:
            return 0
        number |= (byte & 0x7F) << shift
        shift += 7
    if content[-1] >= 0x80:
        return 0
    # As protobuf reads it: 64 bits, and what is beyond them is dropped.
    return (number | content[-1] << shift) & _ALL_BITS


def find_sequence(message: bytes) -> tuple[Sequence, tuple[Span, ...]] | None:
    """Where a message names its sequence; nowhere, mostly. None if in a way that is unusual."""
    if _KEY not in message:
        return Sequence.NONE, ()
    parameters: list[Span] = []
    take_out(message, {tag(_PARAMETERS_FIELD): parameters})
    found = [span for span in parameters if _KEY in message[slice(*span)]]
    if len(found) != 1 or message.count(_KEY) != 1:
        return None
    start, end = found[0]
    value = start + len(_KEY) + 2
    # The entry's value is a message of the rest, with one field that fills it.
    if not message.startswith(_KEY + bytes((_VALUE_TAG,)), start) or value >= end:
        return None
    if message[value - 1] != end - value:
        return None
    if message[value] == _NUMBER_TAG and value + 1 < end <= value + 11:
        span = (value + 1, end)
        return (
            (Sequence.NUMBER, (span,))
            if _sequence_id(Sequence.NUMBER, message[slice(*span)])
            else None
        )
    if message[value] == _TEXT_TAG and value + 2 < end and message[value + 1] == end - value - 2:
        return Sequence.TEXT, ((value + 2, end),)
    return None
