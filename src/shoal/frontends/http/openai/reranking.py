"""POST /v1/rerank: to a call of the task `rerank`, and back.

{"query": …, "documents": […], "model": …}  -->  TaskRequest  -->  {"results": […], "usage": …}
"""

from __future__ import annotations

import secrets
from typing import Any

from shoal.errors import InvalidArgument
from shoal.frontends.http.openai.errors import OpenAiError
from shoal.frontends.http.openai.fields import Fields
from shoal.tasks.request import TaskRequest

OPERATION = "rerank"
_PASSED = ("query", "documents", "return_documents")


def read(fields: Fields) -> TaskRequest:
    """The request for the task. Raises OpenAiError, which names the invalid field."""
    values = {name: fields.get(name) for name in _PASSED if fields.get(name) is not None}
    for name in ("query", "documents"):
        if name not in values:
            raise OpenAiError(f"'{name}' is missing", name)
    if fields.get("top_n") is not None:
        values["top_n"] = fields.integer("top_n", 1, lowest=1, highest=1_000_000)
    return TaskRequest(values=values)


def translated(error: InvalidArgument) -> OpenAiError:
    """The task's error with the field that it is about."""
    return OpenAiError(error.message, "query" if "'query'" in error.message else "documents")


def response(found: dict[str, Any], model: str) -> dict[str, Any]:
    """The result of the task, as Cohere's and Jina's clients read it."""
    tokens = found["tokens"]
    return {
        "id": f"rerank-{secrets.token_hex(12)}",
        "model": model,
        "results": found["results"],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {"billed_units": {"search_units": 1}, "tokens": {"input_tokens": tokens}},
    }
