"""What a batch of a given number of rows takes to compute, from recent executions of all sizes.

    executions --add--> minimum per class of sizes (1, 2-3, 4-7, 8-15 … rows) --of(rows)--> ns

Nearly all disturbances make an execution longer, so each class keeps a minimum, which rises only
slowly. Sizes that were not seen lately are computed from a line through the others: so much for
each batch and so much for each row.
"""

from __future__ import annotations

from dataclasses import dataclass

_CLASSES = 17  # the last one has everything above 32,768 rows
_RECENT_NS = 2_000_000_000  # an older size no longer counts, unless it is all there is
_SMOOTHING = 0.125


@dataclass(slots=True)
class _SizeClass:
    rows: float
    ns: float
    last_ns: int


class ComputeCost:
    """Time to compute as a function of rows. Several threads may use it; it is an estimate."""

    __slots__ = ("_classes", "_last_ns")

    def __init__(self) -> None:
        self._classes: list[_SizeClass | None] = [None] * _CLASSES
        self._last_ns = 0

    def add(self, rows: int, own_ns: int, now_ns: int) -> None:
        """A batch of `rows` took `own_ns` to compute."""
        index = _class_of(rows)
        known = self._classes[index]
        self._last_ns = now_ns
        if known is None or now_ns - known.last_ns > _RECENT_NS:
            self._classes[index] = _SizeClass(rows, own_ns, now_ns)
            return
        known.last_ns = now_ns
        known.rows += _SMOOTHING * (rows - known.rows)
        if own_ns < known.ns:
            known.ns = own_ns
        else:
            known.ns += _SMOOTHING * (own_ns - known.ns)

    def of(self, rows: int) -> int:
        """The nanoseconds that a batch of `rows` takes to compute; 0 if nothing was measured."""
        known = self._classes[_class_of(rows)]
        if known is not None and self._last_ns - known.last_ns <= _RECENT_NS:
            return int(known.ns)
        batch_ns, row_ns = self.parts()
        return int(batch_ns + row_ns * rows)

    def parts(self) -> tuple[float, float]:
        """The nanoseconds of a batch and of each row in it.

        While all batches have about the same size, everything counts as the rows' time.
        """
        known = [
            one
            for one in self._classes
            if one is not None and self._last_ns - one.last_ns <= _RECENT_NS
        ]
        if not known:
            return 0.0, 0.0
        small, large = known[0], known[-1]
        if small is large:
            return 0.0, small.ns / small.rows
        small_ns = min(small.ns, large.ns)  # fewer rows never take longer
        row_ns = (large.ns - small_ns) / (large.rows - small.rows)
        return max(0.0, small_ns - row_ns * small.rows), row_ns


def _class_of(rows: int) -> int:
    return min(rows.bit_length(), _CLASSES - 1)
