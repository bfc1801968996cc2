"""Counters of a model's task: calls, and the work before and after the model.

Inferences that a task requests are counted with the model's own, as any others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

PREPROCESS, POSTPROCESS = "preprocess", "postprocess"


@dataclass(slots=True)
class _Count:
    count: int = 0
    ns: int = 0

    def add(self, count: int, elapsed_ns: int) -> None:
        self.count += count
        self.ns += elapsed_ns


class TaskStatistics:
    """Counts of one model version's task. Any thread may count and read."""

    def __init__(self, task: str) -> None:
        self.task = task
        self._lock = threading.Lock()  # guards _counts
        self._counts = {kind: _Count() for kind in ("success", "fail", PREPROCESS, POSTPROCESS)}

    def call(self, success: bool, elapsed_ns: int) -> None:
        """Count a call that took `elapsed_ns` in all."""
        self.add("success" if success else "fail", 1, elapsed_ns)

    def add(self, kind: str, count: int, elapsed_ns: int) -> None:
        """Count calls, or the items of a stage, of one kind."""
        with self._lock:
            self._counts[kind].add(count, elapsed_ns)

    def stage(self, kind: str) -> Callable[[int, int], None]:
        """A function that counts the work of one kind: `count(items, elapsed_ns)`."""
        if kind not in (PREPROCESS, POSTPROCESS):
            raise ValueError(f"stages are '{PREPROCESS}' and '{POSTPROCESS}', not '{kind}'")
        return partial(self.add, kind)

    def mean_ns(self, kind: str) -> float:
        """How long one of a kind took, on average; 0 if there was none."""
        with self._lock:
            counted = self._counts[kind]
            return counted.ns / max(1, counted.count)

    def snapshot(self) -> dict[str, Any]:
        """The counts and total times, as in the statistics of a model."""
        with self._lock:
            counts = {
                kind: {"count": count.count, "ns": count.ns} for kind, count in self._counts.items()
            }
        return {"name": self.task, **counts}
