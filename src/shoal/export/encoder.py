"""A BERT-like text encoder as an ONNX graph, straight from its weights.

    input_ids, attention_mask [batch, sequence]
        --> last_hidden_state [batch, sequence, hidden]
        --> sentence_embedding [batch, hidden], pooled over the tokens that the mask shows

No framework is needed: the layers are written node by node with operators that every runtime has,
and the three projections of attention are one product.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from shoal.errors import InvalidArgument
from shoal.export.encoder_shape import EncoderShape

Array = np.ndarray[Any, Any]

OPSET = 17
IR_VERSION = 8
INPUTS = ("input_ids", "attention_mask")
HIDDEN_STATES, EMBEDDING = "last_hidden_state", "sentence_embedding"

_MASKED = np.float32(-10_000.0)  # added to a score, it makes its weight 0
_LEAST = np.float32(1e-12)  # the smallest divisor of a mean


def build(
    shape: EncoderShape, weights: Mapping[str, Array], *, pooling: str, normalise: bool
) -> onnx.ModelProto:
    """The whole model. InvalidArgument names a weight that is missing or has another shape."""
    graph = _EncoderGraph(shape, weights)
    hidden = graph.encode()
    graph.add("Identity", hidden, output=HIDDEN_STATES)
    graph.pool(HIDDEN_STATES, pooling, normalise=normalise)
    tokens = ["batch", "sequence"]
    proto = helper.make_graph(
        graph.nodes,
        "encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, tokens) for name in INPUTS],
        [
            helper.make_tensor_value_info(
                HIDDEN_STATES, TensorProto.FLOAT, [*tokens, shape.hidden]
            ),
            helper.make_tensor_value_info(EMBEDDING, TensorProto.FLOAT, ["batch", shape.hidden]),
        ],
        graph.constants,
    )
    return helper.make_model(
        proto,
        producer_name="shoal",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )


class _EncoderGraph:
    """The graph under construction: nodes in order, weights by name."""

    def __init__(self, shape: EncoderShape, weights: Mapping[str, Array]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._shape = shape
        self._weights = weights
        # Checkpoints of a whole model have the encoder under its own name.
        first = "embeddings.word_embeddings.weight"
        prefixes = [name.removesuffix(first) for name in weights if name.endswith(first)]
        if not prefixes:
            raise InvalidArgument(f"the weights have no '{first}': this is not a BERT's checkpoint")
        self._prefix = min(prefixes, key=len)

    # ---- small pieces

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def _constant(self, value: Array | np.generic, name: str = "") -> str:
        name = name or f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def _scalar(self, value: float | np.float32) -> str:
        return self._constant(np.array(value, np.float32))

    def _weight(self, name: str, *dims: int) -> Array:
        full = self._prefix + name
        value = self._weights.get(full)
        if value is None:
            raise InvalidArgument(f"the weights have no '{full}'")
        if value.shape != dims:
            raise InvalidArgument(f"'{full}' has the shape {value.shape}, config.json says {dims}")
        return value.astype(np.float32, copy=False)

    def _dense(self, data: str, name: str, taken: int, given: int) -> str:
        return self._product(
            data,
            name,
            self._weight(f"{name}.weight", given, taken).T,
            self._weight(f"{name}.bias", given),
        )

    def _product(self, data: str, name: str, weight: Array, bias: Array) -> str:
        product = self.add("MatMul", data, self._constant(weight, f"{name}.weight"))
        return self.add("Add", product, self._constant(bias, f"{name}.bias"))

    def _normal(self, data: str, name: str) -> str:
        scale, shift = (
            self._constant(self._weight(f"{name}.{part}", self._shape.hidden), f"{name}.{part}")
            for part in ("weight", "bias")
        )
        epsilon = self._shape.epsilon
        return self.add("LayerNormalization", data, scale, shift, axis=-1, epsilon=epsilon)

    def _activated(self, data: str) -> str:
        if self._shape.activation == "relu":
            return self.add("Relu", data)
        error = self.add("Erf", self.add("Div", data, self._scalar(2**0.5)))
        shifted = self.add("Add", error, self._scalar(1.0))
        return self.add("Mul", self.add("Mul", data, shifted), self._scalar(0.5))

    # ---- the encoder, from the bottom to the top

    def encode(self) -> str:
        mask = self._mask()
        data = self._embedded()
        for number in range(self._shape.layers):
            data = self._layer(data, mask, f"encoder.layer.{number}")
        return data

    def _mask(self) -> str:
        """The mask that is added to the scores of attention: 0, or a large negative number."""
        between = self._constant(np.array([1, 2], np.int64))
        shown = self.add("Cast", "attention_mask", to=TensorProto.FLOAT)
        hidden = self.add("Sub", self._scalar(1.0), self.add("Unsqueeze", shown, between))
        return self.add("Mul", hidden, self._scalar(_MASKED))

    def _embedded(self) -> str:
        shape, name = self._shape, "embeddings.word_embeddings.weight"
        words = self._constant(self._weight(name, shape.vocabulary, shape.hidden), name)
        name = "embeddings.position_embeddings.weight"
        places = self._weight(name, shape.first_position + shape.longest, shape.hidden)
        # A single text has one token type, whose vector is added at every position.
        kinds = self._weights[self._prefix + "embeddings.token_type_embeddings.weight"]
        places = places[shape.first_position :] + kinds[0].astype(np.float32)
        second = self._constant(np.array([1], np.int64))
        length = self.add("Gather", self.add("Shape", "input_ids"), second)
        used = self.add(
            "Slice",
            self._constant(places[None], name),
            self._constant(np.zeros(1, np.int64)),
            length,
            second,
        )
        total = self.add("Add", self.add("Gather", words, "input_ids"), used)
        return self._normal(total, "embeddings.LayerNorm")

    def _layer(self, data: str, mask: str, name: str) -> str:
        hidden = self._shape.hidden
        wide = self._weights.get(f"{self._prefix}{name}.intermediate.dense.bias")
        inner = len(wide) if wide is not None else 4 * hidden
        attended = self._attended(data, mask, f"{name}.attention")
        data = self._normal(
            self.add("Add", attended, data),
            f"{name}.attention.output.LayerNorm",
        )
        wider = self._activated(self._dense(data, f"{name}.intermediate.dense", hidden, inner))
        narrow = self._dense(wider, f"{name}.output.dense", inner, hidden)
        return self._normal(self.add("Add", narrow, data), f"{name}.output.LayerNorm")

    def _attended(self, data: str, mask: str, name: str) -> str:
        hidden, heads = self._shape.hidden, self._shape.heads
        parts = [f"{name}.self.{part}" for part in ("query", "key", "value")]
        weights = [self._weight(f"{part}.weight", hidden, hidden).T for part in parts]
        biases = [self._weight(f"{part}.bias", hidden) for part in parts]
        # The scores' division by a root is part of the weights.
        root = np.float32((hidden // heads) ** 0.5)
        weights[0], biases[0] = weights[0] / root, biases[0] / root
        joined = self._product(
            data, f"{name}.self", np.concatenate(weights, axis=1), np.concatenate(biases)
        )
        apart = self._constant(np.array([0, 0, 3, heads, hidden // heads], np.int64))
        turned = self.add("Transpose", self.add("Reshape", joined, apart), perm=[2, 0, 3, 1, 4])
        query, key, value = (
            self.add("Gather", turned, self._constant(np.array(n, np.int64)), axis=0)
            for n in range(3)
        )
        scores = self.add("MatMul", query, self.add("Transpose", key, perm=[0, 1, 3, 2]))
        shares = self.add("Softmax", self.add("Add", scores, mask), axis=3)
        mixed = self.add("Transpose", self.add("MatMul", shares, value), perm=[0, 2, 1, 3])
        together = self.add("Reshape", mixed, self._constant(np.array([0, 0, hidden], np.int64)))
        return self._dense(together, f"{name}.output.dense", hidden, hidden)

    # ---- from tokens to the sentence

    def pool(self, states: str, pooling: str, *, normalise: bool) -> None:
        pooled = "" if normalise else EMBEDDING
        middle = self._constant(np.array([1], np.int64))
        last = self._constant(np.array([2], np.int64))
        shown = self.add("Cast", "attention_mask", to=TensorProto.FLOAT)
        shown = self.add("Unsqueeze", shown, last)
        if pooling == "mean":
            total = self.add("ReduceSum", self.add("Mul", states, shown), middle, keepdims=0)
            count = self.add("ReduceSum", shown, middle, keepdims=0)
            pooled = self.add("Div", total, count, output=pooled)
        elif pooling == "max":
            hidden = self.add("Sub", shown, self._scalar(1.0))
            far = self.add("Mul", hidden, self._scalar(np.float32(1e9)))
            pooled = self.add(
                "ReduceMax", self.add("Add", states, far), axes=[1], keepdims=0, output=pooled
            )
        else:
            first = self._constant(np.array(0, np.int64))
            pooled = self.add("Gather", states, first, axis=1, output=pooled)
        if normalise:
            length = self.add("ReduceL2", pooled, axes=[1], keepdims=1)
            divisor = self.add("Max", length, self._scalar(_LEAST))
            self.add("Div", pooled, divisor, output=EMBEDDING)
