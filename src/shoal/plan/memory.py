"""The memory of one replica, from the metrics of a running server."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from shoal.errors import InvalidArgument

_SAMPLE = re.compile(
    r"^(?P<name>process_resident_memory_bytes|nv_gpu_memory_used_bytes)"
    r"(\{[^}]*\})? +(?P<value>\S+)",
    re.MULTILINE,
)
_TIMEOUT_SECS = 5


def read_memory_mb(source: str) -> tuple[float, float | None]:
    """The memory in MB, and that on GPUs if there are any, from a URL or a saved page of metrics.

    Raises InvalidArgument.
    """
    try:
        if "://" in source:
            with urllib.request.urlopen(source, timeout=_TIMEOUT_SECS) as answer:  # noqa: S310
                text = answer.read().decode("utf-8", "replace")
        else:
            text = Path(source).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"--metrics={source} cannot be read: {error}; name the address of a server's metrics, "
            f"http://localhost:8002/metrics, or a file with them"
        ) from None
    sums: dict[str, float] = {}
    for match in _SAMPLE.finditer(text):
        sums[match["name"]] = sums.get(match["name"], 0.0) + float(match["value"])
    if "process_resident_memory_bytes" not in sums:
        raise InvalidArgument(
            f"--metrics={source} has no process_resident_memory_bytes; set the memory with "
            f"--memory-mb"
        )
    gpu = sums.get("nv_gpu_memory_used_bytes")
    return sums["process_resident_memory_bytes"] / 2**20, gpu / 2**20 if gpu else None
