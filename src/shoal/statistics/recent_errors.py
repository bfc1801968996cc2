"""The latest errors that were sent to clients, for the console; how many there were, for metrics.

    a failed request --note--> [ newest 100, equal ones counted together ] --since--> the console

Only failed requests pay for this, about half a microsecond each. Equal errors are one entry with a
count, so that one client's repeated mistake does not hide all others. All servers of a process
share one list.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

MOST_ENTRIES = 100
MOST_CHARACTERS = 2000  # of a text; longer ones are cut
MOST_OF_A_PLACE = 300
_ID_PREFIX = "[request id: "

REFUSALS = (
    *(("HTTP", "429"), ("HTTP", "503")),
    *(("gRPC", "RESOURCE_EXHAUSTED"), ("gRPC", "UNAVAILABLE")),
)

_NS_PER_MS = 1_000_000


@dataclass(slots=True)
class ErrorEntry:
    """One error and how often it happened."""

    protocol: str  # HTTP or gRPC
    place: str  # what was called: a method and path, or a gRPC method
    model: str  # empty if it is not known, or contained in `place`
    status: str
    text: str
    count: int = 0
    first_ms: int = 0  # since the epoch
    last_ms: int = 0
    number: int = 0  # rises whenever any error is noted; later entries have higher ones


class RecentErrors:
    """Keeps the newest errors. Any thread may call any method."""

    def __init__(
        self, most: int = MOST_ENTRIES, wall_clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._most = most
        self._wall_clock = wall_clock
        self._lock = threading.Lock()  # guards everything below
        self._entries: OrderedDict[tuple[str, str, str, str, str], ErrorEntry] = OrderedDict()
        self._noted = 0
        # Refusals are there from the start: Prometheus does not see how a new series has begun.
        self._counts: dict[tuple[str, str], int] = dict.fromkeys(REFUSALS, 0)

    def count(self, protocol: str, status: str) -> None:
        """Count an error that is not kept: it was sent before the request was known."""
        with self._lock:
            self._add(protocol, status)

    def counts(self) -> dict[tuple[str, str], int]:
        """How many errors were sent, by protocol and status."""
        with self._lock:
            return dict(self._counts)

    def _add(self, protocol: str, status: str, count: int = 1) -> None:
        key = (protocol, status)
        self._counts[key] = self._counts.get(key, 0) + count

    def note(
        self,
        protocol: str,
        place: str,
        status: str,
        text: str,
        model: str = "",
        *,
        count: int = 1,
    ) -> None:
        """Record an error that was sent to clients, `count` times, without the id of its request:
        then equal errors of different requests are one entry."""
        if text.startswith(_ID_PREFIX):
            text = text[text.find("] ") + 2 :]
        text = text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + " …"
        place = place if len(place) <= MOST_OF_A_PLACE else place[:MOST_OF_A_PLACE] + "…"
        now_ms = self._wall_clock() // _NS_PER_MS
        with self._lock:
            self._add(protocol, status, count)
            self._keep(ErrorEntry(protocol, place, model, status, text, count, now_ms, now_ms))

    def drain(self) -> tuple[list[ErrorEntry], dict[tuple[str, str], int]]:
        """Everything since the last call, oldest first, and the counts: another process keeps it
        from now on."""
        with self._lock:
            entries, counts = list(self._entries.values()), self._counts
            self._entries = OrderedDict()
            self._counts = {}
        return entries, counts

    def merge(self, entries: list[ErrorEntry], counts: Mapping[tuple[str, str], int]) -> None:
        """Add what another process has drained. Numbers are given anew."""
        with self._lock:
            for entry in entries:
                self._keep(entry)
            for (protocol, status), count in counts.items():
                self._add(protocol, status, count)

    def _keep(self, added: ErrorEntry) -> None:
        """Add an entry, or its count to an equal one. The lock is held."""
        key = (added.protocol, added.place, added.model, added.status, added.text)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = added
            if len(self._entries) > self._most:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
            entry.count += added.count
            entry.last_ms = added.last_ms
        self._noted += 1
        entry.number = self._noted

    def since(self, number: int = 0) -> list[ErrorEntry]:
        """The errors recorded after the one with this number, the newest first."""
        found = []
        with self._lock:
            for entry in reversed(self._entries.values()):
                if entry.number <= number:
                    break
                found.append(replace(entry))
        return found


recent_errors = RecentErrors()
