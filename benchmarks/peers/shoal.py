"""Shoal from this working tree, serving the ONNX file itself."""

from __future__ import annotations

from pathlib import Path

from benchmarks import environments, forms
from benchmarks.peers import repository
from benchmarks.peers.base import GRPC_PATH, Peer, Target
from benchmarks.places import ROOT
from benchmarks.workloads import Workload


class Shoal(Peer):
    """`shoal serve` with its defaults."""

    name = "shoal"
    title = "Shoal (ONNX Runtime backend)"
    packages = ("shoal", "numpy")
    settings = "defaults; max_batch_size 64, dynamic batching without a wait"

    def install(self) -> None:
        """The package itself and nothing else: what `pip install shoal` gives."""
        edition = (ROOT / "pyproject.toml").read_text(encoding="utf-8")  # names what it needs
        self.python = environments.ensure(self.name, ("--editable", str(ROOT)), edition)

    def leaves_out(self, workload: Workload) -> str:
        """Pictures are for a model behind a task, which decodes them on the server."""
        if workload.picture:
            return "decoding pictures on the server comes with the tasks feature"
        return ""

    def launch(self, workload: Workload, ports: list[int], folder: Path) -> list[str]:
        """One model repository; all three ports are given, so that two servers never meet."""
        text = repository.config(workload, workload.model, "onnxruntime")
        repository.write(folder / "models", workload.model, text, "model.onnx", workload.model_path)
        return [
            str(self.python.with_name("shoal")),
            "serve",
            str(folder / "models"),
            *addresses(ports),
        ]

    def targets(self, workload: Workload, ports: list[int]) -> list[Target]:
        """Both protocols."""
        return v2_targets(workload, ports)


def addresses(ports: list[int]) -> list[str]:
    """The options that say where to listen; Shoal and Triton have the same."""
    options = []
    for name, port in zip(("http", "grpc", "metrics"), ports, strict=True):
        options += [f"--{name}-port={port}", f"--{name}-address=127.0.0.1"]
    return options


def v2_targets(workload: Workload, ports: list[int]) -> list[Target]:
    """HTTP and gRPC with binary tensors."""
    model = workload.model
    path = f"/v2/models/{model}/infer"
    return [
        Target("http", ports[0], path, forms.v2_http(workload), model, ports[0]),
        Target("grpc", ports[1], GRPC_PATH, forms.v2_grpc(workload), model, ports[0]),
    ]
