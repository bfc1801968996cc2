"""A stand-in for diffusers: a network of one convolution, and steps of equal size.

Without a GPU, what a model moves to "cuda" stays on the CPU.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

if not torch.cuda.is_available():
    _to = torch.Tensor.to

    def _stay(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        there = ("cpu" if argument == "cuda" else argument for argument in arguments)
        return _to(tensor, *there, **options)

    torch.Tensor.to = _stay


class UNet2DConditionModel(torch.nn.Module):
    """Predicts the noise in a latent picture, given 768 numbers for each token of a text."""

    in_channels = 4

    def __init__(self) -> None:
        super().__init__()
        self._picture = torch.nn.Conv2d(self.in_channels, self.in_channels, 3, padding=1)
        self._text = torch.nn.Linear(768, self.in_channels)

    @classmethod
    def from_pretrained(cls, _name: str, **_options: Any) -> UNet2DConditionModel:
        """A network with random weights."""
        return cls()

    def to(self, device: str) -> UNet2DConditionModel:
        """Move the weights, if there is a GPU."""
        return super().to(device if torch.cuda.is_available() else "cpu")

    def forward(
        self, sample: torch.Tensor, _step: torch.Tensor, encoder_hidden_states: torch.Tensor
    ) -> SimpleNamespace:
        """The noise, as large as `sample`."""
        text = self._text(encoder_hidden_states.mean(dim=1))
        return SimpleNamespace(sample=self._picture(sample) + text[:, :, None, None])


class LMSDiscreteScheduler:
    """How the noise is removed, step by step."""

    def __init__(self, num_train_timesteps: int, **_options: Any) -> None:
        self._last = num_train_timesteps - 1

    def set_timesteps(self, count: int) -> None:
        """Choose the steps."""
        self.sigmas = torch.linspace(14, 0, count + 1)
        self.timesteps = torch.linspace(self._last, 0, count)

    def scale_model_input(self, sample: torch.Tensor, _step: torch.Tensor) -> torch.Tensor:
        """What the network gets."""
        return sample

    def step(
        self, noise: torch.Tensor, _step: torch.Tensor, sample: torch.Tensor
    ) -> SimpleNamespace:
        """The picture with a little less noise."""
        return SimpleNamespace(prev_sample=sample - noise / len(self.timesteps))
