"""A stand-in for vLLM 0.5, without a model: what Triton's backend of September 2024 imports of it.

The engine numbers the requests that reach it, so that responses from a cache can be told apart.
"""

from __future__ import annotations

import itertools
import sys
import uuid
from collections.abc import AsyncIterator
from types import ModuleType, SimpleNamespace
from typing import Any


class AsyncEngineArgs(SimpleNamespace):
    """The settings in model.json."""

    disable_log_stats = True


class SamplingParams(SimpleNamespace):
    """The parameters of a request."""


class AsyncLLMEngine:
    """Responds to each request with its number."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    @classmethod
    def from_engine_args(cls, _arguments: AsyncEngineArgs) -> AsyncLLMEngine:
        """An engine with these settings."""
        return cls()

    async def add_request(
        self, _id: str, prompt: str, _parameters: SamplingParams, **_options: Any
    ) -> AsyncIterator[SimpleNamespace]:
        """The text as it grows, word by word."""
        text = f"response number {next(self._numbers)}"
        return self._grow(prompt, text)

    async def _grow(self, prompt: str, text: str) -> AsyncIterator[SimpleNamespace]:
        for whole in itertools.accumulate(text.split(), lambda start, word: f"{start} {word}"):
            outputs = [SimpleNamespace(text=whole)]
            yield SimpleNamespace(prompt=prompt, outputs=outputs, finished=whole == text)


def random_uuid() -> str:
    """An id for a request."""
    return uuid.uuid4().hex


_MODULES = {
    "engine": {},
    "engine.arg_utils": {"AsyncEngineArgs": AsyncEngineArgs},
    "engine.async_llm_engine": {"AsyncLLMEngine": AsyncLLMEngine},
    "engine.metrics": {
        "StatLoggerBase": object,
        "Stats": object,
        "SupportsMetricsInfo": object,
        "build_1_2_5_buckets": lambda most: [1, 2, 5, most],
    },
    "lora": {},
    "lora.request": {"LoRARequest": SimpleNamespace},
    "sampling_params": {"SamplingParams": SamplingParams},
    "utils": {"random_uuid": random_uuid},
}
for _name, _contents in _MODULES.items():
    _module = ModuleType(f"{__name__}.{_name}")
    vars(_module).update(_contents)
    sys.modules[_module.__name__] = _module
