"""BentoML: a service class behind uvicorn workers."""

from __future__ import annotations

from pathlib import Path

from benchmarks import forms
from benchmarks.peers.base import CORES, Peer, Target
from benchmarks.places import SERVICES
from benchmarks.workloads import Workload


class BentoMl(Peer):
    """Small tensors come as JSON, its encoding of arrays; large ones and photos as a file."""

    name = "bentoml"
    title = "BentoML"
    requirements = ("bentoml",)
    packages = ("bentoml",)
    settings = "one worker per core, access log and metrics off, JSON; large bodies as file"
    light_workers = CORES

    def launch(self, workload: Workload, ports: list[int], folder: Path) -> list[str]:  # noqa: ARG002
        """The service of `services/serve_bentoml.py`."""
        return [
            *(str(self.python.with_name("bentoml")), "serve", "serve_bentoml:Inference"),
            *("--working-dir", str(SERVICES), "--host", "127.0.0.1", "--port", str(ports[0])),
        ]

    def variables(self, workload: Workload, ports: list[int]) -> dict[str, str]:
        """No telemetry; its state beside the environment."""
        home = str(self.python.parent.parent / "home")
        own = {"BENTOML_DO_NOT_TRACK": "True", "BENTOML_HOME": home}
        return {**super().variables(workload, ports), **own}

    def targets(self, workload: Workload, ports: list[int]) -> list[Target]:
        """HTTP, at the endpoint that suits the size."""
        if workload.model in {"add_sub", "encoder"}:
            return [Target("http", ports[0], f"/{workload.model}", forms.as_json(workload))]
        return [Target("http", ports[0], "/file", forms.plain(workload))]
