"""price-estimate: the price of a house from its size and number of rooms, in words.

    {"size": 80, "rooms": 3} --> [[0.8, 3]] --model--> [[2.4]] --> "about 240,000 EUR"

The model knows neither metres nor money: it takes two numbers and gives one. What they mean stands
here and in task.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.errors import ConfigError
from shoal.tasks.base import Task, TaskContext
from shoal.tasks.request import TaskRequest


class PriceEstimate(Task):
    """Estimates the price of a house."""

    name = "price-estimate"
    operation = "estimate"  # POST /v2/models/M/estimate, or /estimate

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        settings = context.settings
        self._currency = settings.text("currency", "EUR")
        self._unit = settings.number("unit", 100_000, lowest=1, highest=1e9)
        inputs = list(context.signature.inputs.values())
        if len(inputs) != 1 or inputs[0].dims != (2,):
            raise ConfigError(
                "the task wants a model with one input of two numbers: size and rooms",
                file="config.pbtxt",
                field="input",
                fix="Write dims: [ 2 ]",
            )
        self._input = inputs[0].name
        (self._output,) = context.signature.outputs
        # Slow work runs on threads, for up to 64 waiting calls at a time.
        self._in_words = context.stage("postprocess", self._write, most=64)

    async def perform(self, request: TaskRequest) -> dict[str, Any]:
        """Estimate one house; `request` rejects invalid numbers with an explanation."""
        size = request.number("size", 100, lowest=1, highest=10_000)
        rooms = request.integer("rooms", 3, lowest=1, highest=100)
        row = np.array([[size / 100, rooms]], np.float32)
        answer = await self.context.infer({self._input: row})  # shares a batch with other calls
        price = float(answer[self._output][0, 0]) * self._unit
        return {"price": round(price), "words": await self._in_words(price)}

    def _write(self, prices: Sequence[float]) -> list[str]:
        return [f"about {round(price, -3):,.0f} {self._currency}" for price in prices]
