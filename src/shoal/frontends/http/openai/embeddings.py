"""POST /v1/embeddings: to a call of the task `sentence-embedding`, and back.

{"input": …, "model": …}  -->  TaskRequest  -->  {"object": "list", "data": [{"embedding": …}]}
"""

from __future__ import annotations

from typing import Any

from shoal.errors import InvalidArgument
from shoal.frontends.http.openai.errors import OpenAiError
from shoal.frontends.http.openai.fields import Fields
from shoal.tasks.request import TaskRequest

OPERATION = "embed"
_FORMATS = ("float", "base64")


def read(fields: Fields) -> TaskRequest:
    """The request for the task. Raises OpenAiError, which names the invalid field."""
    values: dict[str, Any] = {}
    given = fields.get("input")
    if given is None:
        raise OpenAiError("'input' is missing: send a text or a list of texts", "input")
    if type(given) is str:
        values["texts"] = [given]
    elif type(given) is list and given and all(type(one) is str for one in given):
        values["texts"] = given
    elif type(given) is list and given and all(type(one) is int for one in given):
        values["token_ids"] = [given]
    elif type(given) is list and given and all(type(one) is list for one in given):
        values["token_ids"] = given
    else:
        raise OpenAiError(
            "'input' must be a text, a list of texts, a list of token ids or a list of such lists",
            "input",
        )
    if any(not text.strip() for text in values.get("texts", ())):
        raise OpenAiError("'input' contains an empty text", "input")
    encoding = fields.get("encoding_format") or _FORMATS[0]
    if encoding not in _FORMATS:
        raise OpenAiError("'encoding_format' must be float or base64", "encoding_format")
    values["encoding_format"] = encoding
    prompt = fields.get("prompt_name") or fields.get("input_type")  # extensions of other servers
    if prompt is not None:
        values["prompt_name"] = prompt
    if fields.get("dimensions") is not None:
        values["dimensions"] = fields.integer("dimensions", 1, lowest=1, highest=1_000_000)
    return TaskRequest(values=values)


def translated(error: InvalidArgument) -> OpenAiError:
    """The task's error, with the field names of this API."""
    message = error.message
    for ours, theirs in (("texts", "input"), ("token_ids", "input")):
        message = message.replace(f"'{ours}'", f"'{theirs}'").replace(f"{ours}[", f"{theirs}[")
    return OpenAiError(message, "dimensions" if "'dimensions'" in message else "input")


def response(found: dict[str, Any], model: str) -> dict[str, Any]:
    """The result of the task in OpenAI's format; `truncated` is our addition."""
    tokens = found["tokens"]
    made: dict[str, Any] = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(found["embeddings"])
        ],
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    if "truncated" in found:
        made["truncated"] = found["truncated"]
    return made
