"""The features that Whisper reads: the logarithm of the power of sound, by time and pitch.

    samples --windows of 25 ms, each 10 ms later--> power by frequency --mel filters--> log

The numbers are those of transformers' WhisperFeatureExtractor.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

RATE = 16_000  # samples a second
HOP = 160  # samples from one window to the next
_WINDOW = 400
_LEAST = 1e-10
_RANGE = 8.0  # powers of ten below the loudest that are told apart

# Slaney's scale of pitch: linear below 1000 Hz, logarithmic above.
_LINEAR_TO_HZ = 1000.0
_LINEAR_STEP = 200.0 / 3
_LINEAR_BINS = _LINEAR_TO_HZ / _LINEAR_STEP
_LOG_STEP = np.log(6.4) / 27.0


class SpeechFeatures:
    """Makes features of `bins` pitches and `frames` times. Any thread may call it."""

    def __init__(self, bins: int, frames: int) -> None:
        self.samples = frames * HOP  # that are read; shorter sound is followed by silence
        self._frames = frames
        self._filters = mel_filters(bins)
        self._taper = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW)).astype(
            np.float64
        )

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """[bins, frames] of sound at RATE."""
        whole = np.zeros(self.samples, np.float64)
        whole[: len(samples)] = samples[: self.samples]
        padded = np.pad(whole, _WINDOW // 2, mode="reflect")
        pieces = sliding_window_view(padded, _WINDOW)[::HOP][: self._frames]
        power = np.abs(np.fft.rfft(pieces * self._taper, axis=1)) ** 2
        logs = np.log10(np.maximum(power @ self._filters.T, _LEAST)).T
        logs = np.maximum(logs, logs.max() - _RANGE)
        return np.ascontiguousarray((logs + 4.0) / 4.0, np.float32)


def mel_filters(bins: int) -> np.ndarray:
    """[bins, frequencies]: triangles over the frequencies, of equal area."""
    frequencies = np.linspace(0, RATE / 2, _WINDOW // 2 + 1)
    corners = _to_hz(np.linspace(0.0, _to_mel(RATE / 2), bins + 2))
    below = (frequencies[None] - corners[:-2, None]) / np.diff(corners)[:-1, None]
    above = (corners[2:, None] - frequencies[None]) / np.diff(corners)[1:, None]
    triangles = np.maximum(0.0, np.minimum(below, above))
    return np.asarray(triangles * (2.0 / (corners[2:] - corners[:-2]))[:, None])


def _to_mel(hertz: float) -> float:
    if hertz < _LINEAR_TO_HZ:
        return hertz / _LINEAR_STEP
    return float(_LINEAR_BINS + np.log(hertz / _LINEAR_TO_HZ) / _LOG_STEP)


def _to_hz(mels: np.ndarray) -> np.ndarray:
    high = _LINEAR_TO_HZ * np.exp(_LOG_STEP * (mels - _LINEAR_BINS))
    return np.asarray(np.where(mels < _LINEAR_BINS, mels * _LINEAR_STEP, high))
