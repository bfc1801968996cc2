"""Trace a few requests for one model and show where their time went.

shoal serve --demo --trace-config=triton,file=trace.json
pip install "tritonclient[http]"
python examples/operation/trace_requests.py [localhost:8000]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import tritonclient.http as triton

REQUESTS = 3
WAIT_SECS = 60


def main(server: str) -> None:
    with triton.InferenceServerClient(server) as client:
        before = {path.name for path in trace_files(client)}
        wanted = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": str(REQUESTS)}
        client.update_trace_settings("add_sub", wanted)
        for _ in range(REQUESTS):
            add(client)
        client.update_trace_settings("add_sub", dict.fromkeys(wanted))  # reset

        # The last of these traces completes a numbered file next to the configured one.
        deadline = time.monotonic() + WAIT_SECS
        while not (new := [p for p in trace_files(client) if p.name not in before]):
            assert time.monotonic() < deadline, "no trace has come"
            time.sleep(0.05)
    show(new[0])


def trace_files(client: triton.InferenceServerClient) -> list[Path]:
    """Return the complete trace files; the server runs on this machine."""
    path = Path(client.get_trace_settings()["trace_file"])
    return [found for found in sorted(path.parent.glob(f"{path.name}.*")) if found.stat().st_size]


def add(client: triton.InferenceServerClient) -> None:
    tensors = [triton.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for tensor in tensors:
        tensor.set_data_from_numpy(np.ones((1, 16), np.int32))
    client.infer("add_sub", tensors)


def show(path: Path) -> None:
    """Each trace is many objects that share an id; timestamps are in nanoseconds."""
    moments: dict[int, list[tuple[int, str]]] = {}
    for item in json.loads(path.read_text()):
        for stamp in item.get("timestamps", ()):
            moments.setdefault(item["id"], []).append((stamp["ns"], stamp["name"]))
    assert len(moments) == REQUESTS
    for number, events in moments.items():
        events.sort()
        print(f"trace {number}")
        for moment_ns, name in events:
            print(f"  {(moment_ns - events[0][0]) / 1000:8.0f} us  {name}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000")
