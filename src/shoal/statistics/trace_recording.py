"""Traces for a look at single requests: the next few of a model, kept in memory.

    console --record 20--> TraceRecording --sample--> Trace --> the last of them, as plain data

It needs no file and no collector, and ends by itself: after the requested number of requests, or
after a minute.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from shoal.errors import InvalidArgument
from shoal.statistics.trace import Event, FinishedTrace, RequestRecord

MOST_RECORDED = 100  # requests at a time; as many of all models are kept
_MOST_SECS = 60.0


class TraceRecording:
    """The requests that are to be recorded, and those that were. Any thread may call any method."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards everything below
        self._model = ""
        self._left = 0
        self._until = 0.0
        self._recent: deque[FinishedTrace] = deque(maxlen=MOST_RECORDED)

    def active(self) -> bool:
        """Whether a request may be recorded. Costs no lock."""
        return self._left > 0

    def start(self, model: str, count: int) -> None:
        """Record the next `count` requests of a model; 0 ends it. Replaces an earlier recording.

        What was recorded of that model before is forgotten. InvalidArgument for another number.
        """
        if not 0 <= count <= MOST_RECORDED:
            raise InvalidArgument(
                f"the number of requests to record must be 0 to {MOST_RECORDED}, found {count}"
            )
        with self._lock:
            self._model = model
            self._left = count
            self._until = self._clock() + _MOST_SECS
            if count:
                kept = [trace for trace in self._recent if _model_of(trace) != model]
                self._recent = deque(kept, MOST_RECORDED)

    def sample(self, model: str) -> bool:
        """Whether to record a request that has just come in."""
        with self._lock:
            if self._left and self._clock() >= self._until:
                self._left = 0
            if not self._left or model != self._model:
                return False
            self._left -= 1
            return True

    def take(self, trace: FinishedTrace) -> None:
        """A recorded request is complete."""
        with self._lock:
            self._recent.append(trace)

    def document(self, model: str) -> dict[str, Any]:
        """What was recorded of a model, the newest first, and how many requests are to come."""
        with self._lock:
            if self._left and self._clock() >= self._until:
                self._left = 0
            found = [trace for trace in self._recent if _model_of(trace) == model]
            remaining = self._left if self._model == model else 0
        return {"remaining": remaining, "traces": [_described(trace) for trace in reversed(found)]}


def _model_of(trace: FinishedTrace) -> str:
    """The model that the client asked."""
    return trace.requests[0].model_name if trace.requests else ""


def _described(trace: FinishedTrace) -> dict[str, Any]:
    """A trace with its moments in microseconds since its first."""
    moments = [at_ns for _, at_ns in trace.events]
    for record in trace.requests:
        moments += [at_ns for _, at_ns in (*record.events, *record.compute)]
    first_ns = min(moments, default=0)

    def times(events: Iterable[Event]) -> dict[str, float]:
        return {name: (at_ns - first_ns) / 1000 for name, at_ns in events}

    def described(record: RequestRecord) -> dict[str, Any]:
        return {
            "id": record.id,
            "parent_id": record.parent_id,
            "model_name": record.model_name,
            "model_version": str(record.model_version),
            "request_id": record.request_id,
            "times_us": times((*record.events, *record.compute)),
            "error": record.error,
        }

    return {
        "id": trace.id,
        "start_ms": (first_ns + trace.wall_offset_ns) // 1_000_000,
        "duration_us": (max(moments, default=0) - first_ns) / 1000,
        "times_us": times(trace.events),
        "requests": [described(record) for record in trace.requests],
        "error": trace.error,
    }
