"""The files of a generation model, decoder.onnx and perhaps encoder.onnx, and their sessions.

    decoder.onnx   input_ids, past_lengths, past_0 …, context…  -->  logits, states
    encoder.onnx   pixel_values | input_features  -->  context…

Opening checks that the two match, so that a step need not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shoal.backends import onnx_session
from shoal.backends.base import Placement
from shoal.backends.onnx_options import SessionSettings
from shoal.backends.onnx_providers import Provider
from shoal.config.model import ModelConfig
from shoal.errors import BackendFailure, ConfigError, NotFound
from shoal.generation.decoder import RowsFactory, Shape
from shoal.generation.rows import ArrayRows

DECODER, ENCODER = "decoder.onnx", "encoder.onnx"
PIXELS, FEATURES = "pixel_values", "input_features"  # of a photo, of sound
IDS, LENGTHS, _PAST = "input_ids", "past_lengths", "past_"
OUTPUTS = ("logits", "states")

Tensors = Mapping[str, tuple[Any, ...]]  # the dims of tensors; those that vary have a name or None


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where the files of one version are."""

    decoder: Path
    encoder: Path | None

    @classmethod
    def of(cls, config: ModelConfig, version_folder: Path) -> ModelFiles:
        """Find them. Raises NotFound, with what to do."""
        decoder = version_folder / (config.default_model_filename or DECODER)
        if not decoder.is_file():
            raise NotFound(
                f"unable to find '{decoder.name}' in "
                f"'{version_folder.parent.name}/{version_folder.name}' for model "
                f"'{config.name}'. Make it with: shoal export blip CHECKPOINT_FOLDER MODEL_FOLDER"
            )
        encoder = version_folder / ENCODER
        return cls(decoder, encoder if encoder.is_file() else None)


@dataclass(frozen=True, slots=True)
class DecoderPorts:
    """The names of a decoder's inputs and its sizes."""

    past: tuple[str, ...]
    context: tuple[str, ...]
    shape: Shape

    @classmethod
    def of(
        cls, path: Path, inputs: Tensors, outputs: Tensors, encoded: Tensors, max_length: int
    ) -> DecoderPorts:
        """Check the tensors of a decoder's file, and that the encoder makes what it needs.

        `encoded` has the encoder's outputs without their first dimension. Raises ConfigError.
        """
        for name in (IDS, LENGTHS, f"{_PAST}0"):
            if name not in inputs:
                raise unfit(path, f"it has no input '{name}'")
        for name in OUTPUTS:
            if name not in outputs:
                raise unfit(path, f"it has no output '{name}'")
        states = sum(name.startswith(_PAST) and name != LENGTHS for name in inputs)
        past = tuple(f"{_PAST}{number}" for number in range(states))
        context = tuple(name for name in inputs if name not in (IDS, LENGTHS, *past))
        for name in context:
            if encoded.get(name) != inputs[name][1:]:
                there = f"gives {list(encoded[name])}" if name in encoded else "gives no such thing"
                raise unfit(
                    path, f"it needs '{name}' {list(inputs[name][1:])}, and {ENCODER} {there}"
                )
        _, heads, _, size = inputs[past[0]]
        dims = tuple(inputs[name][1:] for name in context)
        shape = Shape(states, heads, size, max_length, outputs["logits"][-1], dims)
        return cls(past, context, shape)


def encoder_input(path: Path, inputs: Tensors) -> tuple[str, tuple[int, ...]]:
    """The name and the dims of what is encoded; -1 for those that vary. Raises ConfigError."""
    if [(name, len(dims)) for name, dims in inputs.items()] not in ([(PIXELS, 4)], [(FEATURES, 3)]):
        raise unfit(
            path,
            f"its input must be {PIXELS} [batch, 3, height, width] or {FEATURES} "
            f"[batch, bins, frames]",
        )
    name, dims = next(iter(inputs.items()))
    return name, tuple(dim if type(dim) is int else -1 for dim in dims[1:])


class OnnxEncoder:
    """Encodes photos or sound for the decoder. Any thread may call it."""

    def __init__(self, path: Path, settings: SessionSettings, chosen: Sequence[Provider]) -> None:
        """Open the file. Raises a ShoalError that names it."""
        self._session = onnx_session.open_session(path, settings, chosen)
        self._options = onnx_session.run_options(settings)
        self._input, self.dims = encoder_input(path, _tensors(self._session.get_inputs()))
        outputs = _tensors(self._session.get_outputs())
        self.outputs = {name: dims[1:] for name, dims in outputs.items()}
        self.context: Sequence[str] = list(self.outputs)  # those that the decoder needs

    overlaps = False

    def staged(self, features: np.ndarray) -> np.ndarray:
        """The same."""
        return features

    def start(self, features: Sequence[np.ndarray]) -> None:
        """Nothing: the CPU is busy with the decoder."""

    def run(self, features: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        """The context of each photo, or window of sound. Raises BackendFailure."""
        try:
            arrays = self._session.run(
                self.context, {self._input: np.stack(features)}, self._options
            )
        except Exception as error:
            raise BackendFailure(
                f"the encoder failed: {onnx_session.clean_message(error)}"
            ) from error
        return [[array[row] for array in arrays] for row in range(len(features))]


class OnnxDecoder:
    """A decoder with past states; see `shoal.generation.decoder.Decoder`."""

    def __init__(
        self,
        path: Path,
        settings: SessionSettings,
        chosen: Sequence[Provider],
        encoder: OnnxEncoder | None,
        max_length: int,
    ) -> None:
        """Open the file and check that it fits the encoder. Raises a ShoalError that names it."""
        self._session = onnx_session.open_session(path, settings, chosen)
        self._options = onnx_session.run_options(settings)
        # As in the onnxruntime backend: the wrapper around this costs time on each step.
        self._run = getattr(getattr(self._session, "_sess", None), "run", self._session.run)
        self._ports = DecoderPorts.of(
            path,
            _tensors(self._session.get_inputs()),
            _tensors(self._session.get_outputs()),
            {} if encoder is None else encoder.outputs,
            max_length,
        )
        self.shape = self._ports.shape
        if encoder is not None:  # they may list them in different orders
            encoder.context = self._ports.context

    def run(
        self,
        token_ids: np.ndarray,
        lengths: np.ndarray,
        past: Sequence[np.ndarray],
        context: Sequence[np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """One step; past and context are not copied. Raises BackendFailure."""
        feed = {IDS: token_ids, LENGTHS: lengths}
        feed.update(zip(self._ports.past, past, strict=True))
        feed.update(zip(self._ports.context, context, strict=True))
        try:
            logits, states = self._run(OUTPUTS, feed, self._options)
        except Exception as error:
            raise BackendFailure(
                f"the decoder failed: {onnx_session.clean_message(error)}"
            ) from error
        return logits, states


class OnnxRuntime:
    """A model on CPUs: sessions that its instances share."""

    def __init__(
        self,
        files: ModelFiles,
        settings: SessionSettings,
        chosen: Sequence[Provider],
        max_length: int,
    ) -> None:
        """Open both files. Raises a ShoalError that names the one that is wrong."""
        self._encoder = (
            None if files.encoder is None else OnnxEncoder(files.encoder, settings, chosen)
        )
        self._decoder = OnnxDecoder(files.decoder, settings, chosen, self._encoder, max_length)
        self.dims = None if self._encoder is None else self._encoder.dims
        self.vocabulary = self._decoder.shape.vocabulary

    def instance(self, placement: Placement) -> tuple[OnnxEncoder | None, RowsFactory]:
        """Encoder and decoder, with states in the CPU's memory."""
        del placement
        return self._encoder, partial(ArrayRows, self._decoder)

    def ready(self) -> bool:
        """Always."""
        return True

    def gpu_memory(self) -> dict[int, int]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Sessions are freed with their last reference."""


def _tensors(values: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
    return {value.name: tuple(value.shape) for value in values}


def unfit(path: Path, reason: str) -> ConfigError:
    """The error for a file that cannot be used."""
    return ConfigError(
        f"is not a file for the generation backend: {reason}",
        file=f"{path.parent.parent.name}/{path.parent.name}/{path.name}",
        fix="Make it with shoal export",
    )
