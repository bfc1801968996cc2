"""FastAPI on uvicorn, calling ONNX Runtime in the handler: what many people write first."""

from __future__ import annotations

from pathlib import Path

from benchmarks import forms
from benchmarks.peers.base import CORES, Peer, Target
from benchmarks.places import SERVICES
from benchmarks.workloads import Workload


class FastApi(Peer):
    """uvicorn with uvloop and httptools; the handler reads the raw body and responds with bytes."""

    name = "fastapi"
    title = "FastAPI + ONNX Runtime"
    requirements = ("fastapi", "uvicorn[standard]", "orjson")
    packages = ("fastapi", "uvicorn")
    settings = (
        "uvicorn with uvloop and httptools, one process per core, raw bytes, or JSON by orjson"
    )
    takes_json = True
    light_workers = CORES

    def launch(self, workload: Workload, ports: list[int], folder: Path) -> list[str]:  # noqa: ARG002
        """The application of `services/serve_fastapi.py`."""
        return [
            *(str(self.python), "-m", "uvicorn", "serve_fastapi:application"),
            *("--app-dir", str(SERVICES), "--host", "127.0.0.1", "--port", str(ports[0])),
            *("--workers", str(self.workers(workload)), "--loop", "uvloop", "--http", "httptools"),
            *("--no-access-log", "--log-level", "warning"),
        ]

    def targets(self, workload: Workload, ports: list[int]) -> list[Target]:
        """HTTP."""
        return [Target("http", ports[0], "/infer", forms.plain_or_json(workload))]
