"""Classify digits drawn as text, with labels and confidence.

    pip install numpy "tritonclient[http]"
    python examples/classify_digits.py [localhost:8000]

The model `digits` wants 8 x 8 grey values from 0 to 16. Asking for `class_count` classes of an
output makes the server sort them and add the labels of its labels.txt.
"""

from __future__ import annotations

import sys

import numpy as np
import tritonclient.http as triton

DRAWINGS = {
    "zero": """
        ...##...
        ..####..
        .##..##.
        .#....#.
        .#....#.
        .##..##.
        ..####..
        ...##...
    """,
    "one": """
        ....##..
        ...###..
        ..####..
        ....##..
        ....##..
        ....##..
        ....##..
        ....##..
    """,
    "seven": """
        ..#####.
        ..#####.
        .....##.
        ....##..
        ..#####.
        ...##...
        ...#....
        ..##....
    """,
}


def pixels(drawing: str) -> np.ndarray:
    """Grey values, row by row: 16 where there is ink."""
    rows = drawing.split()
    return np.array([[16.0 if mark == "#" else 0.0 for mark in row] for row in rows], np.float32)


def main(server: str) -> None:
    images = np.stack([pixels(drawing).ravel() for drawing in DRAWINGS.values()])
    image = triton.InferInput("image", list(images.shape), "FP32")
    image.set_data_from_numpy(images)
    wanted = triton.InferRequestedOutput("probabilities", class_count=3)

    with triton.InferenceServerClient(server) as client:
        answer = client.infer("digits", [image], outputs=[wanted]).as_numpy("probabilities")

    for name, classes in zip(DRAWINGS, answer, strict=True):
        best = [text.decode().split(":") for text in classes]  # "<value>:<index>:<label>"
        guesses = ", ".join(f"{label} {float(value):.0%}" for value, _, label in best)
        print(f"{name:>5}: {guesses}")
        assert best[0][2] == name


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000")
