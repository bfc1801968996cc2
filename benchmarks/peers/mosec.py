"""mosec: a Rust front end with Python workers, with defaults and with its batching."""

from __future__ import annotations

from pathlib import Path

from benchmarks import forms
from benchmarks.peers.base import CORES, Peer, Target
from benchmarks.places import SERVICES
from benchmarks.workloads import Workload

BATCH, WAIT_MS = 32, 1  # its least wait is a millisecond


class Mosec(Peer):
    """One request at a time to each worker."""

    name = "mosec"
    title = "mosec"
    requirements = ("mosec", "orjson")
    packages = ("mosec",)
    settings = "one worker per core, raw bytes, or JSON by orjson"
    takes_json = True
    light_workers = CORES
    batch, wait_ms = 1, 0

    @property
    def environment(self) -> str:
        """Both variants run from the same environment."""
        return "mosec"

    def launch(self, workload: Workload, ports: list[int], folder: Path) -> list[str]:  # noqa: ARG002
        """The server of `services/serve_mosec.py`."""
        return [
            *(str(self.python), str(SERVICES / "serve_mosec.py"), "--address", "127.0.0.1"),
            *("--port", str(ports[0]), "--timeout", "60000", "--log-level", "warning"),
        ]

    def variables(self, workload: Workload, ports: list[int]) -> dict[str, str]:
        """The batching of this variant."""
        return {
            **super().variables(workload, ports),
            "BENCH_BATCH": str(self.batch),
            "BENCH_WAIT_MS": str(self.wait_ms),
        }

    def targets(self, workload: Workload, ports: list[int]) -> list[Target]:
        """HTTP."""
        return [Target("http", ports[0], "/inference", forms.plain_or_json(workload))]


class MosecBatching(Mosec):
    """Batches that wait for more requests: good at high concurrency, slow for a single client."""

    name = "mosec-batching"
    title = "mosec, batching"
    settings = f"one worker, raw bytes, batches of {BATCH} after at most {WAIT_MS} ms"
    light_workers = 1  # a second one makes the batches smaller and nothing faster
    batch, wait_ms = BATCH, WAIT_MS

    def leaves_out(self, workload: Workload) -> str:
        """Batching pays only if each request is tiny."""
        return "" if workload.name == "W1" else "its batching is shown with the tiny model only"
