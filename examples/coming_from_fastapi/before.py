"""FastAPI and ONNX Runtime: classify the digit in an image of 8 x 8 grey values.

pip install fastapi uvicorn onnxruntime
uvicorn before:app
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

FOLDER = Path(__file__).parent / "models" / "digits"
LABELS = (FOLDER / "labels.txt").read_text(encoding="utf-8").split()

app = FastAPI()
session = onnxruntime.InferenceSession(FOLDER / "1" / "model.onnx")


class Picture(BaseModel):
    """The request."""

    image: list[float]


class Digit(BaseModel):
    """The response."""

    label: str
    probability: float


@app.post("/classify")
def classify(picture: Picture) -> Digit:
    if len(picture.image) != 64:
        raise HTTPException(400, "a picture has 64 grey values")
    rows = np.array([picture.image], np.float32)
    [probabilities] = session.run(["probabilities"], {"image": rows})[0]
    best = int(probabilities.argmax())
    return Digit(label=LABELS[best], probability=float(probabilities[best]))
