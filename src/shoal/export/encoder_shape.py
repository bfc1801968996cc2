"""The sizes of a BERT-like encoder, read from a checkpoint's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.errors import InvalidArgument, Unsupported

# Positions before the first token: RoBERTa reserves two.
_OFFSET_POSITIONS = frozenset(("roberta", "xlm-roberta", "camembert"))
MODEL_TYPES = frozenset(("bert", *_OFFSET_POSITIONS))
_ACTIVATIONS = ("gelu", "relu")


def longest_text(config: Mapping[str, Any]) -> int:
    """How many positions the model has; InvalidArgument if that is not a number."""
    try:
        places = int(config.get("max_position_embeddings") or 512)
        return places - _first_position(config)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"config.json: max_position_embeddings: {error}") from None


def _first_position(config: Mapping[str, Any]) -> int:
    offset = config.get("model_type") in _OFFSET_POSITIONS
    return int(config.get("pad_token_id") or 0) + 1 if offset else 0


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """The sizes of an encoder, from its config.json."""

    hidden: int
    layers: int
    heads: int
    longest: int  # in tokens
    vocabulary: int
    first_position: int
    epsilon: float
    activation: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> EncoderShape:
        """For MODEL_TYPES. Raises Unsupported, or InvalidArgument where a size is missing."""
        places = config.get("position_embedding_type", "absolute")
        activation = config.get("hidden_act", "gelu")
        if places != "absolute" or activation not in _ACTIVATIONS:
            raise Unsupported(
                f"config.json: position_embedding_type {places!r} with hidden_act {activation!r}; "
                f"written are absolute positions with {' or '.join(_ACTIVATIONS)}"
            )
        try:
            return cls(
                hidden=int(config["hidden_size"]),
                layers=int(config["num_hidden_layers"]),
                heads=int(config["num_attention_heads"]),
                longest=longest_text(config),
                vocabulary=int(config["vocab_size"]),
                first_position=_first_position(config),
                epsilon=float(config.get("layer_norm_eps", 1e-12)),
                activation=str(activation),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(f"config.json: a size is missing or wrong: {error}") from None
