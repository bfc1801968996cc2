"""Routes for uploads, objects and streams. Serve them with: shoal serve routes.py

pip install shoal pillow pydantic
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from PIL import Image
from pydantic import BaseModel, Field

import shoal


# A file of a form, the body itself, or base64 in JSON. The result is a PNG file.
@shoal.model(path="/thumbnail")
def thumbnail(image: Image.Image, width: int = 64) -> Image.Image:
    """Make an image smaller."""
    image.thumbnail((width, width))
    return image


class Review(BaseModel):
    """What a customer has written."""

    text: str
    stars: int = Field(ge=1, le=5)


class Mood(BaseModel):
    """How it sounds."""

    label: Literal["good", "bad"]
    score: float


# One call gets the reviews of up to 32 requests; each of them gets its own answer.
@shoal.model(path="/mood", batch=32, max_delay_ms=2)
def mood(reviews: list[Review]) -> list[Mood]:
    """Tell whether a review is a good one."""
    scores = [review.stars / 5 for review in reviews]
    return [Mood(label="good" if score > 0.5 else "bad", score=score) for score in scores]


# Values may be in the path and in the query, too. Each item is an event.
@shoal.model(path="GET /words/{text}")
def words(text: str, limit: int = 10) -> Iterator[dict]:
    """Send a text word by word."""
    for number, word in enumerate(text.split()[:limit]):
        yield {"number": number, "word": word}
