"""What the graphs of all decoders with past states have in common: their inputs and outputs, the
masks, and self-attention over what was and what is new.

    input_ids [rows, new]  past_lengths [rows]  past_0 … [rows, heads, past, size]  context…
      --> logits [rows, vocabulary]  states [2 * layers, rows, heads, new, size]

The past is not copied: scores over past and new tokens are concatenated, never the states
themselves, and only the states of new tokens are returned.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from shoal.export.graph import GraphBuilder

ROWS, NEW, PAST = "rows", "new", "past"


class Decoding:
    """The frame of a decoder's graph: begin with this, add layers, end with `finish`."""

    def __init__(self, graph: GraphBuilder, heads: int, size: int, layers: int) -> None:
        self.graph = graph
        self.heads, self.size = heads, size
        self.token_ids = graph.input("input_ids", TensorProto.INT64, [ROWS, NEW])
        lengths = graph.input("past_lengths", TensorProto.INT64, [ROWS])
        self._past = [
            graph.input(f"past_{index}", TensorProto.FLOAT, [ROWS, heads, PAST, size])
            for index in range(2 * layers)
        ]
        self._states: list[str] = []
        new = graph.count_up(graph.size(self.token_ids, 1))
        past = graph.count_up(graph.size(self._past[0], 2))
        column = graph.node("Unsqueeze", lengths, graph.integers(1))
        self.positions = graph.node("Add", column, graph.node("Unsqueeze", new, graph.integers(0)))
        known = graph.node("Less", graph.node("Unsqueeze", past, graph.integers(0)), column)
        past_mask = graph.masked(graph.node("Unsqueeze", known, graph.integers(1, 2)))
        new_mask = graph.masked(causal(graph, new))
        self._masks = past_mask, new_mask
        self._parts = graph.shape(graph.size(self._past[0], 2), graph.size(self.token_ids, 1))

    def self_attention(self, layer: int, value: str, weight: np.ndarray, bias: np.ndarray) -> str:
        """Attention of new tokens to past and new ones; `weight` makes query, keys and values."""
        graph, heads, size = self.graph, self.heads, self.size
        query, keys, values = (
            graph.heads(part, heads, size)
            for part in graph.nodes("Split", 3, graph.linear(value, weight, bias), axis=-1)
        )
        self._states += [keys, values]
        past_keys, past_values = self._past[2 * layer], self._past[2 * layer + 1]
        past_mask, new_mask = self._masks
        past_scores = graph.node("MatMul", query, graph.transposed(past_keys))
        past_scores = graph.node("Add", past_scores, past_mask)
        new_scores = graph.node("MatMul", query, graph.transposed(keys))
        new_scores = graph.node("Add", new_scores, new_mask)
        scores = graph.node("Concat", past_scores, new_scores, axis=-1)
        shares = graph.node("Softmax", scores, axis=-1)
        past_shares, new_shares = graph.nodes("Split", 2, shares, self._parts, axis=-1)
        seen = graph.node(
            "Add",
            graph.node("MatMul", past_shares, past_values),
            graph.node("MatMul", new_shares, values),
        )
        return graph.join_heads(seen, heads * size)

    def last(self, value: str) -> str:
        """[rows, new, width] to [rows, width] of the last token."""
        return self.graph.node("Gather", value, self.graph.index(-1), axis=1)

    def finish(self, logits: str, vocabulary: int) -> None:
        """Make the logits and the new states the outputs."""
        graph = self.graph
        graph.output(logits, "logits", [ROWS, vocabulary])
        stacked = [graph.node("Unsqueeze", state, graph.integers(0)) for state in self._states]
        states = graph.node("Concat", *stacked, axis=0)
        graph.output(states, "states", [len(stacked), ROWS, self.heads, NEW, self.size])


def causal(graph: GraphBuilder, positions: str) -> str:
    """[new, new]: whether the token of a row may attend to that of a column."""
    across = graph.node("Unsqueeze", positions, graph.integers(0))
    down = graph.node("Unsqueeze", positions, graph.integers(1))
    return graph.node("LessOrEqual", across, down)
