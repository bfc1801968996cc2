"""Small ONNX models for tests: each builder returns a checked `ModelProto`, made in milliseconds.

    save(add_sub("FP32", dims=(4,)), folder / "1" / "model.onnx")

Datatypes are named as in the protocol ("INT32", "BYTES", ...). `batch` is what stands before
`dims`: True a variable batch dimension, False nothing, a number a fixed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from onnx.numpy_helper import from_array

from shoal.core.dtypes import DataType, from_name

# What every runtime of the last years reads.
OPSET = 17
IR_VERSION = 8

ELEMENT_TYPES: dict[str, int] = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
    "BF16": TensorProto.BFLOAT16,
}
# ONNX Runtime adds and subtracts in these; the others are cast to one of them and back.
_ARITHMETIC = {"INT32": "INT32", "INT64": "INT64", "FP32": "FP32", "FP64": "FP64"}
_ARITHMETIC |= {"FP16": "FP32", "BF16": "FP32", "UINT32": "INT64", "UINT64": "INT64"}
_ARITHMETIC |= {"BYTES": "INT64"}

Dim = int | str | None


def add_sub(
    datatype: str | DataType = "INT32", dims: Sequence[int] = (16,), batch: bool | int = True
) -> ModelProto:
    """INPUT0 + INPUT1 = OUTPUT0, INPUT0 - INPUT1 = OUTPUT1. BYTES hold decimal numbers."""
    name = _name(datatype)
    kind = ELEMENT_TYPES[name]
    shape = _shape(dims, batch)
    work = ELEMENT_TYPES[_ARITHMETIC.get(name, "INT32")]
    nodes: list[NodeProto] = []
    operands = ["INPUT0", "INPUT1"]
    if work != kind:
        nodes += [helper.make_node("Cast", [i], ["cast_" + i], to=work) for i in operands]
        operands = ["cast_" + name for name in operands]
    for index, operation in enumerate(("Add", "Sub")):
        output = f"OUTPUT{index}"
        if work == kind:
            nodes.append(helper.make_node(operation, operands, [output]))
        else:
            nodes.append(helper.make_node(operation, operands, ["cast_" + output]))
            nodes.append(helper.make_node("Cast", ["cast_" + output], [output], to=kind))
    return model(
        nodes,
        inputs=[value(f"INPUT{i}", name, shape) for i in range(2)],
        outputs=[value(f"OUTPUT{i}", name, shape) for i in range(2)],
    )


def identity(
    datatype: str | DataType = "FP32",
    dims: Sequence[int] = (-1,),
    batch: bool | int = True,
    count: int = 1,
) -> ModelProto:
    """OUTPUTi = INPUTi for `count` tensors of any datatype, BYTES and BF16 included."""
    name = _name(datatype)
    shape = _shape(dims, batch)
    return model(
        [helper.make_node("Identity", [f"INPUT{i}"], [f"OUTPUT{i}"]) for i in range(count)],
        inputs=[value(f"INPUT{i}", name, shape) for i in range(count)],
        outputs=[value(f"OUTPUT{i}", name, shape) for i in range(count)],
    )


def plus(number: float, width: int = 1) -> ModelProto:
    """OUTPUT0 = INPUT0 + number in FP32, so that versions of a model answer differently."""
    return model(
        [helper.make_node("Add", ["INPUT0", "number"], ["OUTPUT0"])],
        inputs=[value("INPUT0", "FP32", ("batch", width))],
        outputs=[value("OUTPUT0", "FP32", ("batch", width))],
        constants={"number": np.array([number], np.float32)},
    )


def scalar(datatype: str | DataType = "FP32") -> ModelProto:
    """OUTPUT0 = INPUT0, both of rank 0: no dimension at all, not even for a batch."""
    return identity(datatype, dims=(), batch=False)


def unknown_rank(datatype: str | DataType = "FP32") -> ModelProto:
    """OUTPUT0 = INPUT0, declared with a datatype and no shape."""
    name = _name(datatype)
    return model(
        [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])],
        inputs=[value("INPUT0", name, None)],
        outputs=[value("OUTPUT0", name, None)],
        check=False,  # the checker wants a shape; runtimes do not
    )


def matmul_chain(size: int = 256, layers: int = 4, batch: bool | int = True) -> ModelProto:
    """FP32 rows of `size` through `layers` dense layers: about 2 * layers * size² operations a row.

    The weights keep the mean of a row, so a row of ones comes out as ones (the tests' check).
    """
    weight = np.full((size, size), 1.0 / size, np.float32)
    names = ["INPUT0", *(f"hidden{i}" for i in range(layers - 1)), "OUTPUT0"]
    return model(
        [helper.make_node("MatMul", [names[i], "weight"], [names[i + 1]]) for i in range(layers)],
        inputs=[value("INPUT0", "FP32", _shape((size,), batch))],
        outputs=[value("OUTPUT0", "FP32", _shape((size,), batch))],
        constants={"weight": weight},
    )


def heavy(megabytes: int = 100, batch: bool | int = True) -> ModelProto:
    """OUTPUT0 = INPUT0 + the row of a table at INDEX; the table weighs `megabytes`.

    INPUT0 is FP32 [1024], INDEX is INT64 [1] with values below `256 * megabytes`.
    """
    rows = 256 * megabytes
    table = np.broadcast_to(np.arange(rows, dtype=np.float32)[:, None], (rows, 1024))
    return model(
        [
            helper.make_node("Squeeze", ["INDEX", "axis"], ["flat"]),
            helper.make_node("Gather", ["table", "flat"], ["picked"]),
            helper.make_node("Add", ["INPUT0", "picked"], ["OUTPUT0"]),
        ],
        inputs=[
            value("INPUT0", "FP32", _shape((1024,), batch)),
            value("INDEX", "INT64", _shape((1,), batch)),
        ],
        outputs=[value("OUTPUT0", "FP32", _shape((1024,), batch))],
        constants={"table": np.ascontiguousarray(table), "axis": np.array([-1], np.int64)},
        check=False,  # takes seconds for large ones
    )


def default_input(batch: bool | int = False) -> ModelProto:
    """OUTPUT0 = INPUT0 + BIAS, FP32 [2]. BIAS may be left out: the model's own value is 10."""
    shape = _shape((2,), batch)
    return model(
        [helper.make_node("Add", ["INPUT0", "BIAS"], ["OUTPUT0"])],
        inputs=[value("INPUT0", "FP32", shape), value("BIAS", "FP32", (1,))],
        outputs=[value("OUTPUT0", "FP32", shape)],
        constants={"BIAS": np.array([10.0], np.float32)},
    )


def optional_input() -> ModelProto:
    """OUTPUT0 = INPUT0 + BIAS, FP32 [2]. BIAS has ONNX's optional type; left out, it is 10."""
    kind = ELEMENT_TYPES["FP32"]
    given = helper.make_graph(
        [helper.make_node("OptionalGetElement", ["BIAS"], ["given"])],
        "given",
        [],
        [value("given", "FP32", (2,))],
    )
    ten = helper.make_tensor("ten", kind, [2], [10.0, 10.0])
    missing = helper.make_graph(
        [helper.make_node("Constant", [], ["missing"], value=ten)],
        "missing",
        [],
        [value("missing", "FP32", (2,))],
    )
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(kind, [2]))
    return model(
        [
            helper.make_node("OptionalHasElement", ["BIAS"], ["has"]),
            helper.make_node("If", ["has"], ["bias"], then_branch=given, else_branch=missing),
            helper.make_node("Add", ["INPUT0", "bias"], ["OUTPUT0"]),
        ],
        inputs=[value("INPUT0", "FP32", (2,)), helper.make_value_info("BIAS", optional)],
        outputs=[value("OUTPUT0", "FP32", (2,))],
        opset=18,
    )


def picker(size: int = 4, batch: bool | int = True) -> ModelProto:
    """OUTPUT0 = 0, 10, 20, ... at INPUT0 (INT64 [1]). An index of `size` or more makes it fail."""
    return model(
        [helper.make_node("Gather", ["table", "INPUT0"], ["OUTPUT0"])],
        inputs=[value("INPUT0", "INT64", _shape((1,), batch))],
        outputs=[value("OUTPUT0", "INT64", _shape((1,), batch))],
        constants={"table": np.arange(size, dtype=np.int64) * 10},
    )


def string_join(batch: bool | int = True) -> ModelProto:
    """OUTPUT0 = INPUT0 followed by INPUT1, BYTES [-1]: a model that really looks at its strings."""
    shape = _shape((-1,), batch)
    return model(
        [helper.make_node("StringConcat", ["INPUT0", "INPUT1"], ["OUTPUT0"])],
        inputs=[value("INPUT0", "BYTES", shape), value("INPUT1", "BYTES", shape)],
        outputs=[value("OUTPUT0", "BYTES", shape)],
        opset=20,
        ir_version=9,
    )


def mixed_strings_and_bf16() -> ModelProto:
    """OUTPUT0 = INPUT0 (BYTES) and OUTPUT1 = INPUT1 (BF16), both [-1] behind a batch dimension."""
    shape = _shape((-1,), batch=True)
    return model(
        [helper.make_node("Identity", [f"INPUT{i}"], [f"OUTPUT{i}"]) for i in range(2)],
        inputs=[value("INPUT0", "BYTES", shape), value("INPUT1", "BF16", shape)],
        outputs=[value("OUTPUT0", "BYTES", shape), value("OUTPUT1", "BF16", shape)],
    )


def list_output() -> ModelProto:
    """OUTPUT0 = INPUT0 (FP32 [-1]) and LIST, a sequence of tensors, which no protocol can carry."""
    shape = _shape((-1,), batch=True)
    sequence = helper.make_tensor_sequence_value_info("LIST", ELEMENT_TYPES["FP32"], None)
    return model(
        [
            helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"]),
            helper.make_node("SequenceConstruct", ["INPUT0", "INPUT0"], ["LIST"]),
        ],
        inputs=[value("INPUT0", "FP32", shape)],
        outputs=[value("OUTPUT0", "FP32", shape), sequence],
    )


def reshape_to_one_row() -> ModelProto:
    """Declares a variable batch dimension for its output but always computes one row."""
    return model(
        [helper.make_node("Reshape", ["INPUT0", "shape"], ["OUTPUT0"])],
        inputs=[value("INPUT0", "FP32", ("batch", 4))],
        outputs=[value("OUTPUT0", "FP32", ("batch", None))],
        constants={"shape": np.array([1, -1], np.int64)},
    )


def attention(
    hidden: int = 8, vocabulary: int = 32, length: str | None = "sequence", seed: int = 0
) -> ModelProto:
    """A small encoder that honours its mask: one layer of self-attention over token ids.

    `input_ids` and `attention_mask` are INT64 [-1]; `states` FP32 [-1, hidden] has a row per token
    and `pooled` FP32 [hidden] is the mean of those that the mask shows. `length` names the
    variable dimension, as exporters do; None leaves it without a name.
    """
    random = np.random.default_rng(seed)
    tokens: tuple[Dim, ...] = ("batch", length)

    def weight(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    def node(operator: str, *names: str, output: str, **attributes: Any) -> NodeProto:
        return helper.make_node(operator, list(names), [output], **attributes)

    return model(
        [
            node("Gather", "table", "input_ids", output="tokens"),
            *(node("MatMul", "tokens", name, output=name + "s") for name in ("query", "value")),
            node("Transpose", "tokens", output="keys", perm=[0, 2, 1]),
            node("MatMul", "querys", "keys", output="scores"),
            node("Cast", "attention_mask", output="shown", to=TensorProto.FLOAT),
            node("Unsqueeze", "shown", "middle", output="shown_keys"),
            node("Sub", "shown_keys", "one", output="hidden_keys"),
            node("Mul", "hidden_keys", "large", output="penalty"),
            node("Add", "scores", "penalty", output="masked"),
            node("Softmax", "masked", output="weights", axis=2),
            node("MatMul", "weights", "values", output="mixed"),
            node("Add", "mixed", "tokens", output="states"),
            node("Unsqueeze", "shown", "last", output="shown_rows"),
            node("Mul", "states", "shown_rows", output="kept"),
            node("ReduceSum", "kept", "middle", output="sum", keepdims=0),
            node("ReduceSum", "shown", "middle", output="count", keepdims=1),
            node("Div", "sum", "count", output="pooled"),
        ],
        inputs=[value(name, "INT64", tokens) for name in ("input_ids", "attention_mask")],
        outputs=[
            value("states", "FP32", (*tokens, hidden)),
            value("pooled", "FP32", ("batch", hidden)),
        ],
        constants={
            "table": weight(vocabulary, hidden),
            "query": weight(hidden, hidden) / np.float32(hidden),
            "value": weight(hidden, hidden),
            "middle": np.array([1], np.int64),
            "last": np.array([2], np.int64),
            "one": np.array(1.0, np.float32),
            "large": np.array(1e9, np.float32),
        },
    )


def ragged_sums() -> ModelProto:
    """For ragged batches: ITEMS, FP32, all elements of a batch one after the other.

    ENDS (INT32) is BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO of ITEMS. SUM has the sum of each
    request's elements as one row, DOUBLED all elements times two, still one after the other.
    """
    return model(
        [
            helper.make_node("CumSum", ["ITEMS", "zero_axis"], ["running"]),
            helper.make_node("Concat", ["zero", "running"], ["sums"], axis=0),
            helper.make_node("Gather", ["sums", "ENDS"], ["at_ends"]),
            helper.make_node("Slice", ["at_ends", "first", "most"], ["ends"]),
            helper.make_node("Slice", ["at_ends", "none", "minus_one"], ["starts"]),
            helper.make_node("Sub", ["ends", "starts"], ["each"]),
            helper.make_node("Unsqueeze", ["each", "first"], ["SUM"]),
            helper.make_node("Add", ["ITEMS", "ITEMS"], ["DOUBLED"]),
        ],
        inputs=[value("ITEMS", "FP32", (None,)), value("ENDS", "INT32", (None,))],
        outputs=[value("SUM", "FP32", (None, 1)), value("DOUBLED", "FP32", (None,))],
        constants={
            "zero_axis": np.array(0, np.int64),
            "zero": np.zeros(1, np.float32),
            "first": np.array([1], np.int64),
            "none": np.array([0], np.int64),
            "minus_one": np.array([-1], np.int64),
            "most": np.array([np.iinfo(np.int64).max], np.int64),
        },
    )


def model(
    nodes: Sequence[NodeProto],
    *,
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = OPSET,
    ir_version: int = IR_VERSION,
    check: bool = True,
) -> ModelProto:
    """Put a graph together and have ONNX check it. `constants` become initializers."""
    initializers = [from_array(array, name) for name, array in (constants or {}).items()]
    graph: GraphProto = helper.make_graph(
        list(nodes), "shoal", list(inputs), list(outputs), initializers
    )
    built = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version
    )
    if check:
        onnx.checker.check_model(built)
    return built


def value(name: str, datatype: str, shape: Sequence[Dim] | None) -> ValueInfoProto:
    """Declare a tensor; text in `shape` is a symbolic dimension, None an unnamed variable one."""
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[datatype], shape)


def save(built: ModelProto, file: Path) -> Path:
    """Write the model, making the folders on the way."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(built.SerializeToString())
    return file


def save_with_external_data(built: ModelProto, file: Path, weights: str = "weights.bin") -> Path:
    """Write the model with its larger initializers in a second file beside it.

    `built` is used up. Small ones stay: runtimes want shapes and axes at hand.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(
        built,
        str(file),
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=weights,
        size_threshold=1024,
    )
    return file


def _name(datatype: str | DataType) -> str:
    return datatype.name if isinstance(datatype, DataType) else from_name(datatype).name


def _shape(dims: Sequence[int], batch: bool | int) -> tuple[Dim, ...]:
    inner: tuple[Dim, ...] = tuple(f"d{i}" if dim == -1 else dim for i, dim in enumerate(dims))
    if batch is False:
        return inner
    return ("batch" if batch is True else int(batch), *inner)
