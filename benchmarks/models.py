"""Create the models and the photo of the benchmarks, all from fixed seeds.

    seeds --onnx.helper--> .tools/bench/models/<name>.onnx, photo.jpg

    add_sub     two INT32 rows of 16, their sum and their difference           W1
    classifier  ResNet-18 with random weights: FP32[3,224,224] to 1000 scores  W2
    encoder     BERT-base with random weights: 128 token ids to 768 numbers    W3
    pool, echo  600 KB of FP32 to 16 sums, or to the same size doubled         W4
    double      any number of FP32, doubled                                    JSON-1k, JSON-100k
    mlp         four layers of 512, from FP32[512] to FP32[512]                MLP
    text        MiniLM's size, random weights: any number of tokens to 384     mixed_lengths

Nothing is downloaded. Random weights take as long to compute as trained ones, and the outputs can
be compared just as well.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.shapes import CLASSES, FEATURES, HIDDEN, LARGE, PICTURE, ROW, SUMS, TOKENS

IR_VERSION = 8
OPSET = 17
SEED = 4
PHOTO_SIZE = (500, 400)
PHOTO_BYTES = 100_000

_LAYERS = 4  # of the mlp
VOCABULARY = 30_522
LONGEST_TEXT = 512


class Graph:
    """Builder of a graph: nodes in order, weights by name."""

    def __init__(self, name: str, seed: int = SEED) -> None:
        self.name = name
        self._random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append a node; the name of its only output."""
        output = output or f"{operator.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def constant(self, value: np.ndarray[Any, Any]) -> str:
        """Keep an array as a weight; its name."""
        name = f"weight_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(value, name))
        return name

    def weight(self, *shape: int, scale: float) -> str:
        """Keep normally distributed numbers of this standard deviation."""
        values = self._random.standard_normal(shape, dtype=np.float32)
        return self.constant(values * np.float32(scale))

    def finish(
        self, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        """The whole model, checked."""
        graph = helper.make_graph(self._nodes, self.name, inputs, outputs, self._weights)
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(
            graph, producer_name="shoal benchmarks", ir_version=IR_VERSION, opset_imports=[opset]
        )
        onnx.checker.check_model(model)
        return model


def add_sub() -> onnx.ModelProto:
    """The sum and the difference of two rows."""
    graph = Graph("add_sub")
    graph.add("Add", "INPUT0", "INPUT1", output="OUTPUT0")
    graph.add("Sub", "INPUT0", "INPUT1", output="OUTPUT1")
    return graph.finish(
        [_value(name, TensorProto.INT32, ROW) for name in ("INPUT0", "INPUT1")],
        [_value(name, TensorProto.INT32, ROW) for name in ("OUTPUT0", "OUTPUT1")],
    )


def pool() -> onnx.ModelProto:
    """Sixteen sums of a large tensor: the request is large, computation and response are small."""
    graph = Graph("pool")
    shape = graph.constant(np.array([-1, *SUMS, LARGE[0] // SUMS[0]], np.int64))
    parts = graph.add("Reshape", "INPUT", shape)
    axes = graph.constant(np.array([2], np.int64))
    graph.add("ReduceSum", parts, axes, output="OUTPUT", keepdims=0)
    return graph.finish(
        [_value("INPUT", TensorProto.FLOAT, LARGE)], [_value("OUTPUT", TensorProto.FLOAT, SUMS)]
    )


def echo() -> onnx.ModelProto:
    """A large tensor doubled: large both ways."""
    return _doubled("echo", LARGE)


def double() -> onnx.ModelProto:
    """A tensor of any length, doubled."""
    return _doubled("double", ("numbers",))


def _doubled(name: str, shape: tuple[int | str, ...]) -> onnx.ModelProto:
    graph = Graph(name)
    graph.add("Add", "INPUT", "INPUT", output="OUTPUT")
    return graph.finish(
        [_value("INPUT", TensorProto.FLOAT, shape)], [_value("OUTPUT", TensorProto.FLOAT, shape)]
    )


def mlp() -> onnx.ModelProto:
    """A network of middle size: a row takes 50 µs, 64 rows half a millisecond."""
    graph = Graph("mlp")
    (width,) = FEATURES
    data = "INPUT"
    for layer in range(_LAYERS):
        product = graph.add("MatMul", data, graph.weight(width, width, scale=(2 / width) ** 0.5))
        output = "OUTPUT" if layer == _LAYERS - 1 else ""
        data = graph.add("Relu", product, output=output)
    return graph.finish(
        [_value("INPUT", TensorProto.FLOAT, FEATURES)],
        [_value("OUTPUT", TensorProto.FLOAT, FEATURES)],
    )


def classifier() -> onnx.ModelProto:
    """ResNet-18 (11.7 million weights) with its batch norms folded into the convolutions."""
    graph = Graph("classifier")

    def convolve(data: str, channels: tuple[int, int], size: int, stride: int) -> str:
        fan_in = channels[0] * size * size
        weights = graph.weight(channels[1], channels[0], size, size, scale=(1.0 / fan_in) ** 0.5)
        bias = graph.weight(channels[1], scale=0.01)
        around = [size // 2] * 4
        return graph.add("Conv", data, weights, bias, pads=around, strides=[stride, stride])

    data = graph.add("Relu", convolve("image", (3, 64), 7, 2))
    data = graph.add("MaxPool", data, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    before = 64
    for channels in (64, 128, 256, 512):
        for stride in (1 if channels == 64 else 2, 1):
            inner = graph.add("Relu", convolve(data, (before, channels), 3, stride))
            inner = convolve(inner, (channels, channels), 3, 1)
            if before != channels:
                data = convolve(data, (before, channels), 1, stride)
            data = graph.add("Relu", graph.add("Add", inner, data))
            before = channels
    data = graph.add("Flatten", graph.add("GlobalAveragePool", data))
    weights = graph.weight(before, CLASSES[0], scale=0.5)
    logits = graph.add("Gemm", data, weights, graph.weight(CLASSES[0], scale=0.01))
    graph.add("Softmax", logits, output="scores", axis=1)
    return graph.finish(
        [_value("image", TensorProto.FLOAT, PICTURE)],
        [_value("scores", TensorProto.FLOAT, CLASSES)],
    )


def encoder() -> onnx.ModelProto:
    """BERT-base (109 million weights): the first token's hidden state, through its pooler."""
    return _bert("encoder", hidden=HIDDEN[0], layers=12, heads=12, inner=3_072, tokens=TOKENS[0])


def text() -> onnx.ModelProto:
    """As large as all-MiniLM-L6 (22 million weights), for texts of any length up to 512 tokens."""
    return _bert("text", hidden=384, layers=6, heads=12, inner=1_536, tokens=None)


def _bert(
    name: str, *, hidden: int, layers: int, heads: int, inner: int, tokens: int | None
) -> onnx.ModelProto:
    """An encoder with a pooler; `tokens` is how many it takes, None for any number."""
    graph = Graph(name)

    def dense(data: str, shape: tuple[int, int]) -> str:
        product = graph.add("MatMul", data, graph.weight(*shape, scale=0.02))
        return graph.add("Add", product, graph.weight(shape[1], scale=0.02))

    def normal(data: str) -> str:
        scale = graph.constant(np.ones(hidden, np.float32))
        shift = graph.constant(np.zeros(hidden, np.float32))
        return graph.add("LayerNormalization", data, scale, shift, axis=-1, epsilon=1e-12)

    apart = graph.constant(np.array([0, 0, heads, hidden // heads], np.int64))
    together = graph.constant(np.array([0, 0, hidden], np.int64))
    divisor = graph.constant(np.array((hidden // heads) ** 0.5, np.float32))
    root_two = graph.constant(np.array(2**0.5, np.float32))
    one = graph.constant(np.array(1.0, np.float32))
    half = graph.constant(np.array(0.5, np.float32))

    def split(data: str, order: list[int]) -> str:
        return graph.add("Transpose", graph.add("Reshape", data, apart), perm=order)

    def attend(data: str, mask: str) -> str:
        query = split(dense(data, (hidden, hidden)), [0, 2, 1, 3])
        key = split(dense(data, (hidden, hidden)), [0, 2, 3, 1])
        value = split(dense(data, (hidden, hidden)), [0, 2, 1, 3])
        scores = graph.add("Div", graph.add("MatMul", query, key), divisor)
        weights = graph.add("Softmax", graph.add("Add", scores, mask), axis=3)
        mixed = graph.add("Transpose", graph.add("MatMul", weights, value), perm=[0, 2, 1, 3])
        return dense(graph.add("Reshape", mixed, together), (hidden, hidden))

    def gelu(data: str) -> str:
        error = graph.add("Add", graph.add("Erf", graph.add("Div", data, root_two)), one)
        return graph.add("Mul", graph.add("Mul", data, error), half)

    words = graph.add("Gather", graph.weight(VOCABULARY, hidden, scale=0.02), "input_ids")
    places = graph.weight(1, tokens or LONGEST_TEXT, hidden, scale=0.02)
    if tokens is None:
        second = graph.constant(np.array([1], np.int64))
        length = graph.add("Gather", graph.add("Shape", "input_ids"), second)
        places = graph.add("Slice", places, graph.constant(np.zeros(1, np.int64)), length, second)
    data = normal(graph.add("Add", words, places))
    middle = graph.constant(np.array([1, 2], np.int64))
    shown = graph.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    hidden_ones = graph.add("Sub", one, graph.add("Unsqueeze", shown, middle))
    mask = graph.add("Mul", hidden_ones, graph.constant(np.array(-10_000.0, np.float32)))
    for _ in range(layers):
        data = normal(graph.add("Add", attend(data, mask), data))
        wider = dense(gelu(dense(data, (hidden, inner))), (inner, hidden))
        data = normal(graph.add("Add", wider, data))
    first = graph.add("Gather", data, graph.constant(np.array(0, np.int64)), axis=1)
    graph.add("Tanh", dense(first, (hidden, hidden)), output="embedding")
    shape: tuple[int | str, ...] = ("sequence" if tokens is None else tokens,)
    return graph.finish(
        [_value(name, TensorProto.INT64, shape) for name in ("input_ids", "attention_mask")],
        [_value("embedding", TensorProto.FLOAT, (hidden,))],
    )


MAKERS: dict[str, Callable[[], onnx.ModelProto]] = {
    "add_sub": add_sub,
    "classifier": classifier,
    "encoder": encoder,
    "pool": pool,
    "echo": echo,
    "double": double,
    "mlp": mlp,
    "text": text,
}


def make(name: str, folder: Path) -> Path:
    """The file of this model below `folder`, created if it is missing or older than this module.

    It is renamed when it is complete, so an interrupted run leaves no incomplete file.
    """
    path = folder / f"{name}.onnx"
    if not path.exists() or path.stat().st_mtime < Path(__file__).stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_bytes(MAKERS[name]().SerializeToString())
        partial.rename(path)
    return path


def photo() -> bytes:
    """A JPEG of about 100 KB with large shapes and fine grain, like one of a camera."""
    import cv2

    random = np.random.default_rng(SEED)
    width, height = PHOTO_SIZE
    coarse = random.integers(0, 255, (8, 10, 3)).astype(np.uint8)
    picture = cv2.resize(coarse, PHOTO_SIZE, interpolation=cv2.INTER_CUBIC).astype(np.int16)
    picture += random.normal(0, 14, (height, width, 3)).astype(np.int16)
    pixels = np.clip(picture, 0, 255).astype(np.uint8)
    for quality in range(50, 100):
        written, data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])
        if written and len(data) >= PHOTO_BYTES:
            break
    return bytes(data)


def _value(name: str, element: int, shape: tuple[int | str, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, ["batch", *shape])
