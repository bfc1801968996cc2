"""FastAPI keeps its routes and middleware; Shoal runs the model.

pip install fastapi uvicorn shoal
uvicorn in_front:app
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app import classify as model
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

import shoal

# It also has its own ports: metrics are at server.metrics_url, and http_port=8080 sets one.
server = shoal.Server(model)


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    with server:
        yield


app = FastAPI(lifespan=lifespan)


class Picture(BaseModel):
    """As before."""

    image: list[float]


class Digit(BaseModel):
    """As before."""

    label: str
    probability: float


@app.post("/classify")
def classify(picture: Picture) -> Digit:
    # Not `async def`: FastAPI calls it on many threads, and their requests share batches.
    try:
        answer = server.infer("classify", {"image": [picture.image]})
    except shoal.InvalidArgument as error:
        raise HTTPException(400, error.message) from None
    [label], [probability] = answer["label"][0], answer["probability"][0]
    return Digit(label=label.decode(), probability=probability)
