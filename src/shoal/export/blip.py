"""BLIP for captions, as ONNX: the photo's encoder, the text's decoder, or both in one file.

    pixel_values --encoder--> keys and values for every layer of the decoder, once per photo
    input_ids, past, those --decoder--> logits, states

Names of weights are those of transformers' BlipForConditionalGeneration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from shoal.errors import Unsupported
from shoal.export.decoding import Decoding, causal
from shoal.export.graph import Dim, GraphBuilder

Weights = Mapping[str, np.ndarray]

_TEXTS = "texts"  # rows of the context; each has as many rows of tokens


@dataclass(frozen=True, slots=True)
class Vision:
    """What the graph of the encoder is made from."""

    image_size: int
    patch_size: int
    width: int
    layers: int
    heads: int
    activation: str
    epsilon: float

    @property
    def tokens(self) -> int:
        """What a photo becomes: its patches and one more."""
        return (self.image_size // self.patch_size) ** 2 + 1


@dataclass(frozen=True, slots=True)
class Text:
    """What the graph of the decoder is made from."""

    vocabulary: int
    positions: int
    width: int
    layers: int
    heads: int
    activation: str
    epsilon: float


class Blip:
    """A checkpoint's weights, and the graphs that use them."""

    def __init__(self, config: Any, weights: Weights) -> None:
        """`config` is a BlipConfig. Raises Unsupported for what the graphs cannot do."""
        vision, text = config.vision_config, config.text_config
        self.vision = Vision(
            vision.image_size,
            vision.patch_size,
            vision.hidden_size,
            vision.num_hidden_layers,
            vision.num_attention_heads,
            vision.hidden_act,
            vision.layer_norm_eps,
        )
        self.text = Text(
            text.vocab_size,
            text.max_position_embeddings,
            text.hidden_size,
            text.num_hidden_layers,
            text.num_attention_heads,
            text.hidden_act,
            text.layer_norm_eps,
        )
        if not text.is_decoder:
            raise Unsupported(
                "the text part of this checkpoint is not a decoder: it generates no text"
            )
        self._weights = weights

    def encoder(self) -> GraphBuilder:
        """pixel_values [batch, 3, size, size] to cross_keys_0, cross_values_0 and so on."""
        graph = GraphBuilder("blip_encoder")
        seen = self._see(graph, "batch")
        text, tokens = self.text, self.vision.tokens
        size = text.width // text.heads
        for layer in range(text.layers):
            keys, values = self._cross_states(graph, layer, seen)
            graph.output(keys, f"cross_keys_{layer}", ["batch", text.heads, size, tokens])
            graph.output(values, f"cross_values_{layer}", ["batch", text.heads, tokens, size])
        return graph

    def decoder(self) -> GraphBuilder:
        """One step with past states; see `shoal.export.decoding`."""
        graph = GraphBuilder("blip_decoder")
        text, tokens = self.text, self.vision.tokens
        size = text.width // text.heads
        frame = Decoding(graph, text.heads, size, text.layers)
        dims: dict[str, list[Dim]] = {
            "keys": [_TEXTS, text.heads, size, tokens],
            "values": [_TEXTS, text.heads, tokens, size],
        }
        cross = [
            [graph.input(f"cross_{k}_{n}", TensorProto.FLOAT, d) for k, d in dims.items()]
            for n in range(text.layers)
        ]
        value = self._embed(graph, frame.token_ids, frame.positions)
        # The rows of one text are asked together: its states are there once.
        shape = graph.shape(graph.size(value, 0), graph.size(value, 1), text.width)
        texts = graph.size(cross[0][0], 0)
        for layer in range(text.layers):
            weight, bias = self._qkv(layer)
            seen = frame.self_attention(layer, value, weight, bias)
            value = self._add_norm(graph, f"{_layer(layer)}.attention.output", seen, value)
            query = self._cross_query(graph, layer, value)
            grid = graph.reshape(query, texts, -1, text.heads, size)
            grid = graph.node("Transpose", grid, perm=[0, 2, 1, 3])
            seen = graph.attend(grid, *cross[layer])
            seen = graph.node("Transpose", seen, perm=[0, 2, 1, 3])
            seen = graph.node("Reshape", seen, shape)
            value = self._add_norm(graph, f"{_layer(layer)}.crossattention.output", seen, value)
            value = self._feed_forward(graph, layer, value)
        frame.finish(self._head(graph, frame.last(value)), text.vocabulary)
        return graph

    def single(self) -> GraphBuilder:
        """Everything in one file: pixel_values, input_ids, attention_mask to logits."""
        graph = GraphBuilder("blip")
        text = self.text
        size = text.width // text.heads
        photo = self._see(graph, "batch")
        ids = graph.input("input_ids", TensorProto.INT64, ["batch", "sequence_length"])
        mask = graph.input("attention_mask", TensorProto.INT64, ["batch", "sequence_length"])
        positions = graph.count_up(graph.size(ids, 1))
        real = graph.node("Greater", mask, graph.integers(0))
        allowed = graph.node(
            "And", graph.node("Unsqueeze", real, graph.integers(1, 2)), causal(graph, positions)
        )
        added = graph.masked(allowed)
        value = self._embed(graph, ids, positions)
        for layer in range(text.layers):
            weight, bias = self._qkv(layer)
            query, keys, values = (
                graph.heads(part, text.heads, size)
                for part in graph.nodes("Split", 3, graph.linear(value, weight, bias), axis=-1)
            )
            seen = graph.attend(query, graph.transposed(keys), values, added)
            seen = graph.join_heads(seen, text.width)
            value = self._add_norm(graph, f"{_layer(layer)}.attention.output", seen, value)
            query = graph.heads(self._cross_query(graph, layer, value), text.heads, size)
            seen = graph.attend(query, *self._cross_states(graph, layer, photo))
            seen = graph.join_heads(seen, text.width)
            value = self._add_norm(graph, f"{_layer(layer)}.crossattention.output", seen, value)
            value = self._feed_forward(graph, layer, value)
        logits = self._head(graph, value)
        graph.output(logits, "logits", ["batch", "sequence_length", text.vocabulary])
        return graph

    # ---- the photo

    def _see(self, graph: GraphBuilder, batch: str) -> str:
        """The photo's tokens."""
        vision, weights = self.vision, self._weights
        side, width = vision.image_size, vision.width
        pixels = graph.input("pixel_values", TensorProto.FLOAT, [batch, 3, side, side])
        at = "vision_model.embeddings"
        patches = graph.node(
            "Conv",
            pixels,
            graph.weight(weights[f"{at}.patch_embedding.weight"]),
            graph.weight(weights[f"{at}.patch_embedding.bias"]),
            strides=[vision.patch_size] * 2,
        )
        patches = graph.node("Transpose", graph.reshape(patches, 0, width, -1), perm=[0, 2, 1])
        first = graph.weight(weights[f"{at}.class_embedding"].reshape(1, 1, width))
        first = graph.node("Expand", first, graph.shape(graph.size(pixels, 0), 1, width))
        value = graph.node("Concat", first, patches, axis=1)
        places = weights[f"{at}.position_embedding"][:, : vision.tokens]
        value = graph.node("Add", value, graph.weight(places))
        for layer in range(vision.layers):
            value = self._see_layer(graph, f"vision_model.encoder.layers.{layer}", value)
        return self._norm(graph, "vision_model.post_layernorm", value, vision.epsilon)

    def _see_layer(self, graph: GraphBuilder, at: str, value: str) -> str:
        vision = self.vision
        heads, size = vision.heads, vision.width // vision.heads
        weight, bias = self._linear(f"{at}.self_attn.qkv")
        weight, bias = _scaled(weight, vision.width, size), _scaled(bias, vision.width, size)
        normed = self._norm(graph, f"{at}.layer_norm1", value, vision.epsilon)
        query, keys, values = (
            graph.heads(part, heads, size)
            for part in graph.nodes("Split", 3, graph.linear(normed, weight, bias), axis=-1)
        )
        seen = graph.join_heads(graph.attend(query, graph.transposed(keys), values), vision.width)
        seen = graph.linear(seen, *self._linear(f"{at}.self_attn.projection"))
        value = graph.node("Add", seen, value)
        normed = self._norm(graph, f"{at}.layer_norm2", value, vision.epsilon)
        inner = graph.linear(normed, *self._linear(f"{at}.mlp.fc1"))
        inner = graph.activation(vision.activation, inner)
        inner = graph.linear(inner, *self._linear(f"{at}.mlp.fc2"))
        return graph.node("Add", inner, value)

    # ---- the text

    def _embed(self, graph: GraphBuilder, ids: str, positions: str) -> str:
        at = "text_decoder.bert.embeddings"
        words = graph.weight(self._weights[f"{at}.word_embeddings.weight"])
        places = graph.weight(self._weights[f"{at}.position_embeddings.weight"])
        value = graph.node("Gather", words, ids, axis=0)
        value = graph.node("Add", value, graph.node("Gather", places, positions, axis=0))
        return self._norm(graph, f"{at}.LayerNorm", value, self.text.epsilon)

    def _qkv(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Query (scaled), keys and values in one multiplication."""
        size = self.text.width // self.text.heads
        parts = [
            self._linear(f"{_layer(layer)}.attention.self.{name}")
            for name in ("query", "key", "value")
        ]
        weight = np.concatenate([weight for weight, _ in parts], axis=1)
        bias = np.concatenate([bias for _, bias in parts])
        return _scaled(weight, self.text.width, size), _scaled(bias, self.text.width, size)

    def _cross_query(self, graph: GraphBuilder, layer: int, value: str) -> str:
        weight, bias = self._linear(f"{_layer(layer)}.crossattention.self.query")
        scale = np.float32((self.text.width // self.text.heads) ** -0.5)
        return graph.linear(value, weight * scale, bias * scale)

    def _cross_states(self, graph: GraphBuilder, layer: int, photo: str) -> tuple[str, str]:
        """Keys, transposed, and values that a layer has for a photo."""
        heads, size = self.text.heads, self.text.width // self.text.heads
        at = f"{_layer(layer)}.crossattention.self"
        keys = graph.linear(photo, *self._linear(f"{at}.key"))
        keys = graph.node("Transpose", graph.reshape(keys, 0, 0, heads, size), perm=[0, 2, 3, 1])
        values = graph.linear(photo, *self._linear(f"{at}.value"))
        return keys, graph.heads(values, heads, size)

    def _feed_forward(self, graph: GraphBuilder, layer: int, value: str) -> str:
        inner = graph.linear(value, *self._linear(f"{_layer(layer)}.intermediate.dense"))
        inner = graph.activation(self.text.activation, inner)
        return self._add_norm(graph, f"{_layer(layer)}.output", inner, value)

    def _head(self, graph: GraphBuilder, value: str) -> str:
        at = "text_decoder.cls.predictions"
        value = graph.linear(value, *self._linear(f"{at}.transform.dense"))
        value = graph.activation(self.text.activation, value)
        value = self._norm(graph, f"{at}.transform.LayerNorm", value, self.text.epsilon)
        return graph.linear(value, *self._linear(f"{at}.decoder"))

    # ---- both

    def _add_norm(self, graph: GraphBuilder, at: str, value: str, before: str) -> str:
        value = graph.linear(value, *self._linear(f"{at}.dense"))
        value = graph.node("Add", value, before)
        return self._norm(graph, f"{at}.LayerNorm", value, self.text.epsilon)

    def _norm(self, graph: GraphBuilder, at: str, value: str, epsilon: float) -> str:
        weights = self._weights
        return graph.norm(value, weights[f"{at}.weight"], weights[f"{at}.bias"], epsilon)

    def _linear(self, at: str) -> tuple[np.ndarray, np.ndarray]:
        """Weight, as [in, out], and bias."""
        return self._weights[f"{at}.weight"].T, self._weights[f"{at}.bias"]


def _layer(number: int) -> str:
    return f"text_decoder.bert.encoder.layer.{number}"


def _scaled(joined: np.ndarray, width: int, size: int) -> np.ndarray:
    """Weights of query, keys and values, the query's divided by what scores are divided by."""
    changed: np.ndarray = joined.copy()
    changed[..., :width] *= np.float32(size**-0.5)
    return changed
