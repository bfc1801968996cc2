"""Where the ModelInferRequests of a client have their ids and tensors: found once, then compared.

    message --by its length--> layouts --cut--> what is around | id | contents
                                                     |
                                    equal to that of a message with a template

Requests of one client have the same fields at the same places; only the ids and the contents
differ. The bytes around those hold their lengths, so two messages of one layout that agree there
have the same fields: the second need not be parsed.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, TypeAlias

from shoal.core.planned import RequestTemplate
from shoal.core.tensor import Buffer
from shoal.wire.protobuf_wire import tag, take_out
from shoal.wire.template import TemplateCache

Span: TypeAlias = tuple[int, int]  # start and end in a message

_MOST_LENGTHS = 256
_MOST_LAYOUTS = 4  # of one length
_PARAMETERS_FIELD = 4  # of ModelInferRequest: a map, whose entries have key and value
_SEQUENCE_KEY = b"\x0a\x0bsequence_id"
_VALUE_TAG = tag(2)
_NUMBER_TAG = 2 << 3  # int64_param and string_param of InferParameter
_TEXT_TAG = tag(3)
_ALL_BITS = 2**64 - 1
_NOTHING = slice(0, 0)  # keeps itemgetter from returning a single slice bare


class _Layout:
    """Cuts messages of one length at fixed places."""

    __slots__ = ("contents", "cut", "id", "spans")

    def __init__(self, ids: tuple[Span, ...], contents: tuple[Span, ...], length: int) -> None:
        self.spans = (*ids, *contents)
        ends = [0, *[end for _, end in self.spans]]
        starts = [*[start for start, _ in self.spans], length]
        around = [slice(end, start) for end, start in zip(ends, starts, strict=True)]
        self.cut: Any = itemgetter(*around, _NOTHING)
        self.id = slice(*ids[0]) if ids else None
        self.contents = tuple([slice(*span) for span in contents])

    def around(self, message: Buffer) -> tuple[bytes, ...]:
        """What is around the id and the contents."""
        pieces: tuple[bytes, ...] = self.cut(message)
        return pieces if isinstance(message, bytes) else tuple([bytes(piece) for piece in pieces])


class MessagePattern:
    """A message with a template, with its id and its contents left out."""

    __slots__ = ("_cut", "_expected", "contents", "id", "template")

    def __init__(
        self, layout: _Layout, expected: tuple[bytes, ...], template: RequestTemplate
    ) -> None:
        self._cut = layout.cut
        self._expected = expected
        self.id = layout.id
        self.contents = layout.contents
        self.template = template

    def matches(self, message: bytes) -> bool:
        """Whether a message of the same length has the same bytes around its id and contents."""
        return bool(self._cut(message) == self._expected)


class MessagePatterns:
    """Patterns, found by the bytes around the id and the contents of a message."""

    def __init__(self) -> None:
        self._layouts: dict[int, list[_Layout]] = {}
        self._patterns: TemplateCache[MessagePattern] = TemplateCache()

    def find(self, message: Buffer) -> MessagePattern | None:
        """The pattern that `message` matches."""
        for layout in self._layouts.get(len(message), ()):
            pattern = self._patterns.get((layout, layout.around(message)))
            if pattern is not None:
                return pattern
        return None

    def put(
        self,
        message: Buffer,
        ids: tuple[Span, ...],
        contents: tuple[Span, ...],
        template: RequestTemplate,
    ) -> None:
        """Store the template of a message that has its ids and contents at these places."""
        spans = [*ids, *contents]
        length = len(message)
        if len(ids) > 1 or spans != sorted(spans):
            return
        layouts = self._layouts.setdefault(length, [])
        for layout in layouts:
            if list(layout.spans) == spans and (layout.id is None) is not bool(ids):
                break
        else:
            layout = _Layout(ids, contents, length)
            if len(layouts) >= _MOST_LAYOUTS:
                del layouts[0]
            layouts.append(layout)
            if len(self._layouts) > _MOST_LENGTHS:
                del self._layouts[next(iter(self._layouts))]
        around = layout.around(message)
        pattern = MessagePattern(layout, around, template)
        self._patterns.put((layout, around), pattern, sum(map(len, around)))


def split_sequence(around: bytes) -> tuple[int | str, tuple[bytes, bytes]] | None:
    """The id of the sequence in a message, and what stands before and after it; None where there is
    none, or not exactly one in the usual encoding."""
    if _SEQUENCE_KEY not in around:
        return None
    parameters: list[Span] = []
    take_out(around, {tag(_PARAMETERS_FIELD): parameters})
    found = [span for span in parameters if _SEQUENCE_KEY in around[slice(*span)]]
    if len(found) != 1 or around.count(_SEQUENCE_KEY) != 1:
        return None
    start, end = found[0]
    value = start + len(_SEQUENCE_KEY) + 2
    # The entry's value is a message of the rest, with one field that fills it.
    if not around.startswith(_SEQUENCE_KEY + bytes((_VALUE_TAG,)), start) or value >= end:
        return None
    if around[value - 1] != end - value:
        return None
    sequence_id: int | str = 0
    if around[value] == _NUMBER_TAG and value + 1 < end <= value + 11:
        value += 1
        sequence_id = _number(around[value:end])
    elif around[value] == _TEXT_TAG and value + 2 < end and around[value + 1] == end - value - 2:
        value += 2
        try:
            sequence_id = around[value:end].decode()
        except UnicodeDecodeError:
            return None
    return (sequence_id, (around[:value], around[end:])) if sequence_id else None


def _number(content: bytes) -> int:
    """The value of a varint; 0 if the bytes are not exactly one."""
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
