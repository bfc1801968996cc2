"""Shoal from this working tree, serving the ONNX file itself; photos by its task."""

from __future__ import annotations

import json
import os
from pathlib import Path

from benchmarks import environments, forms
from benchmarks.peers import repository
from benchmarks.peers.base import GRPC_PATH, Peer, Target
from benchmarks.places import ROOT
from benchmarks.shapes import CLASSES, PICTURE
from benchmarks.workloads import JSON, Workload

# What the services do to a picture with OpenCV, in the words of task.json.
TASK = {
    "crop": "none",
    "interpolation": "bilinear",
    "antialias": False,
    "mean": [123.675, 116.28, 103.53],
    "std": 57.63,
    "scores": "as-is",
}


class Shoal(Peer):
    """`shoal serve` with its defaults."""

    name = "shoal"
    title = "Shoal (ONNX Runtime backend)"
    packages = ("shoal", "numpy")
    settings = (
        "defaults; max_batch_size 64, dynamic batching without a wait; W2: one instance a core"
    )
    takes_json = True
    speaks_v2 = True
    most_copies = 1_000

    def install(self) -> None:
        """What `pip install 'shoal[tasks]'` gives, and OpenCV, which resizes for all peers."""
        edition = (ROOT / "pyproject.toml").read_text(encoding="utf-8")  # names what it needs
        wanted = ("--editable", f"{ROOT}[tasks]", *environments.PICTURES)
        self.python = environments.ensure(self.name, wanted, edition)

    def launch(self, workload: Workload, ports: list[int], folder: Path) -> list[str]:
        """One model repository; all three ports are set, so that two servers never collide."""
        models, source = folder / "models", workload.model_path
        if workload.picture:
            text = _classifier(workload, self.workers(workload))
            repository.write(models, workload.model, text, "model.onnx", source)
            settings = models / workload.model / "task.json"
            settings.write_text(json.dumps(TASK), encoding="utf-8")
        else:
            repository.write_all(models, workload, "onnxruntime", "model.onnx", source)
        return [
            str(self.python.with_name("shoal")),
            "serve",
            str(models),
            *addresses(ports),
        ]

    def variables(self, workload: Workload, ports: list[int]) -> dict[str, str]:
        """Source of this tree first: several trees can share one environment."""
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        return {**super().variables(workload, ports), "PYTHONPATH": path}

    def targets(self, workload: Workload, ports: list[int]) -> list[Target]:
        """Both protocols; photos are sent to the task, as the body."""
        if workload.picture:
            path = f"/v2/models/{workload.model}/classify"
            return [Target("http", ports[0], path, forms.labels(workload))]
        return v2_targets(workload, ports)


def _classifier(workload: Workload, instances: int) -> str:
    """The config of a model that takes photos as tensors, and as files by its task.

    Batches are no larger than those of the plain loop: larger ones would only use memory.
    """
    return (
        f'name: "{workload.model}"\nbackend: "onnxruntime"\n'
        f"max_batch_size: {max(workload.batches)}\n"
        f'input {{ name: "image" data_type: TYPE_FP32 dims: {list(PICTURE)} }}\n'
        f'output {{ name: "scores" data_type: TYPE_FP32 dims: {list(CLASSES)} }}\n'
        f"dynamic_batching {{ }}\ninstance_group {{ count: {instances} kind: KIND_CPU }}\n"
        'parameters { key: "task" value { string_value: "image-classification" } }\n'
    )


def addresses(ports: list[int]) -> list[str]:
    """The options for addresses and ports, which Shoal and Triton share."""
    options = []
    for name, port in zip(("http", "grpc", "metrics"), ports, strict=True):
        options += [f"--{name}-port={port}", f"--{name}-address=127.0.0.1"]
    return options


def v2_targets(workload: Workload, ports: list[int]) -> list[Target]:
    """HTTP and gRPC with binary tensors; HTTP alone for JSON and for requests to many models."""
    model = workload.model
    path = f"/v2/models/{model}/infer"
    if workload.encoding == JSON:
        return [Target("http", ports[0], path, forms.v2_json(workload), model, ports[0])]
    if workload.copies:
        paths = tuple(f"/v2/models/{name}/infer" for name in workload.model_names)
        exchange = forms.v2_http(workload)
        return [Target("http", ports[0], path, exchange, model, ports[0], paths)]
    return [
        Target("http", ports[0], path, forms.v2_http(workload), model, ports[0]),
        Target("grpc", ports[1], GRPC_PATH, forms.v2_grpc(workload), model, ports[0]),
    ]
