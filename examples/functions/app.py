"""Five models in one file. Serve them with: shoal serve app.py"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

import shoal

Picture = Annotated[npt.NDArray[np.uint8], (8, 8)]


class Brightness(NamedTuple):
    """The two outputs, with these names."""

    mean: list[float]
    brightest: list[int]


# One call gets the images of many requests: `picture` has the shape [N, 8, 8].
@shoal.model(batch=32, max_delay_ms=2)
def brightness(picture: Picture) -> Brightness:
    pixels = picture.reshape(len(picture), -1)
    return Brightness(pixels.mean(axis=1).tolist(), pixels.max(axis=1).tolist())


# One request at a time, with plain values. Clients may omit arguments with a default.
@shoal.model(path="/greet")
def greet(name: str, greeting: str = "Hello") -> str:
    if not name:
        raise shoal.InvalidArgument("whom shall I greet? name is empty")
    return f"{greeting}, {name}!"


# Yielded values are streamed.
@shoal.model
def count_down(start: int) -> Iterator[str]:
    for number in range(start, 0, -1):
        yield f"{number} ..."
    yield "lift-off"


# Many calls wait at the same time on one event loop.
@shoal.model
async def patient(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return f"waited {seconds:g} s"


# __init__ loads what the model needs, once.
@shoal.model(batch=16)
class Mood:
    """Scores how happy a sentence sounds, from -1 to 1."""

    def __init__(self) -> None:
        self.words = {"good": 1.0, "great": 1.0, "glad": 0.5, "bad": -1.0, "sad": -0.5}

    def __call__(self, text: list[str]) -> list[float]:
        """Return one number per sentence."""
        return [self._score(sentence.lower().split()) for sentence in text]

    def _score(self, words: list[str]) -> float:
        known = [self.words[word] for word in words if word in self.words]
        return sum(known) / len(known) if known else 0.0
