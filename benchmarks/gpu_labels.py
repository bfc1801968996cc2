"""Labels of photos that a GPU prepares, beside those that the CPU prepares: how much they differ.

    python -m benchmarks.gpu_labels FOLDER [--network model.onnx]

FOLDER has photos; parts of them, in several sizes and kinds of JPEG, are classified by a trained
network (that of the demo, in PyTorch) that is served three times: everything on the CPU; photos
prepared on the CPU, and the network on the GPU in half precision; and everything on the GPU. Needs
PyTorch with CUDA, and onnx to read the network.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.gpu_photos import classified
from benchmarks.serving import serve
from shoal.backends.pytorch.library import quiet

DEMO = Path("demo/shoal_demo/models/photos/1/model.onnx")
_TASK = {"resize": 256, "interpolation": "bicubic", "mean": 127, "std": 128, "scores": "softmax"}
_HALF = 'parameters { key: "HALF_PRECISION" value { string_value: "fp16" } }'
_CONFIG = """
backend: "pytorch" max_batch_size: 4 dynamic_batching {{ }}
input {{ name: "INPUT__0" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }}
output {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1000 ] }}
instance_group [ {{ kind: {kind} }} ]
parameters {{ key: "task" value {{ string_value: "image-classification" }} }}
{more}
"""
# By name: where it runs, what is added to its config, and who prepares photos.
MODELS = {
    "cpu": ("KIND_CPU", "", "pillow"),
    "network_on_gpu": ("KIND_GPU", _HALF, "pillow"),
    "gpu": ("KIND_GPU", _HALF, "auto"),
}
PAIRS = (("network_on_gpu", "cpu"), ("gpu", "network_on_gpu"), ("gpu", "cpu"))


class Chain(torch.nn.Module):
    """The nodes of a graph of convolutions, one after the other."""

    def __init__(self, nodes: Sequence[Any], weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.nodes = nodes
        self.names = list(weights)
        self.weights = torch.nn.ParameterList(weights.values())

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Run them; the last one makes the output."""
        weights = dict(zip(self.names, self.weights, strict=True))
        found: dict[str, Any] = {"": None, "input": image, **weights}
        for kind, inputs, output, options in self.nodes:
            found[output] = _OPERATORS[kind](*[found.get(name) for name in inputs], **options)
        return found[output]  # type: ignore[no-any-return]


def _convolution(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    group: int = 1,
    **_: Any,
) -> torch.Tensor:
    top, left, bottom, right = pads
    padded = torch.nn.functional.pad(rows, (left, right, top, bottom))
    return torch.nn.functional.conv2d(padded, weight, bias, tuple(strides), groups=group)


_OPERATORS: dict[str, Any] = {
    "Conv": _convolution,
    "Clip": torch.clamp,
    "Add": lambda one, other: one + other,
    "GlobalAveragePool": lambda rows: rows.mean((2, 3)),
    "Gemm": lambda rows, weight, bias, **_: rows @ weight.T + bias,
}


def read(path: Path) -> Chain:
    """A network of an ONNX file that has these operators."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = f"{folder}/folded.onnx"  # constants are computed
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        graph = onnx.load(options.optimized_model_filepath).graph
    values = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    nodes, same = [], {}
    for node in graph.node:
        inputs = [same.get(name, name) for name in node.input]
        if node.op_type in _OPERATORS:
            given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
            if node.op_type == "Clip":
                given = dict(
                    zip(("min", "max"), [float(values[name]) for name in inputs[1:]], strict=True)
                )
                inputs = inputs[:1]
            nodes.append((node.op_type, inputs, node.output[0], given))
        elif node.op_type == "Reshape":  # of means, which have two dimensions here
            same[node.output[0]] = inputs[0]
    used = {name for _, inputs, _, _ in nodes for name in inputs} & values.keys()
    return Chain(nodes, {name: torch.from_numpy(values[name].copy()) for name in sorted(used)})


def parts(folder: Path) -> list[bytes]:
    """JPEGs: parts of all photos in a folder."""
    found = []
    random = np.random.default_rng(0)
    for path in sorted(folder.iterdir()):
        image = Image.open(path).convert("RGB")
        for number in range(8):
            width, height = (random.uniform(0.5, 1, 2) * image.size).astype(int)
            left, top = (random.uniform(0, 1, 2) * (image.size - np.array([width, height]))).astype(
                int
            )
            part = image.crop((left, top, left + width, top + height))
            scale = random.uniform(0.9, 1.6) * 256 / min(part.size)
            part = part.resize((round(part.width * scale), round(part.height * scale)))
            file = io.BytesIO()
            part.save(file, "JPEG", quality=int(random.integers(80, 96)), subsampling=number % 3)
            found.append(file.getvalue())
    return found


def write(folder: Path, network: torch.nn.Module) -> None:
    """The folders of all models."""
    with quiet, torch.no_grad():
        traced = torch.jit.trace(network, torch.zeros(2, 3, 224, 224))
    for name, (kind, more, decoder) in MODELS.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        traced.save(str(version / "model.pt"))
        config = _CONFIG.format(kind=kind, more=more)
        (version.parent / "config.pbtxt").write_text(config, encoding="utf-8")
        task = json.dumps({**_TASK, "decoder": decoder})
        (version.parent / "task.json").write_text(task, encoding="utf-8")


def main() -> None:
    """Print how the answers of each pair of models differ."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("photos", type=Path, help="a folder with photos")
    parser.add_argument("--network", type=Path, default=DEMO, help="a file of ONNX")
    asked = parser.parse_args()
    compare(read(asked.network), parts(asked.photos))


def compare(network: torch.nn.Module, files: Sequence[bytes]) -> None:
    """Serve the network, send the photos to all models, and print the table."""
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), network)
        with serve(name) as server:
            answers = {
                model: [classified(server.http_port, model, file) for file in files]
                for model in MODELS
            }
    print(f"{len(files)} photos")
    print("| photos of | compared with | another best label | scores differ by, at most | mean |")
    print("|---|---|---:|---:|---:|")
    for one, other in PAIRS:
        differences, labels = [], 0
        for found, expected in zip(answers[one], answers[other], strict=True):
            scores = {each["label"]: each["score"] for each in found}
            best = expected[0]
            labels += found[0]["label"] != best["label"]
            differences.append(abs(scores.get(best["label"], 0.0) - best["score"]))
        worst, mean = max(differences), np.mean(differences)
        print(f"| {one} | {other} | {labels} | {worst:.5f} | {mean:.6f} |")


if __name__ == "__main__":
    main()
