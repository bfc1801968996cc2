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


def text_detection(file: Path) -> None:
    """EAST: a score and a box for each cell of 4 x 4 pixels; here one box of 100 x 32 pixels."""
    import numpy as np
    from onnx import helper

    scores, boxes = "feature_fusion/Conv_7/Sigmoid:0", "feature_fusion/concat_3:0"
    row = column = 20  # the cell with the box
    nodes = [
        helper.make_node("Shape", ["input_images:0"], ["batch"], start=0, end=1),
        helper.make_node("Shape", ["input_images:0"], ["pixels"], start=1, end=3),
        helper.make_node("Div", ["pixels", "cell_size"], ["cells"]),
        helper.make_node("Concat", ["batch", "one_cell"], ["cell_shape"], axis=0),
        helper.make_node("Expand", ["score", "cell_shape"], ["cell"]),
        helper.make_node("Sub", ["cells", "position"], ["after"]),
        helper.make_node("Concat", ["before", "zero", "after", "zero"], ["padding"], axis=0),
        helper.make_node("Pad", ["cell", "padding"], [scores]),
        helper.make_node("Concat", ["batch", "cells", "numbers"], ["boxes_shape"], axis=0),
        helper.make_node("Expand", ["box", "boxes_shape"], [boxes]),
    ]
    _save(
        file,
        nodes,
        {"input_images:0": ("batch", "height", "width", 3)},
        {scores: ("batch", "rows", "columns", 1), boxes: ("batch", "rows", "columns", 5)},
        {
            "cell_size": np.array([4]),
            "one_cell": np.array([1, 1, 1]),
            "score": np.full((1, 1, 1, 1), 0.9, np.float32),
            "position": np.array([row + 1, column + 1]),
            "before": np.array([0, row, column, 0]),
            "zero": np.array([0]),
            "numbers": np.array([5]),
            "box": np.array([[[[16, 50, 16, 50, 0]]]], np.float32),  # to its four sides, angle
        },
    )


def text_recognition(file: Path, batch: int | str) -> None:
    """The recognition network: each of 26 columns becomes the class that its brightness selects."""
    import numpy as np
    from onnx import helper

    columns = np.repeat(np.eye(26, dtype=np.float32), 4, axis=0)[:100] / 4
    nodes = [
        helper.make_node("ReduceMean", ["input.1", "channel_and_rows"], ["line"], keepdims=0),
        helper.make_node("MatMul", ["line", "columns"], ["brightness"]),
        helper.make_node("Mul", ["brightness", "scale"], ["scaled"]),
        helper.make_node("Abs", ["scaled"], ["positive"]),
        helper.make_node("Mod", ["positive", "count"], ["chosen"], fmod=1),
        helper.make_node("Unsqueeze", ["chosen", "last"], ["chosen_for_each"]),
        helper.make_node("Sub", ["chosen_for_each", "classes"], ["distance"]),
        helper.make_node("Abs", ["distance"], ["distance_to_class"]),
        helper.make_node("Neg", ["distance_to_class"], ["308"]),
    ]
    _save(
        file,
        nodes,
        {"input.1": (batch, 1, 32, 100)},
        {"308": (batch, 26, 37)},
        {
            "channel_and_rows": np.array([1, 2]),
            "columns": columns,
            "scale": np.array(97, np.float32),
            "count": np.array(37, np.float32),
            "last": np.array([2]),
            "classes": np.arange(37, dtype=np.float32),
        },
    )


def clip_text_encoder(file: Path) -> None:
    """The text encoder of CLIP: 768 numbers for each token."""
    import numpy as np
    from onnx import helper

    nodes = [
        helper.make_node("Gather", ["embeddings", "input_ids"], ["last_hidden_state"]),
        helper.make_node(
            "ReduceMean", ["last_hidden_state", "axis"], ["pooler_output"], keepdims=0
        ),
    ]
    _save(
        file,
        nodes,
        {"input_ids": ("batch", "sequence")},
        {"last_hidden_state": ("batch", "sequence", 768), "pooler_output": ("batch", 768)},
        {"embeddings": _random(1024, 768), "axis": np.array([1])},
        integers=("input_ids",),
    )


def image_decoder(file: Path) -> None:
    """The decoder of Stable Diffusion's VAE: four channels to colours, eight times the size."""
    import numpy as np
    from onnx import helper

    nodes = [
        helper.make_node("Conv", ["latent_sample", "weights"], ["colours"]),
        helper.make_node("Resize", ["colours", "", "scales"], ["sample"], mode="nearest"),
    ]
    _save(
        file,
        nodes,
        {"latent_sample": ("batch", 4, "height", "width")},
        {"sample": ("batch", 3, "rows", "columns")},
        {"weights": _random(3, 4, 1, 1), "scales": np.array([1, 1, 8, 8], np.float32)},
    )


def _random(*shape: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _save(
    file: Path,
    nodes: list[Any],
    inputs: dict[str, Shape],
    outputs: dict[str, Shape],
    weights: dict[str, Any],
    *,
    integers: Sequence[str] = (),
) -> None:
    import onnx
    from onnx import helper, numpy_helper

    int32, number = onnx.TensorProto.INT32, onnx.TensorProto.FLOAT

    def describe(tensors: dict[str, Shape]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, int32 if name in integers else number, shape)
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
