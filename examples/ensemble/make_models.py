"""Create the repository of the ensemble example: its configs and three small ONNX models.

    pip install onnx
    python examples/ensemble/make_models.py weather_models
    shoal serve weather_models

A reading is a temperature in Fahrenheit, a humidity in percent and a wind speed in miles per hour.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

CONFIGS = Path(__file__).parent / "models"


def model(
    taken: str,
    given: str,
    weight: Sequence[Sequence[float]],
    shift: Sequence[float],
    *,
    softmax: bool = False,
) -> ModelProto:
    """`given` = `taken` x weight + shift, for a batch of any size; optionally as probabilities."""
    weights = np.array(weight, np.float32)
    nodes = [
        helper.make_node("MatMul", [taken, "weight"], ["product"]),
        helper.make_node("Add", ["product", "shift"], ["sum" if softmax else given]),
    ]
    if softmax:
        nodes.append(helper.make_node("Softmax", ["sum"], [given], axis=1))
    rows, columns = weights.shape
    graph = helper.make_graph(
        nodes,
        "weather",
        [helper.make_tensor_value_info(taken, TensorProto.FLOAT, ["batch", rows])],
        [helper.make_tensor_value_info(given, TensorProto.FLOAT, ["batch", columns])],
        [
            numpy_helper.from_array(weights, "weight"),
            numpy_helper.from_array(np.array(shift, np.float32), "shift"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main(folder: Path) -> None:
    shutil.copytree(CONFIGS, folder, dirs_exist_ok=True)
    models = {
        "to_metric": model(
            "reading",
            "metric",
            [[5 / 9, 0, 0], [0, 1, 0], [0, 0, 0.44704]],
            [-160 / 9, 0, 0],
        ),
        # With temperature, "cold" becomes less likely and "hot" more likely.
        "comfort": model(
            "air", "scores", [[-0.4, 0, 0.4], [0, 0, 0], [0, 0, 0]], [4, 0, -11], softmax=True
        ),
        "feels_like": model("air", "degrees", [[1], [0.02], [-0.5]], [-1]),
    }
    for name, built in models.items():
        version = folder / name / "1"
        version.mkdir(exist_ok=True)
        (version / "model.onnx").write_bytes(built.SerializeToString())
    (folder / "weather" / "1").mkdir(exist_ok=True)  # an ensemble has a version but no model file
    print(f"{folder} is ready: shoal serve {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "weather_models"))
