"""--profile-export-file: the timestamps of every request, as JSON.

Timestamps are nanoseconds of the wall clock. Tensors are left out: they are the same in every
request of a step, and would be most of the file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import shoal
from shoal.perf.profiler import LevelResult


def write(path: str, results: Sequence[LevelResult]) -> None:
    """Write all levels of a run."""
    offset_ns = time.time_ns() - perf_counter_ns()
    document = {
        "experiments": [_experiment(result, offset_ns) for result in results],
        "version": shoal.__version__,
        "service_kind": "triton",
        "endpoint": "",
    }
    Path(path).write_text(json.dumps(document), encoding="utf-8")


def _experiment(result: LevelResult, offset_ns: int) -> dict[str, Any]:
    requests: list[dict[str, Any]] = []
    boundaries: list[int] = []
    for window in result.windows:
        measurement = window.measurement
        boundaries += [measurement.begin_ns + offset_ns, measurement.end_ns + offset_ns]
        ids = measurement.sequence_ids.tolist()
        for index, (start, end) in enumerate(
            zip(measurement.starts.tolist(), measurement.ends.tolist(), strict=True)
        ):
            entry: dict[str, Any] = {"timestamp": start + offset_ns}
            if ids and ids[index]:
                entry["sequence_id"] = ids[index]
            moments = measurement.moments.get(start, [end])
            entry["response_timestamps"] = [moment + offset_ns for moment in moments]
            requests.append(entry)
    mode = "request_rate" if result.by_rate else "concurrency"
    return {
        "experiment": {"mode": mode, "value": result.value},
        "requests": sorted(requests, key=lambda entry: int(entry["timestamp"])),
        "window_boundaries": sorted(set(boundaries)),
    }
