"""The cache of request templates, and the variable fields of a JSON header.

    header bytes --without ids--> TemplateCache --> what the header means

Clients repeat themselves: apart from its tensors, a request is byte for byte the one before, but
for its id and the id of its sequence. A cache entry is found by those bytes (compared, not only
hashed), so a hit means the same, and parsing and validation can be skipped. An unusual header has
no entry and takes the slow path; a hit never changes the response.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Generic, TypeVar

import orjson

Entry = TypeVar("Entry")

MOST_ENTRIES = 8192  # several for each of a thousand models
MOST_BYTES = 8 * 1024 * 1024  # of keys, in all entries together
LONGEST_KEY = 16 * 1024  # a longer header is rarely repeated and would evict others

# An id that needs no escaping, at the place where clients write it: first.
JSON_ID = re.compile(rb'\{"id": ?"([ !#-\[\]-~]*)", ?')
_PLAIN_ID = re.compile(rb"[ !#-\[\]-~]*")
# A sequence's id: a number that JSON allows, or a text that needs no escaping; never "no sequence".
_SEQUENCE_KEY = b'"sequence_id"'
_JSON_SEQUENCE = re.compile(
    rb'"sequence_id": ?(?:([1-9][0-9]{0,17})(?![0-9.eE+-])|"([ !#-\[\]-~]{1,128})")'
)


class TemplateCache(Generic[Entry]):
    """Entries by the bytes they were made from; the oldest are evicted first."""

    def __init__(self, most_entries: int = MOST_ENTRIES, most_bytes: int = MOST_BYTES) -> None:
        self._entries: dict[Hashable, Entry] = {}
        self._key_bytes: dict[Hashable, int] = {}
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        self.bytes = 0
        self.get = self._entries.get  # the entry made from exactly these bytes, or None

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: Hashable, entry: Entry, key_bytes: int) -> None:
        """Store an entry, unless its key is very long; the oldest are evicted for it."""
        if key_bytes > LONGEST_KEY:
            return
        self.evict(key)
        self._entries[key] = entry
        self._key_bytes[key] = key_bytes
        self.bytes += key_bytes
        while len(self._entries) > self._most_entries or self.bytes > self._most_bytes:
            self.evict(next(iter(self._entries)))

    def evict(self, key: Hashable) -> None:
        """Remove an entry, if there is one."""
        if self._entries.pop(key, None) is not None:
            self.bytes -= self._key_bytes.pop(key)


def split_json_id(header: bytes) -> tuple[bytes | None, bytes]:
    """A JSON header's id, and the header without it; the id is None where none stands first.

    Only an id that needs no escaping is taken out. Whether one was must be part of the key: a
    header without its id is not the same text as an equal one that never had any.
    """
    match = JSON_ID.match(header)
    if match is None:
        return None, header
    return match[1], header[match.end() :]


def is_plain_id(request_id: bytes) -> bool:
    """Whether `split_json_id` would take it out."""
    return _PLAIN_ID.fullmatch(request_id) is not None


def split_json_sequence(rest: bytes) -> tuple[int | str, tuple[bytes, bytes]] | None:
    """The id of the sequence in a header whose own id was taken out, and what is before and after
    it; None where there is none, or not exactly one in a notation that has one meaning."""
    place = rest.find(_SEQUENCE_KEY)
    if place < 0:
        return None
    match = _JSON_SEQUENCE.match(rest, place)
    if match is None or rest.find(_SEQUENCE_KEY, place + 1) >= 0:
        return None
    number, text = match.groups()
    # What is before it ends with the quote of a text, so a number and a text differ there.
    around = rest[: match.start(match.lastindex or 0)], rest[match.end(match.lastindex or 0) :]
    return int(number) if number else text.decode("ascii"), around


def is_plain_json(header: bytes, rest: bytes) -> bool:
    """Whether `rest`, the header without its id, may be a key: it means the same after any id.

    So it must hold no second id, in any notation, and the strict parser must accept the whole:
    what only the lenient one accepts, it accepts because of a token that may be in the id.
    """
    if b'"id"' in rest or b"\\" in rest:
        return False
    try:
        orjson.loads(header)
    except orjson.JSONDecodeError:
        return False
    return True
