"""The two forms of an answer with text: a completion, and a turn of a conversation.

Each knows how the whole answer looks and how one chunk of a stream does.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from shoal.frontends.http.openai.generation import Generation, Piece

Json = dict[str, Any]


class Form(ABC):
    """One answer in the making."""

    prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, model: str) -> None:
        self._head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, texts: Sequence[tuple[str, str]], usage: Json) -> Json:
        """The answer in one piece: each text and how it ended."""
        choices = [
            {**self.choice(index, text), "logprobs": None, "finish_reason": end}
            for index, (text, end) in enumerate(texts)
        ]
        return {**self._head, "object": self.kind, "choices": choices, "usage": usage}

    def chunk(self, choices: Sequence[Json], more: Json) -> Json:
        """One event of a stream."""
        return {**self._head, "object": self.chunk_kind, "choices": choices, **more}

    def delta(self, piece: Piece, *, first: bool) -> Json:
        """What a piece adds to its text."""
        added = self.added(piece, first=first)
        return {**added, "logprobs": None, "finish_reason": piece.end or None}

    @abstractmethod
    def choice(self, index: int, text: str) -> Json:
        """One text of a whole answer."""

    @abstractmethod
    def added(self, piece: Piece, *, first: bool) -> Json:
        """One piece of a text."""


class Completion(Form):
    """The answer of /v1/completions."""

    prefix = "cmpl"
    kind = chunk_kind = "text_completion"

    def choice(self, index: int, text: str) -> Json:
        """A text."""
        return {"index": index, "text": text}

    def added(self, piece: Piece, *, first: bool) -> Json:  # noqa: ARG002 - others begin otherwise
        """More of a text."""
        return {"index": piece.index, "text": piece.text}


class Turn(Form):
    """The answer of /v1/chat/completions."""

    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def choice(self, index: int, text: str) -> Json:
        """What the assistant says."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message}

    def added(self, piece: Piece, *, first: bool) -> Json:
        """More of what it says; who speaks is said first."""
        said: Json = {"role": "assistant"} if first else {}
        if piece.text or first:
            said["content"] = piece.text
        return {"index": piece.index, "delta": said}


def usage_of(generations: Sequence[Generation], prompts: int) -> Json:
    """The tokens of all texts; a prompt counts once, however many texts were made of it."""
    each = max(1, len(generations) // max(1, prompts))
    asked = sum(one.usage.prompt_tokens for one in generations[::each])
    made = sum(one.usage.completion_tokens for one in generations)
    return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}
