"""A FastAPI application and a model in one file: `shoal serve beside.py` serves both.

pip install fastapi shoal
"""

from __future__ import annotations

from app import classify  # noqa: F401 - `shoal serve` serves it
from fastapi import FastAPI

app = FastAPI()


@app.get("/about")
def about() -> dict[str, str]:
    return {"model": "digits"}
