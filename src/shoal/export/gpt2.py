"""GPT-2 as ONNX: a decoder with past states that needs nothing but its own text.

Names of weights are those of transformers' GPT2LMHeadModel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.errors import Unsupported
from shoal.export.decoding import Decoding
from shoal.export.graph import GraphBuilder


class Gpt2:
    """A checkpoint's weights, and the graph that uses them."""

    def __init__(self, config: Any, weights: Mapping[str, np.ndarray]) -> None:
        """`config` is a GPT2Config. Raises Unsupported for what the graph cannot do."""
        for option, usual in (
            ("scale_attn_weights", True),
            ("scale_attn_by_inverse_layer_idx", False),
            ("add_cross_attention", False),
        ):
            if getattr(config, option, usual) is not usual:
                raise Unsupported(f"a GPT-2 with {option} = {not usual} cannot be exported")
        self.vocabulary = config.vocab_size
        self.positions = config.n_positions
        self._width, self._heads, self._layers = config.n_embd, config.n_head, config.n_layer
        self._activation = config.activation_function
        self._epsilon = config.layer_norm_epsilon
        self._weights = weights

    def decoder(self) -> GraphBuilder:
        """One step with past states; see `shoal.export.decoding`."""
        graph, weights = GraphBuilder("gpt2_decoder"), self._weights
        size = self._width // self._heads
        frame = Decoding(graph, self._heads, size, self._layers)
        words = weights["transformer.wte.weight"]
        value = graph.node("Gather", graph.weight(words), frame.token_ids, axis=0)
        places = graph.weight(weights["transformer.wpe.weight"])
        value = graph.node("Add", value, graph.node("Gather", places, frame.positions, axis=0))
        for layer in range(self._layers):
            at = f"transformer.h.{layer}"
            weight, bias = self._linear(f"{at}.attn.c_attn")
            scale = np.ones(3 * self._width, np.float32)
            scale[: self._width] = size**-0.5
            normed = self._norm(graph, f"{at}.ln_1", value)
            seen = frame.self_attention(layer, normed, weight * scale, bias * scale)
            value = graph.node("Add", graph.linear(seen, *self._linear(f"{at}.attn.c_proj")), value)
            inner = self._norm(graph, f"{at}.ln_2", value)
            inner = graph.linear(inner, *self._linear(f"{at}.mlp.c_fc"))
            inner = graph.activation(self._activation, inner)
            value = graph.node("Add", graph.linear(inner, *self._linear(f"{at}.mlp.c_proj")), value)
        value = self._norm(graph, "transformer.ln_f", frame.last(value))
        head = weights.get("lm_head.weight", words)
        frame.finish(graph.linear(value, head.T, None), self.vocabulary)
        return graph

    def _norm(self, graph: GraphBuilder, at: str, value: str) -> str:
        weights = self._weights
        return graph.norm(value, weights[f"{at}.weight"], weights[f"{at}.bias"], self._epsilon)

    def _linear(self, at: str) -> tuple[np.ndarray, np.ndarray]:
        """Weight, which GPT-2 keeps as [in, out], and bias."""
        return self._weights[f"{at}.weight"], self._weights[f"{at}.bias"]
