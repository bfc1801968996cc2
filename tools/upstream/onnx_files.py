"""Small ONNX and OpenVINO files with random weights and the tensors of well known networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Writer = Callable[[Path], None]
Shape = Sequence[int | str]


def densenet(file: Path) -> None:
    """DenseNet-121 of the ONNX model zoo."""
    from onnx import helper

    nodes = [
        helper.make_node("GlobalAveragePool", ["data_0"], ["pooled"]),
        helper.make_node("Conv", ["pooled", "weights"], ["fc6_1"]),
    ]
    inputs = {"data_0": (1, 3, 224, 224)}
    _save(file, nodes, inputs, {"fc6_1": (1, 1000, 1, 1)}, {"weights": _random(1000, 3, 1, 1)})


def vit(file: Path) -> None:
    """The encoder of ViT as transformers exported it: patches to 768 numbers, and one for all."""
    import numpy as np
    from onnx import helper

    nodes = [
        helper.make_node("Conv", ["pixel_values", "weights"], ["grid"], strides=[16, 16]),
        helper.make_node("Reshape", ["grid", "flat"], ["channels"]),
        helper.make_node("Transpose", ["channels"], ["patches"], perm=[0, 2, 1]),
        helper.make_node("ReduceMean", ["patches", "axis"], ["whole"], keepdims=1),
        helper.make_node("Concat", ["whole", "patches"], ["last_hidden_state"], axis=1),
        helper.make_node("ReduceMean", ["patches", "axis"], ["1519"], keepdims=0),
    ]
    _save(
        file,
        nodes,
        {"pixel_values": ("batch", 3, 224, 224)},
        {"last_hidden_state": ("batch", 197, 768), "1519": ("batch", 768)},
        {
            "weights": _random(768, 3, 16, 16),
            "flat": np.array([0, 768, -1]),
            "axis": np.array([1]),
        },
    )


def keras_resnet50(file: Path) -> None:
    """ResNet-50 of Keras, converted to OpenVINO: the channels come last."""
    import openvino
    from onnx import helper

    nodes = [
        helper.make_node("Transpose", ["input_1"], ["channels_first"], perm=[0, 3, 1, 2]),
        helper.make_node("GlobalAveragePool", ["channels_first"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["predictions"]),
    ]
    inputs = {"input_1": ("batch", 224, 224, 3)}
    original = file.with_suffix(".onnx")
    weights = {"weights": _random(3, 1000) / 100}
    _save(original, nodes, inputs, {"predictions": ("batch", 1000)}, weights)
    openvino.save_model(openvino.convert_model(original), file)
    original.unlink()


def _random(*shape: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _save(
    file: Path,
    nodes: list[Any],
    inputs: dict[str, Shape],
    outputs: dict[str, Shape],
    weights: dict[str, Any],
) -> None:
    import onnx
    from onnx import helper, numpy_helper

    def describe(tensors: dict[str, Shape]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
            for name, shape in tensors.items()
        ]

    graph = helper.make_graph(
        nodes,
        "stand-in",
        describe(inputs),
        describe(outputs),
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opset = helper.make_opsetid("", 18)
    file.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), file)
