"""Whisper as ONNX: the encoder of sound, and the decoder of text with past states.

    input_features --encoder--> keys and values for every layer of the decoder, once per window
    input_ids, past, those --decoder--> logits, states

Names of weights are those of transformers' WhisperForConditionalGeneration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from shoal.export.checkpoint import Checkpoint
from shoal.export.decoding import Decoding
from shoal.export.graph import Dim, GraphBuilder
from shoal.export.writing import ExportOptions, write_json

WHISPER = "WhisperForConditionalGeneration"
_MULTILINGUAL = 51_865  # tokens; models of English alone have one less
_SUPPRESSED = np.float32(-1e30)
_CONFIG = """\
# {source}: speech to text.
backend: "generation"
parameters {{ key: "task" value: {{ string_value: "transcription" }} }}
# Texts that are generated at the same time, each beam counting as one; others wait.
parameters {{ key: "max_sequences" value: {{ string_value: "{rows}" }} }}
"""


def write_whisper(checkpoint: Checkpoint, folder: Path, options: ExportOptions) -> None:
    """Speech to text. Raises a ShoalError."""
    checkpoint.expect(WHISPER)
    tokenizer = checkpoint.tokenizer_json()
    config, weights = checkpoint.weights(WHISPER)
    generation = checkpoint.optional_json("generation_config.json")
    suppressed = generation.get("suppress_tokens") or []
    whisper = Whisper(config, weights, [token for token in suppressed if token >= 0])
    whisper.encoder().save(folder / "1" / "encoder.onnx")
    whisper.decoder().save(folder / "1" / "decoder.onnx")
    stop = generation.get("eos_token_id", config.eos_token_id)
    stops = stop if isinstance(stop, list) else [stop]
    multilingual = generation.get("is_multilingual", config.vocab_size >= _MULTILINGUAL)
    write_json(
        folder / "task.json",
        {
            "multilingual": bool(multilingual),
            "stop_tokens": stops,
            "pad_token": int(config.pad_token_id or stops[0]),
            "max_length": int(config.max_target_positions),
            "max_tokens": int(config.max_target_positions) - 1,
            # An empty text is suppressed, as in begin_suppress_tokens.
            "min_tokens": 1
            if set(stops) & set(generation.get("begin_suppress_tokens") or [])
            else 0,
        },
    )
    (folder / "tokenizer.json").write_bytes(tokenizer)
    text = _CONFIG.format(source=checkpoint.name, rows=options.max_sequences)
    (folder / "config.pbtxt").write_text(text, "utf-8")


class Whisper:
    """A checkpoint's weights, and the graphs that use them."""

    def __init__(
        self, config: Any, weights: Mapping[str, np.ndarray], suppressed: Sequence[int] = ()
    ) -> None:
        """`config` is a WhisperConfig; `suppressed` are tokens that are never generated."""
        self._config = config
        self._weights = weights
        self._suppressed = suppressed
        self._width = config.d_model
        self._heads = config.decoder_attention_heads
        self._size = self._width // self._heads

    def encoder(self) -> GraphBuilder:
        """input_features [batch, bins, frames] to cross_keys_0, cross_values_0 and so on."""
        config, weights = self._config, self._weights
        graph = GraphBuilder("whisper_encoder")
        frames, tokens = 2 * config.max_source_positions, config.max_source_positions
        sound = graph.input(
            "input_features", TensorProto.FLOAT, ["batch", config.num_mel_bins, frames]
        )
        for number in (1, 2):
            at = f"model.encoder.conv{number}"
            kernel, bias = (graph.weight(weights[f"{at}.{part}"]) for part in ("weight", "bias"))
            sound = graph.node("Conv", sound, kernel, bias, strides=[number], pads=[1, 1])
            sound = graph.activation("gelu", sound)
        value = graph.node("Transpose", sound, perm=[0, 2, 1])
        value = graph.node(
            "Add", value, graph.weight(weights["model.encoder.embed_positions.weight"][None])
        )
        heads, size = config.encoder_attention_heads, self._width // config.encoder_attention_heads
        for layer in range(config.encoder_layers):
            at = f"model.encoder.layers.{layer}"
            normed = self._norm(graph, f"{at}.self_attn_layer_norm", value)
            query, keys, values = (
                graph.heads(part, heads, size)
                for part in graph.nodes(
                    "Split", 3, graph.linear(normed, *self._qkv(f"{at}.self_attn", size)), axis=-1
                )
            )
            seen = graph.attend(query, graph.transposed(keys), values)
            seen = graph.join_heads(seen, self._width)
            value = self._added(graph, f"{at}.self_attn.out_proj", seen, value)
            value = self._feed_forward(graph, at, value)
        value = self._norm(graph, "model.encoder.layer_norm", value)
        for layer in range(config.decoder_layers):
            at = f"model.decoder.layers.{layer}.encoder_attn"
            keys = graph.reshape(
                graph.linear(value, *self._linear(f"{at}.k_proj")), 0, 0, self._heads, self._size
            )
            keys = graph.node("Transpose", keys, perm=[0, 2, 3, 1])
            graph.output(keys, f"cross_keys_{layer}", ["batch", self._heads, self._size, tokens])
            values = graph.linear(value, *self._linear(f"{at}.v_proj"))
            values = graph.heads(values, self._heads, self._size)
            graph.output(
                values, f"cross_values_{layer}", ["batch", self._heads, tokens, self._size]
            )
        return graph

    def decoder(self) -> GraphBuilder:
        """One step with past states; see `shoal.export.decoding`."""
        config, weights = self._config, self._weights
        graph = GraphBuilder("whisper_decoder")
        heads, size, tokens = self._heads, self._size, config.max_source_positions
        frame = Decoding(graph, heads, size, config.decoder_layers)
        dims: dict[str, list[Dim]] = {
            "keys": ["texts", heads, size, tokens],
            "values": ["texts", heads, tokens, size],
        }
        cross = [
            [graph.input(f"cross_{k}_{n}", TensorProto.FLOAT, d) for k, d in dims.items()]
            for n in range(config.decoder_layers)
        ]
        words = weights["model.decoder.embed_tokens.weight"]
        value = graph.node("Gather", graph.weight(words), frame.token_ids, axis=0)
        places = graph.weight(weights["model.decoder.embed_positions.weight"])
        value = graph.node("Add", value, graph.node("Gather", places, frame.positions, axis=0))
        # The rows of one text are asked together: its states are there once.
        shape = graph.shape(graph.size(value, 0), graph.size(value, 1), self._width)
        texts = graph.size(cross[0][0], 0)
        for layer in range(config.decoder_layers):
            at = f"model.decoder.layers.{layer}"
            normed = self._norm(graph, f"{at}.self_attn_layer_norm", value)
            seen = frame.self_attention(layer, normed, *self._qkv(f"{at}.self_attn", size))
            value = self._added(graph, f"{at}.self_attn.out_proj", seen, value)
            normed = self._norm(graph, f"{at}.encoder_attn_layer_norm", value)
            weight, bias = self._linear(f"{at}.encoder_attn.q_proj")
            scale = np.float32(size**-0.5)
            query = graph.linear(normed, weight * scale, bias * scale)
            grid = graph.reshape(query, texts, -1, heads, size)
            grid = graph.node("Transpose", grid, perm=[0, 2, 1, 3])
            seen = graph.attend(grid, *cross[layer])
            seen = graph.node("Transpose", seen, perm=[0, 2, 1, 3])
            seen = graph.node("Reshape", seen, shape)
            value = self._added(graph, f"{at}.encoder_attn.out_proj", seen, value)
            value = self._feed_forward(graph, at, value)
        value = self._norm(graph, "model.decoder.layer_norm", frame.last(value))
        never = np.zeros(config.vocab_size, np.float32)
        never[list(self._suppressed)] = _SUPPRESSED
        head = weights.get("proj_out.weight", words)
        frame.finish(graph.linear(value, head.T, never), config.vocab_size)
        return graph

    # ---- blocks

    def _qkv(self, at: str, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Query (scaled), keys and values in one multiplication."""
        parts = [self._linear(f"{at}.{name}_proj") for name in ("q", "k", "v")]
        weight = np.concatenate([weight for weight, _ in parts], axis=1)
        bias = np.concatenate([bias for _, bias in parts])
        scale = np.ones(3 * self._width, np.float32)
        scale[: self._width] = size**-0.5
        return weight * scale, bias * scale

    def _feed_forward(self, graph: GraphBuilder, at: str, value: str) -> str:
        inner = self._norm(graph, f"{at}.final_layer_norm", value)
        inner = graph.linear(inner, *self._linear(f"{at}.fc1"))
        inner = graph.activation(self._config.activation_function, inner)
        return self._added(graph, f"{at}.fc2", inner, value)

    def _added(self, graph: GraphBuilder, at: str, value: str, before: str) -> str:
        return graph.node("Add", graph.linear(value, *self._linear(at)), before)

    def _norm(self, graph: GraphBuilder, at: str, value: str) -> str:
        weights = self._weights
        return graph.norm(value, weights[f"{at}.weight"], weights[f"{at}.bias"], 1e-5)

    def _linear(self, at: str) -> tuple[np.ndarray, np.ndarray]:
        """Weight, as [in, out], and bias; projections of keys have none."""
        weight = self._weights[f"{at}.weight"].T
        bias = self._weights.get(f"{at}.bias")
        return weight, np.zeros(weight.shape[1], np.float32) if bias is None else bias
