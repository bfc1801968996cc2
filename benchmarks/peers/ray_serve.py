"""Ray Serve: an HTTP proxy and replicas as Ray actors."""

from __future__ import annotations

from pathlib import Path

from benchmarks import forms
from benchmarks.peers.base import Peer, Target
from benchmarks.places import SERVICES
from benchmarks.workloads import Workload


class RayServe(Peer):
    """Its documented throughput mode; the raw body goes to the replica and raw bytes come back."""

    name = "ray_serve"
    title = "Ray Serve"
    requirements = ("ray[serve]",)
    packages = ("ray",)
    settings = "throughput mode, access log off, raw bytes, one replica per core for W2 and W3"

    def launch(self, workload: Workload, ports: list[int], folder: Path) -> list[str]:  # noqa: ARG002
        """The program of `services/serve_ray.py`, which starts Ray and keeps running."""
        return [str(self.python), str(SERVICES / "serve_ray.py")]

    def variables(self, workload: Workload, ports: list[int]) -> dict[str, str]:
        """No telemetry."""
        own = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        return {**super().variables(workload, ports), **own}

    def targets(self, workload: Workload, ports: list[int]) -> list[Target]:
        """HTTP. Its gRPC proxy serves services compiled into the application, not KServe's."""
        return [Target("http", ports[0], "/", forms.plain(workload))]
