"""The text encoder of `models.text`, for PyTorch: any number of tokens to 384 numbers.

    write(folder / "1" / "model.pt")      TorchScript, with random weights from a fixed seed

Importing this imports torch. `answers` calls the same module directly, one text at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.models import LONGEST_TEXT, SEED, VOCABULARY

CONFIG = """
backend: "pytorch"
input { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }
input { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
output { name: "embedding__0" data_type: TYPE_FP32 dims: [ 384 ] }
"""


class Layer(nn.Module):
    """Self-attention and a perceptron, each with a residual connection and normalised."""

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.together = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.wider = nn.Linear(hidden, inner)
        self.narrower = nn.Linear(inner, hidden)
        self.first = nn.LayerNorm(hidden)
        self.second = nn.LayerNorm(hidden)

    def forward(self, data: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The output has the shape of the input."""
        rows, length, hidden = data.shape
        parts = self.together(data).view(rows, length, 3, self.heads, hidden // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        mixed = mixed.transpose(1, 2).reshape(rows, length, hidden)
        data = self.first(data + self.out(mixed))
        return self.second(data + self.narrower(functional.gelu(self.wider(data))))


class Encoder(nn.Module):
    """The first token's hidden state, through a pooler."""

    def __init__(
        self, hidden: int = 384, layers: int = 6, heads: int = 12, inner: int = 1_536
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, hidden)
        self.places = nn.Embedding(LONGEST_TEXT, hidden)
        self.layers = nn.ModuleList([Layer(hidden, heads, inner) for _ in range(layers)])
        self.pooler = nn.Linear(hidden, hidden)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """One row of numbers for each row of tokens."""
        data = self.words(input_ids) + self.places.weight[: input_ids.shape[1]]
        mask = attention_mask[:, None, None, :] > 0
        for layer in self.layers:
            data = layer(data, mask)
        return torch.tanh(self.pooler(data[:, 0]))


def write(file: Path) -> None:
    """Save the module as TorchScript."""
    _module().save(str(file))


def answers(asked: Sequence[np.ndarray], device: str) -> list[np.ndarray]:
    """The output of the model for each text alone."""
    place = "cuda" if device == "gpu" else "cpu"
    module = _module().to(place)
    with torch.inference_mode():
        ids = [torch.from_numpy(one).to(place) for one in asked]
        return [module(one, torch.ones_like(one)).cpu().numpy() for one in ids]


def _module() -> Any:
    torch.manual_seed(SEED)
    return torch.jit.script(Encoder().eval())
