r"""A question about a text, its answer, and their encoding for plain TCP and HTTP. No sockets.

{"text": …, "question": …}\n  --TCP-->  the answer\n            or  error: why not\n
POST …/answer, the same JSON  --HTTP->  {"answer", "score", "start", "end", …}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import orjson

from shoal.client.address import Address
from shoal.client.codec import bearer
from shoal.client.errors import InvalidInput, ProtocolError, ServerError

UNKNOWN = "Unknown"
TCP_PORT, HTTP_PORT = 9999, 8000
_REFUSED = "error: "


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a text."""

    text: str
    question: str


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. Over TCP only the text is known."""

    text: str
    score: float | None = None
    start: int | None = None  # position in the text, in characters
    end: int | None = None
    model: str = ""

    @property
    def known(self) -> bool:
        """Whether the text answers the question; a model may use another text for "Unknown"."""
        if self.start is not None:
            return True
        return self.score is None and self.text != UNKNOWN  # neither is known over TCP

    def span(self, text: str) -> tuple[int, int] | None:
        """The position of the answer in `text`: the server's, or the only occurrence."""
        if not self.known or not self.text.strip():
            return None
        if self.start is not None and self.end is not None:
            return (self.start, self.end) if 0 <= self.start < self.end <= len(text) else None
        # Over TCP an answer is one line, even if it spans several in the text.
        pattern = r"\s+".join(map(re.escape, self.text.split()))
        spans = [match.span() for match in re.finditer(pattern, text)]
        return spans[0] if len(spans) == 1 else None


# ---- plain TCP


def tcp_message(model: str, question: Question, api_key: str = "") -> bytes:
    """One line; without a model the server chooses. Raises InvalidInput."""
    more = {"model": model, "api_key": api_key}
    return _json(question, {name: value for name, value in more.items() if value}) + b"\n"


def tcp_answer(line: bytes) -> Answer:
    """The answer in a line without its line end. Raises ServerError for an error line."""
    text = line.decode("utf-8", "replace").removesuffix("\r")
    if text.startswith(_REFUSED):
        raise ServerError(text.removeprefix(_REFUSED))
    return Answer(text)


# ---- HTTP


def http_message(address: Address, model: str, question: Question, api_key: str = "") -> bytes:
    """A whole request; without a model the server chooses. Raises InvalidInput."""
    body = _json(question)
    path = f"/v2/models/{quote(model, safe='')}/answer" if model else "/answer"
    keys = "".join(f"{name}: {value}\r\n" for name, value in bearer(api_key).items())
    head = (
        f"POST {address.prefix}{path} HTTP/1.1\r\nHost: {address.authority}\r\n"
        f"Content-Type: application/json\r\n{keys}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("latin-1") + body


def http_answer(document: dict[str, Any]) -> Answer:
    """The answer in the JSON of a response. Raises ProtocolError without one."""
    text = document.get("answer")
    if not isinstance(text, str):
        raise ProtocolError(f"the response has no answer: {str(document)[:80]!r}")
    start, end, score = (document.get(name) for name in ("start", "end", "score"))
    return Answer(
        text,
        score=float(score) if isinstance(score, (int, float)) else None,
        start=start if isinstance(start, int) else None,
        end=end if isinstance(end, int) else None,
        model=str(document.get("model_name", "")),
    )


def _json(question: Question, more: Mapping[str, str] = MappingProxyType({})) -> bytes:
    try:
        return orjson.dumps({"text": question.text, "question": question.question, **more})
    except orjson.JSONEncodeError as error:
        raise InvalidInput(f"the text or the question is not valid Unicode: {error}") from None
