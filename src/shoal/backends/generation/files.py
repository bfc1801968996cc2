"""The files of a generation model, decoder.onnx and perhaps encoder.onnx, and their sessions.

    decoder.onnx   input_ids, past_lengths, past_0 …, context…  -->  logits, states
    encoder.onnx   pixel_values | input_features  -->  context…

Opening checks that the two match, so that a step need not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shoal.backends import onnx_session
from shoal.backends.onnx_options import SessionSettings
from shoal.backends.onnx_providers import Provider
from shoal.config.model import ModelConfig
from shoal.errors import BackendFailure, ConfigError, NotFound
from shoal.generation.decoder import Shape

DECODER, ENCODER = "decoder.onnx", "encoder.onnx"
PIXELS, FEATURES = "pixel_values", "input_features"  # of a photo, of sound
_IDS, _LENGTHS, _PAST = "input_ids", "past_lengths", "past_"
_OUTPUTS = ("logits", "states")


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


class OnnxEncoder:
    """Encodes photos or sound for the decoder. Any thread may call it."""

    def __init__(self, path: Path, settings: SessionSettings, chosen: Sequence[Provider]) -> None:
        """Open the file. Raises a ShoalError that names it."""
        self._session = onnx_session.open_session(path, settings, chosen)
        self._options = onnx_session.run_options(settings)
        names = [(value.name, len(value.shape)) for value in self._session.get_inputs()]
        if names not in ([(PIXELS, 4)], [(FEATURES, 3)]):
            raise _unfit(
                path,
                f"its input must be {PIXELS} [batch, 3, height, width] or {FEATURES} "
                f"[batch, bins, frames]",
            )
        self._input = names[0][0]
        dims = self._session.get_inputs()[0].shape[1:]
        self.dims = tuple(dim if type(dim) is int else -1 for dim in dims)
        outputs = self._session.get_outputs()
        self.outputs = {value.name: tuple(value.shape[1:]) for value in outputs}

    def run(self, features: np.ndarray) -> list[np.ndarray]:
        """The context of each photo, or window of sound, of a batch. Raises BackendFailure."""
        try:
            arrays: list[np.ndarray] = self._session.run(
                list(self.outputs), {self._input: features}, self._options
            )
        except Exception as error:
            raise BackendFailure(
                f"the encoder failed: {onnx_session.clean_message(error)}"
            ) from error
        return arrays


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
        inputs = {value.name: tuple(value.shape) for value in self._session.get_inputs()}
        outputs = {value.name: tuple(value.shape) for value in self._session.get_outputs()}
        for name in (_IDS, _LENGTHS, f"{_PAST}0"):
            if name not in inputs:
                raise _unfit(path, f"it has no input '{name}'")
        for name in _OUTPUTS:
            if name not in outputs:
                raise _unfit(path, f"it has no output '{name}'")
        states = sum(name.startswith(_PAST) and name != _LENGTHS for name in inputs)
        self._past = [f"{_PAST}{number}" for number in range(states)]
        self._context = [
            name for name in inputs if name not in (_IDS, _LENGTHS) and name not in self._past
        ]
        known = {} if encoder is None else encoder.outputs
        for name in self._context:
            if known.get(name) != inputs[name][1:]:
                there = f"gives {list(known[name])}" if name in known else "gives no such thing"
                raise _unfit(
                    path, f"it needs '{name}' {list(inputs[name][1:])}, and {ENCODER} {there}"
                )
        # Decoder and encoder may list them in different orders.
        self.context_order = [list(known).index(name) for name in self._context]
        _, heads, _, size = inputs[self._past[0]]
        self.shape = Shape(
            states,
            heads,
            size,
            max_length,
            outputs["logits"][-1],
            tuple(inputs[name][1:] for name in self._context),
        )

    def run(
        self,
        token_ids: np.ndarray,
        lengths: np.ndarray,
        past: Sequence[np.ndarray],
        context: Sequence[np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """One step; past and context are not copied. Raises BackendFailure."""
        feed = {_IDS: token_ids, _LENGTHS: lengths}
        feed.update(zip(self._past, past, strict=True))
        feed.update(zip(self._context, context, strict=True))
        try:
            logits, states = self._run(_OUTPUTS, feed, self._options)
        except Exception as error:
            raise BackendFailure(
                f"the decoder failed: {onnx_session.clean_message(error)}"
            ) from error
        return logits, states


def _unfit(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"is not a file for the generation backend: {reason}",
        file=f"{path.parent.parent.name}/{path.parent.name}/{path.name}",
        fix="Make it with shoal export",
    )
