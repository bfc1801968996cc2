"""The BentoML service: arrays as JSON for small models, the plain form for large bodies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import bentoml
import numpy as np

from benchmarks.peers.services.inference import Model, setting

Array = np.ndarray[Any, Any]
Rows = Annotated[np.ndarray, bentoml.validators.DType("int32")]
Tokens = Annotated[np.ndarray, bentoml.validators.DType("int64")]
Plain = Annotated[bytes, bentoml.validators.ContentType("application/octet-stream")]


@bentoml.service(
    workers=int(setting("WORKERS", "1")),
    traffic={"timeout": 60},
    metrics={"enabled": False},
    logging={"access": {"enabled": False}},
)
class Inference:
    """One session per worker process."""

    def __init__(self) -> None:
        self.model = Model()

    @bentoml.api
    async def add_sub(self, INPUT0: Rows, INPUT1: Rows) -> dict[str, Any]:  # noqa: N803
        """W1. Async: for so little work a thread would only add its hand-over."""
        return self._lists({"INPUT0": INPUT0, "INPUT1": INPUT1})

    @bentoml.api
    def encoder(self, input_ids: Tokens, attention_mask: Tokens) -> dict[str, Any]:
        """W3."""
        return self._lists({"input_ids": input_ids, "attention_mask": attention_mask})

    @bentoml.api
    def file(self, data: Path, /) -> Plain:
        """W2 and W4: the body is a file."""
        return self.model.answer(data.read_bytes())

    def _lists(self, feeds: dict[str, Array]) -> dict[str, Any]:
        outputs = self.model.run(feeds)
        return {
            name: output.tolist() for name, output in zip(self.model.outputs, outputs, strict=True)
        }
