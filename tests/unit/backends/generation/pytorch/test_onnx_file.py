"""ONNX files, read without the package that wrote them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array

from shoal.backends.generation.pytorch.onnx_file import read_onnx
from shoal.errors import BackendFailure


def model(weights):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Transpose", ["y"], ["z"], perm=[1, 0]),
        helper.make_node("LeakyRelu", ["z"], ["out"], alpha=0.5, domain="own"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 2])]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, [3, None])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


W = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_nodes_tensors_and_weights(tmp_path):
    onnx.save_model(model([from_array(W, "w")]), str(tmp_path / "m.onnx"))
    found = read_onnx(tmp_path / "m.onnx")
    assert found.inputs == {"x": ("rows", 2)}
    assert found.outputs == {"out": (3, None)}
    assert [node.operator for node in found.nodes] == ["MatMul", "Transpose", "own.LeakyRelu"]
    assert found.nodes[1].attributes == {"perm": [1, 0]}
    assert found.nodes[2].attributes == {"alpha": 0.5}
    assert np.array_equal(found.weights["w"], W)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.int64, np.int32, np.bool_])
def test_types_of_weights(tmp_path, kind):
    array = W.astype(kind)
    onnx.save_model(model([from_array(array, "w")]), str(tmp_path / "m.onnx"))
    found = read_onnx(tmp_path / "m.onnx").weights["w"]
    assert found.dtype == kind
    assert np.array_equal(found, array)


def test_numbers_that_are_no_bytes(tmp_path):
    lists = [
        helper.make_tensor("w", TensorProto.FLOAT, [2, 3], W.reshape(-1).tolist()),
        helper.make_tensor("h", TensorProto.FLOAT16, [2], [0.5, -2.0]),
        helper.make_tensor("i", TensorProto.INT64, [], [7]),
    ]
    onnx.save_model(model(lists), str(tmp_path / "m.onnx"))
    found = read_onnx(tmp_path / "m.onnx").weights
    assert np.array_equal(found["w"], W)
    assert found["h"].tolist() == [0.5, -2.0]
    assert found["i"].shape == ()
    assert found["i"] == 7


def test_weights_in_a_second_file(tmp_path):
    onnx.save_model(
        model([from_array(W, "w")]),
        str(tmp_path / "m.onnx"),
        save_as_external_data=True,
        location="m.onnx.data",
        size_threshold=0,
    )
    assert np.array_equal(read_onnx(tmp_path / "m.onnx").weights["w"], W)
    (tmp_path / "m.onnx.data").unlink()
    with pytest.raises(BackendFailure, match=r"cannot read 'm\.onnx'"):
        read_onnx(tmp_path / "m.onnx")


def test_what_is_not_onnx(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"\xff" * 100)
    with pytest.raises(BackendFailure, match=r"'m\.onnx' cannot be read as ONNX"):
        read_onnx(tmp_path / "m.onnx")
