"""Shoal inside a FastAPI application: its routes are below /models.

pip install fastapi uvicorn shoal
uvicorn mounted:app
"""

from __future__ import annotations

from app import classify
from fastapi import FastAPI

import shoal

models = shoal.asgi_app(classify)
app = FastAPI(lifespan=models.lifespan)


@app.get("/")
def about() -> dict[str, str]:
    return {"try": "/models/classify", "or": "/models/docs"}


app.mount("/models", models)
