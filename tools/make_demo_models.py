"""Create the models add_sub, digits and upper of the demo repository.

    python tools/make_demo_models.py [--into demo/shoal_demo/models]

Needs the `make-demo` extra (onnx, scikit-learn). Everything is seeded, so the same versions of
numpy, scikit-learn and onnx write the same bytes. IR version and opset are old on purpose: every
onnxruntime that Shoal accepts can read them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

IR_VERSION = 8
OPSET = 15
SEED = 20
DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def add_sub() -> onnx.ModelProto:
    """The model of Triton's first examples: the sum and the difference of two rows."""
    rows = ["batch", 16]
    return _model(
        "add_sub",
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
        ],
        [_value(name, TensorProto.INT32, rows) for name in ("INPUT0", "INPUT1")],
        [_value(name, TensorProto.INT32, rows) for name in ("OUTPUT0", "OUTPUT1")],
    )


def digits() -> tuple[onnx.ModelProto, float]:
    """A classifier of handwritten digits, 8 x 8 grey values from 0 to 16, and its accuracy on the
    quarter of the images that it was not trained on."""
    data = load_digits()
    train, test, train_names, test_names = train_test_split(
        data.data, data.target, test_size=0.25, stratify=data.target, random_state=SEED
    )
    network = MLPClassifier((48,), alpha=1e-2, max_iter=400, random_state=SEED)
    network.fit(train / 16.0, train_names)
    accuracy = float(network.score(test / 16.0, test_names))

    first, second = (weights.astype(np.float32) for weights in network.coefs_)
    first /= 16.0  # the scaling is part of the weights: clients send the grey values as they are
    constants = {
        "weights0": first,
        "bias0": network.intercepts_[0].astype(np.float32),
        "weights1": second,
        "bias1": network.intercepts_[1].astype(np.float32),
    }
    model = _model(
        "digits",
        [
            helper.make_node("Gemm", ["image", "weights0", "bias0"], ["hidden"]),
            helper.make_node("Relu", ["hidden"], ["active"]),
            helper.make_node("Gemm", ["active", "weights1", "bias1"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
        ],
        [_value("image", TensorProto.FLOAT, ["batch", 64])],
        [_value("probabilities", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return model, accuracy


def upper() -> onnx.ModelProto:
    """Texts in capital letters. StringNormalizer takes one row of texts, so the batch is
    flattened before it and reshaped into a column after it.

    The locale is "C", which every machine has; it converts ASCII letters only. The operator's
    default, en_US.UTF-8, is missing from most containers.
    """
    normalizer = helper.make_node(
        "StringNormalizer", ["row"], ["capitals"], case_change_action="UPPER", locale="C"
    )
    return _model(
        "upper",
        [
            helper.make_node("Reshape", ["text", "flat"], ["row"]),
            normalizer,
            helper.make_node("Reshape", ["capitals", "column"], ["upper"]),
        ],
        [_value("text", TensorProto.STRING, ["batch", 1])],
        [_value("upper", TensorProto.STRING, ["batch", 1])],
        [
            numpy_helper.from_array(np.array([-1], np.int64), "flat"),
            numpy_helper.from_array(np.array([-1, 1], np.int64), "column"),
        ],
    )


def _value(name: str, element: int, shape: list[str | int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def _model(
    name: str,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: list[onnx.TensorProto] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, name, inputs, outputs, initializer=constants or [])
    model = helper.make_model(
        graph,
        producer_name="shoal demo",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def _save(model: onnx.ModelProto, folder: Path) -> None:
    path = folder / model.graph.name / "1" / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString(deterministic=True))
    print(f"{path}: {path.stat().st_size} bytes")


def main() -> None:
    """Write the three model files and the labels; the configurations are written by hand."""
    parser = argparse.ArgumentParser(description="Create the models of the demo repository.")
    root = Path(__file__).resolve().parent.parent
    parser.add_argument("--into", type=Path, default=root / "demo" / "shoal_demo" / "models")
    folder = parser.parse_args().into
    digits_model, accuracy = digits()
    for model in (add_sub(), digits_model, upper()):
        _save(model, folder)
    labels = folder / "digits" / "labels.txt"
    labels.write_text("\n".join(DIGIT_NAMES) + "\n", encoding="utf-8")
    print(f"digits: accuracy {accuracy:.3f} on images it was not trained on")


if __name__ == "__main__":
    main()
