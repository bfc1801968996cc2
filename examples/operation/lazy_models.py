"""Three models, memory for two: each is loaded at its first request and unloaded to make room.

pip install "tritonclient[http]" onnx
python examples/operation/lazy_models.py fleet          # writes fleet/cod, fleet/eel and fleet/ray
shoal serve fleet --model-control-mode=lazy --model-memory-budget=100M
python examples/operation/lazy_models.py [localhost:8000]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

NAMES = ("cod", "eel", "ray")
SIDE = 3000  # a matrix of 36 MB


def write(repository: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper, save

    for seed, name in enumerate(NAMES):
        weights = np.random.default_rng(seed).random((SIDE, SIDE), np.float32)
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "weights"], ["y"])],
            name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, SIDE])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, SIDE])],
            [numpy_helper.from_array(weights, "weights")],
        )
        folder = repository / name / "1"
        folder.mkdir(parents=True, exist_ok=True)
        opset = [helper.make_opsetid("", 17)]
        save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "model.onnx")


def main(server: str) -> None:
    import tritonclient.http as triton

    row = triton.InferInput("x", [1, SIDE], "FP32")
    row.set_data_from_numpy(np.ones((1, SIDE), np.float32))
    with triton.InferenceServerClient(server) as client:
        for name in (*NAMES, NAMES[0]):
            began = time.monotonic()
            client.infer(name, [row])
            print(f"{name} responded after {1000 * (time.monotonic() - began):.0f} ms")
            for model in client.get_model_repository_index():
                print(f"    {model['name']}: {model['state']}, {model.get('reason', '')}")


if __name__ == "__main__":
    argument = sys.argv[1] if len(sys.argv) > 1 else "localhost:8000"
    if ":" in argument:
        main(argument)
    else:
        write(Path(argument))
