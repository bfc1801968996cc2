"""ONNX graphs run by PyTorch: the results of ONNX Runtime, with fewer operators."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from shoal.errors import ConfigError
from shoal.export.graph import GraphBuilder

torch = pytest.importorskip("torch")
graphs = pytest.importorskip("shoal.backends.generation.pytorch.graph")
fusions = pytest.importorskip("shoal.backends.generation.pytorch.fusions")
onnx_file = pytest.importorskip("shoal.backends.generation.pytorch.onnx_file")

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(2, 5, 8)).astype(np.float32)


def results(graph, path, **feeds):
    """Of ONNX Runtime and of ours, and the operators that ours consists of."""
    graph.save(path)
    theirs = onnxruntime.InferenceSession(str(path)).run(None, feeds)
    made = graphs.TorchGraph(path, torch.device("cpu"), torch.float32)
    with torch.inference_mode():
        ours = made({name: torch.from_numpy(array) for name, array in feeds.items()})
    operators = [node.operator for node in fusions.fused(onnx_file.read_onnx(path))]
    return theirs, [tensor.numpy() for tensor in ours.values()], operators


def started():
    graph = GraphBuilder("g")
    return graph, graph.input("x", TensorProto.FLOAT, ["rows", "tokens", 8])


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("gelu", ["fused.Gelu"]),
        ("gelu_new", ["fused.Gelu"]),
        ("quick_gelu", ["Mul", "Sigmoid", "Mul"]),
        ("relu", ["Relu"]),
    ],
)
def test_activations(tmp_path, name, left):
    graph, x = started()
    graph.output(graph.activation(name, x), "y", ["rows", "tokens", 8])
    theirs, ours, operators = results(graph, tmp_path / "m.onnx", x=X)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4, atol=1e-5)
    assert operators == [*left, "Identity"]


def test_linear_layers_and_attention(tmp_path):
    graph, x = started()
    weight, bias = RANDOM.normal(size=(8, 8)).astype(np.float32), X[0, 0]
    query, keys, values = (graph.heads(graph.linear(x, weight, bias), 2, 4) for _ in range(3))
    seen = graph.attend(query, graph.transposed(keys), values)
    graph.output(graph.join_heads(seen, 8), "y", ["rows", "tokens", 8])
    graph.output(graph.linear(x, weight, None), "z", ["rows", "tokens", 8])
    theirs, ours, operators = results(graph, tmp_path / "m.onnx", x=X)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert operators.count("fused.Linear") == 3
    assert operators.count("fused.Attention") == 1
    assert operators.count("MatMul") == 1


def test_a_value_that_is_read_twice_is_kept(tmp_path):
    graph, x = started()
    product = graph.linear(x, X[0, :5].T.copy() @ X[0, :5], None)
    graph.output(graph.node("Add", product, graph.weight(X[0, 0])), "y", ["rows", "tokens", 8])
    graph.output(product, "z", ["rows", "tokens", 8])
    theirs, ours, _ = results(graph, tmp_path / "m.onnx", x=X)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_operators_that_are_missing_are_named(tmp_path):
    graph, x = started()
    graph.output(graph.node("Softplus", graph.node("Cos", x)), "y", ["rows", "tokens", 8])
    graph.save(tmp_path / "m.onnx")
    with pytest.raises(ConfigError, match=r"not supported on a GPU: Cos, Softplus\. Write kind"):
        graphs.TorchGraph(tmp_path / "m.onnx", torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(
    "padding",
    [
        {"pads": [1, 1]},
        {"pads": [0, 2]},
        {"pads": [2, 1], "strides": [2]},
        {"auto_pad": "SAME_UPPER", "strides": [2]},
        {"auto_pad": "SAME_LOWER", "strides": [3]},
        {"auto_pad": "VALID"},
    ],
)
def test_padding_of_convolutions(tmp_path, padding):
    graph = GraphBuilder("g")
    x = graph.input("x", TensorProto.FLOAT, ["rows", 5, 8])
    weight = graph.weight(RANDOM.normal(size=(3, 5, 4)).astype(np.float32))
    graph.output(graph.node("Conv", x, weight, **padding), "y", ["rows", 3, "width"])
    theirs, ours, _ = results(graph, tmp_path / "m.onnx", x=X)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4, atol=1e-5)
