"""Reads measurements: the table of `shoal perf -f` and of perf_analyzer, and their export in JSON.

-f FILE.csv                        a row for each level
--profile-export-file FILE.json    the timestamps of every request, for each level
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import InvalidArgument
from shoal.plan.capacity import Level

_LOADS = ("Concurrency", "Request Rate")
_RATE, _P99, _GPU = "Inferences/Second", "p99 latency", "Max GPU Memory Usage"
_ADVICE = "write it with `shoal perf -f FILE.csv`"


@dataclass(frozen=True, slots=True)
class Report:
    """The measurement of one replica."""

    levels: tuple[Level, ...]
    by_rate: bool  # requests were sent at a rate, whether or not responses arrived
    unit: str  # "inferences" or "requests": what rates count
    gpu_memory_mb: float | None = None


def read_report(path: str) -> Report:
    """Read a report. Raises InvalidArgument for a file that is none, or lacks what a plan needs."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"'{path}' cannot be read: {error}; {_ADVICE}") from None
    try:
        return _from_export(text) if text.lstrip().startswith("{") else _from_table(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"'{path}' {error.message}") from None


def _from_table(text: str) -> Report:
    rows = csv.DictReader(io.StringIO(text))
    columns = rows.fieldnames or ()
    load = next((column for column in _LOADS if column in columns), None)
    if load is None or _RATE not in columns:
        raise InvalidArgument(
            f"is no table of measurements: it needs the columns '{_RATE}' and '{_LOADS[0]}' or "
            f"'{_LOADS[1]}'; {_ADVICE}"
        )
    if _P99 not in columns:
        raise InvalidArgument(
            f"has no column '{_P99}'; name the table of the whole model, not that of a model that "
            f"it is composed of, or {_ADVICE}"
        )
    levels, memory = [], []
    for row in rows:
        where = f"line {rows.line_num}"
        name = f"{load.lower()} {row[load]}"
        rate = _number(row[_RATE], where, _RATE)
        levels.append(Level(name, rate, _number(row[_P99], where, _P99) / 1000))
        if row.get(_GPU):
            memory.append(_sum_of_devices(row[_GPU], where))
    if not levels:
        raise InvalidArgument(f"has no rows: nothing was measured; {_ADVICE}")
    return Report(
        tuple(levels), load == _LOADS[1], "inferences", max(memory) / 2**20 if memory else None
    )


def _from_export(text: str) -> Report:
    try:
        experiments = json.loads(text)["experiments"]
        found = [_experiment(experiment) for experiment in experiments]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise InvalidArgument(
            "is JSON, but no export of measurements; write one with `shoal perf "
            "--profile-export-file FILE.json`"
        ) from None
    levels = tuple(level for level, _ in found if level is not None)
    if not levels:
        raise InvalidArgument(f"has no level with requests: nothing was measured; {_ADVICE}")
    return Report(levels, any(by_rate for _, by_rate in found), "requests")


def _experiment(experiment: Mapping[str, Any]) -> tuple[Level | None, bool]:
    """The level, None without requests, and whether it was a request rate."""
    mode, value = experiment["experiment"]["mode"], experiment["experiment"]["value"]
    by_rate = mode == "request_rate"
    entries = experiment["requests"]
    starts = np.array([entry["timestamp"] for entry in entries], np.int64)
    ends = np.array([entry["response_timestamps"][0] for entry in entries], np.int64)
    if not len(starts):
        return None, by_rate
    boundaries = experiment.get("window_boundaries") or (int(starts.min()), int(ends.max()))
    seconds = max(1, max(boundaries) - min(boundaries)) / 1e9
    p99_ms = float(np.percentile(ends - starts, 99)) / 1e6
    name = f"{mode.replace('_', ' ')} {value:g}"
    return Level(name, len(starts) / seconds, p99_ms, len(starts)), by_rate


def _number(text: str | None, where: str, column: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise InvalidArgument(f"{where}: '{column}' must be a number above 0, found '{text}'")
    return value


def _sum_of_devices(cell: str, where: str) -> float:
    """`GPU-uuid:value;…` in bytes."""
    parts = [part.rpartition(":")[2] for part in cell.split(";") if part.strip()]
    return sum(_number(part, where, _GPU) for part in parts)
