"""What a server holds while it runs (memory, threads, descriptors, processes), and if it grows.

    record = Record()
    record.add(at, held_by(pid))    # again and again; `at` is in seconds, or counts what happens
    record.growths(warm_up=100)     # by resource: the level at the start, at the end, the slope

Levels are medians of the first and last fifth of the readings after the warm-up, so that neither a
single reading nor the replaced model that is just being closed decides. Memory is that of all
processes, with pages that they share counted once, and without files that are mapped: how much of a
library's pages a process is charged with depends on the other programs that use it.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

import psutil

LIMIT = 0.05  # how much may be held in addition at the end, as a share of the start
_PART = 5  # the first and the last of so many parts are compared
_FEWEST = 10  # readings; with fewer, two parts are too small to be compared


@dataclass(frozen=True, slots=True)
class Held:
    """One reading of everything."""

    memory_bytes: int
    threads: int
    descriptors: int
    processes: int


def held_by(pid: int) -> Held:
    """What the process and its children hold now. A child that ends meanwhile holds nothing.

    Raises psutil.NoSuchProcess if the process itself has ended.
    """
    head = psutil.Process(pid)
    rows = [_held_by_one(head)]
    for child in head.children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):
            rows.append(_held_by_one(child))
    return Held(*(sum(column) for column in zip(*(astuple(row) for row in rows), strict=True)))


def _held_by_one(process: psutil.Process) -> Held:
    with process.oneshot():
        return Held(_memory_bytes(process), process.num_threads(), process.num_fds(), 1)


def _memory_bytes(process: psutil.Process) -> int:
    """Anonymous and shared memory; resident memory where the system does not tell them apart."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return int(process.memory_info().rss)
    sizes = dict(line.split(":", 1) for line in lines[1:])
    return 1024 * sum(int(sizes[name].split()[0]) for name in ("Pss_Anon", "Pss_Shmem"))


@dataclass(frozen=True, slots=True)
class Growth:
    """How one resource changed between two moments."""

    resource: str
    first: float
    last: float
    slope: float  # for each unit of `at`, by the Theil-Sen estimator: a few outliers do not count

    @property
    def share(self) -> float:
        """What was added, as a share of the start; negative if it became less."""
        return (self.last - self.first) / self.first if self.first else float(bool(self.last))

    def exceeds(self, limit: float = LIMIT) -> bool:
        """Whether more was added than is allowed."""
        return self.share > limit


@dataclass(slots=True)
class Record:
    """Readings of one server in the order in which they were taken."""

    readings: list[tuple[float, Held]] = field(default_factory=list)

    def add(self, at: float, held: Held) -> None:
        """Keep a reading; `at` grows from one to the next."""
        self.readings.append((at, held))

    def growths(self, warm_up: float = 0.0) -> list[Growth]:
        """Every resource, over the readings from `warm_up` on.

        Raises ValueError if they are too few for a verdict.
        """
        kept = [(at, held) for at, held in self.readings if at >= warm_up]
        if len(kept) < _FEWEST:
            raise ValueError(
                f"{len(kept)} readings after the warm-up are too few, at least {_FEWEST} are needed"
            )
        places = [at for at, _ in kept]
        return [
            growth(one.name, places, [float(getattr(held, one.name)) for _, held in kept])
            for one in fields(Held)
        ]


def growth(resource: str, places: Sequence[float], values: Sequence[float]) -> Growth:
    """How `values`, read at `places`, changed from the first fifth of them to the last."""
    part = max(1, len(values) // _PART)
    slopes = [
        (values[late] - values[early]) / (places[late] - places[early])
        for early in range(len(values))
        for late in range(early + 1, len(values))
        if places[late] > places[early]
    ]
    return Growth(
        resource,
        statistics.median(values[:part]),
        statistics.median(values[-part:]),
        statistics.median(slopes) if slopes else 0.0,
    )


def table(growths: Sequence[Growth], unit: str, limit: float = LIMIT) -> str:
    """The growths as a Markdown table; `unit` is what `at` counts, e.g. "reload"."""
    lines = [f"| resource | start | end | change | slope for each {unit} | |", f"|{'---|' * 6}"]
    for one in growths:
        verdict = f"more than {limit:.0%}" if one.exceeds(limit) else ""
        cells = [_name(one), _shown(one, one.first), _shown(one, one.last), f"{one.share:+.1%}"]
        lines.append(f"| {' | '.join([*cells, _slope(one), verdict])} |")
    return "\n".join(lines)


def _name(growth: Growth) -> str:
    return growth.resource.removesuffix("_bytes")


def _is_memory(growth: Growth) -> bool:
    return growth.resource.endswith("_bytes")


def _shown(growth: Growth, value: float) -> str:
    return f"{value / 1e6:,.1f} MB" if _is_memory(growth) else f"{value:,.0f}"


def _slope(growth: Growth) -> str:
    return f"{growth.slope / 1e3:+,.2f} kB" if _is_memory(growth) else f"{growth.slope:+.4f}"
