"""Reading the fields of a request body, with errors that name the field.

{"model": "minilm", "input": "hello"}  -->  Fields
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.errors import InvalidArgument
from shoal.frontends.http.message import HttpRequest
from shoal.frontends.http.openai.errors import OpenAiError
from shoal.wire import json_limits
from shoal.wire.compression import IDENTITY, coding
from shoal.wire.http_body import check_json_size


class Fields:
    """The body of one request. A null field counts as absent."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = {name: value for name, value in values.items() if value is not None}

    @classmethod
    def of(cls, request: HttpRequest, most_bytes: int) -> Fields:
        """Read the body of a request. Raises OpenAiError."""
        if coding(request.header(b"content-encoding")) != IDENTITY:
            raise OpenAiError("the body is compressed; send it without compression")
        try:
            check_json_size(len(request.body), most_bytes)
            document = json_limits.loads(request.body, most_bytes)
        except InvalidArgument as error:
            raise OpenAiError(error.message) from None
        if type(document) is not dict:
            raise OpenAiError("the body must be a JSON object")
        return cls(document)

    @property
    def model(self) -> str:
        """The requested model."""
        value = self.values.get("model")
        if type(value) is not str or not value:
            raise OpenAiError("'model' is missing: name one that GET /v1/models lists", "model")
        return value

    def get(self, name: str) -> Any:
        """The value of a field; None where it is absent."""
        return self.values.get(name)

    def flag(self, name: str) -> bool:
        """True or false; false where it is absent."""
        value = self.values.get(name, False)
        if type(value) is not bool:
            raise OpenAiError(f"'{name}' must be true or false", name)
        return value

    def integer(self, name: str, default: int, *, lowest: int, highest: int) -> int:
        """A whole number within bounds."""
        value = self.values.get(name, default)
        if type(value) is not int or not lowest <= value <= highest:
            raise OpenAiError(f"'{name}' must be a whole number from {lowest} to {highest}", name)
        return value

    def number(self, name: str, *, lowest: float, highest: float) -> float | None:
        """A number within bounds; None where it is absent."""
        value = self.values.get(name)
        if value is None:
            return None
        if type(value) not in (int, float) or not lowest <= value <= highest:
            raise OpenAiError(f"'{name}' must be a number from {lowest:g} to {highest:g}", name)
        return float(value)

    def texts(self, name: str, *, most: int) -> Sequence[str]:
        """One text or a list of them; empty where it is absent."""
        value = self.values.get(name, [])
        found = [value] if type(value) is str else value
        if type(found) is not list or any(type(text) is not str or not text for text in found):
            raise OpenAiError(
                f"'{name}' must be a text or a list of texts, none of them empty", name
            )
        if len(found) > most:
            raise OpenAiError(f"'{name}' must have at most {most} elements, not {len(found)}", name)
        return found
