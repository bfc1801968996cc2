"""Counters of a model's task: calls, and what was done before and after the model.

Inferences that a task asks for are counted with the model's own, as everybody's are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
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
        """A call has been answered, from what was asked to what was said."""
        with self._lock:
            self._counts["success" if success else "fail"].add(1, elapsed_ns)

    def stage(self, kind: str) -> Callable[[int, int], None]:
        """What counts the work of one kind: `count(items, elapsed_ns)`."""
        if kind not in (PREPROCESS, POSTPROCESS):
            raise ValueError(f"stages are '{PREPROCESS}' and '{POSTPROCESS}', not '{kind}'")

        def count(items: int, elapsed_ns: int) -> None:
            with self._lock:
                self._counts[kind].add(items, elapsed_ns)

        return count

    def snapshot(self) -> dict[str, Any]:
        """As the statistics of a model show it: how often, and how long in all."""
        with self._lock:
            counts = {
                kind: {"count": count.count, "ns": count.ns} for kind, count in self._counts.items()
            }
        return {"name": self.task, **counts}
