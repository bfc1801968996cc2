"""The FastAPI application: one route, the plain form."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from benchmarks.peers.services.inference import Model

application = FastAPI()
model = Model()


@application.post("/infer")
async def infer(request: Request) -> Response:
    """One process per core, so the model runs right here: a thread would only add its hand-over."""
    return Response(model.answer(await request.body()), media_type="application/octet-stream")
