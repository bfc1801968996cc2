"""LitServe: FastAPI in front, worker processes behind a queue."""

from __future__ import annotations

from pathlib import Path

from benchmarks import forms
from benchmarks.peers.base import Peer, Target
from benchmarks.places import SERVICES
from benchmarks.workloads import Workload


class LitServe(Peer):
    """The body reaches the worker as bytes; JSON, its default, takes longer."""

    name = "litserve"
    title = "LitServe"
    requirements = ("litserve",)
    packages = ("litserve", "fastapi")
    settings = "raw bytes, one API process, one worker (per core for W2 and W3)"

    def launch(self, workload: Workload, ports: list[int], folder: Path) -> list[str]:  # noqa: ARG002
        """The server of `services/serve_litserve.py`."""
        return [str(self.python), str(SERVICES / "serve_litserve.py")]

    def targets(self, workload: Workload, ports: list[int]) -> list[Target]:
        """HTTP."""
        return [Target("http", ports[0], "/predict", forms.plain(workload))]
