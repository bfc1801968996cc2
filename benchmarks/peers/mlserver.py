"""MLServer: KServe v2 over HTTP (JSON) and gRPC, with a custom runtime."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import forms
from benchmarks.peers.base import GRPC_PATH, Peer, Target
from benchmarks.workloads import Workload


class MlServer(Peer):
    """Models that take no time run in the server's process; others in one worker per core."""

    name = "mlserver"
    title = "MLServer"
    requirements = ("mlserver", "uvloop<0.22")  # its workers fail to start with newer ones
    packages = ("mlserver",)
    settings = "custom runtime in the server's process (W1, W4) or one worker per core; debug off"
    light_workers = 0  # "parallel_workers": 0 keeps inference in the main process

    def launch(self, workload: Workload, ports: list[int], folder: Path) -> list[str]:
        """Its two settings files."""
        server = {
            "debug": False,
            "host": "127.0.0.1",
            "http_port": ports[0],
            "grpc_port": ports[1],
            "metrics_port": ports[2],
            "parallel_workers": self.workers(workload),
            "grpc_max_message_length": 1 << 24,
        }
        model = {
            "name": workload.model,
            "implementation": "benchmarks.peers.services.serve_mlserver.Inference",
        }
        (folder / "settings.json").write_text(json.dumps(server), encoding="utf-8")
        (folder / "model-settings.json").write_text(json.dumps(model), encoding="utf-8")
        return [str(self.python.with_name("mlserver")), "start", str(folder)]

    def targets(self, workload: Workload, ports: list[int]) -> list[Target]:
        """Both protocols; perf_analyzer asks for a configuration, which MLServer does not have."""
        path = f"/v2/models/{workload.model}/infer"
        return [
            Target("http", ports[0], path, forms.v2_json(workload)),
            Target("grpc", ports[1], GRPC_PATH, forms.v2_grpc(workload)),
        ]
