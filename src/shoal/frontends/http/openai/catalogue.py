"""GET /v1/models: the models that these routes serve, in OpenAI's format."""

from __future__ import annotations

from typing import Any

from shoal.frontends.http.openai.embeddings import OPERATION

_OWNER = "shoal"


def embeds(model: Any) -> bool:
    """Whether a loaded model has the task behind /v1/embeddings."""
    return model.task is not None and model.task.operation == OPERATION


def entry(model: Any) -> dict[str, Any]:
    """One model; `created` is when it was loaded."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.statistics.loaded_ms // 1000,
        "owned_by": _OWNER,
    }
