"""The same with Shoal: requests that arrive together share one run of the model.

pip install shoal
shoal serve app.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import onnxruntime

import shoal

FOLDER = Path(__file__).parent / "models" / "digits"
LABELS = (FOLDER / "labels.txt").read_text(encoding="utf-8").split()

session = onnxruntime.InferenceSession(FOLDER / "1" / "model.onnx")

Picture = Annotated[npt.NDArray[np.float32], (64,)]


class Digit(NamedTuple):
    """The two outputs, with these names."""

    label: list[str]
    probability: list[float]


@shoal.model(path="/classify", batch=32)
def classify(image: Picture) -> Digit:
    """`image` has the images of up to 32 requests: its shape is [N, 64]."""
    probabilities = session.run(["probabilities"], {"image": image})[0]
    best = probabilities.argmax(axis=1)
    return Digit([LABELS[index] for index in best], probabilities.max(axis=1).tolist())
