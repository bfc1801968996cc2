"""Whether the statistics and metrics of a server add up, whatever happened to its requests.

    faults = accounting.faults(entry, metrics)      an element of model_stats, the text of /metrics
    assert not faults

The rules are those of docs/metrics.md and of Triton's statistics extension.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
COMPUTE = ("compute_input", "compute_infer", "compute_output")


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each line of a metrics text."""
    for line in text.splitlines():
        found = None if line.startswith("#") else _SAMPLE.match(line)
        if found:
            name, labels, value = found.groups()
            yield name, dict(_LABEL.findall(labels or "")), float(value)


def faults(entry: dict[str, Any], metrics: str = "") -> list[str]:
    """What does not add up in an element of `model_stats`, as sentences.

    With `metrics` they are compared with it, too; no request may have ended in between.
    """
    counts = {name: stat["count"] for name, stat in entry["inference_stats"].items()}
    computed = counts["success"] - counts["cache_hit"]
    expected = dict.fromkeys(COMPUTE, computed) | {"queue": counts["success"]}
    found = [
        f"{name} has count {counts[name]} instead of {right} ({counts})"
        for name, right in expected.items()
        if counts[name] != right
    ]
    batches = entry["batch_stats"]
    for name in COMPUTE:
        executions = sum(batch[name]["count"] for batch in batches)
        if executions != entry["execution_count"]:
            found.append(
                f"{executions} executions in {name} of batch_stats instead of "
                f"{entry['execution_count']}"
            )
    rows = sum(batch["batch_size"] * batch["compute_infer"]["count"] for batch in batches)
    if rows < entry["inference_count"]:  # more if a request of a batch failed alone
        found.append(f"{rows} rows in batch_stats are less than {entry['inference_count']}")
    if entry["inference_count"] < computed:
        found.append(f"{entry['inference_count']} rows of {computed} requests")
    found += [
        f"{name} took {stat['ns']} ns"
        for name, stat in entry["inference_stats"].items()
        if stat["ns"] < 0 or (stat["ns"] and not stat["count"])
    ]
    if metrics:
        found += _metric_faults(entry, metrics)
    return [f"{entry['name']}: {fault}" for fault in found]


def _metric_faults(entry: dict[str, Any], metrics: str) -> Iterator[str]:
    stats = entry["inference_stats"]
    expected = {
        "nv_inference_request_success": stats["success"]["count"],
        "nv_inference_request_failure": stats["fail"]["count"],
        "nv_inference_count": entry["inference_count"],
        "nv_inference_exec_count": entry["execution_count"],
        "nv_inference_request_duration_us": stats["success"]["ns"] // 1000,
        "nv_inference_queue_duration_us": stats["queue"]["ns"] // 1000,
        **{f"nv_inference_{name}_duration_us": stats[name]["ns"] // 1000 for name in COMPUTE},
    }
    found = dict.fromkeys(expected, 0.0)
    for name, labels, value in samples(metrics):
        same = (labels.get("model"), labels.get("version")) == (entry["name"], entry["version"])
        if name in found and same:
            found[name] += value  # failures have one sample for each reason
    for name, right in expected.items():
        if found[name] != right:
            yield f"{name} is {found[name]:.0f}, but the statistics have {right}"
