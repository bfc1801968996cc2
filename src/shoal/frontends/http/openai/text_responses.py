"""The two formats of a generated text: a completion, and a message of a conversation.

Each makes the whole response and the chunks of a stream.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from shoal.frontends.http.openai.generation import Generation, TextPiece

Json = dict[str, Any]


class TextResponse(ABC):
    """A response while it is made."""

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
        """The response in one piece: each text and the reason for its end."""
        choices = [
            {**self.choice(index, text), "logprobs": None, "finish_reason": end}
            for index, (text, end) in enumerate(texts)
        ]
        return {**self._head, "object": self.kind, "choices": choices, "usage": usage}

    def chunk(self, choices: Sequence[Json], more: Json) -> Json:
        """One event of a stream."""
        return {**self._head, "object": self.chunk_kind, "choices": choices, **more}

    def delta(self, piece: TextPiece, *, first: bool) -> Json:
        """The part of a chunk for one piece."""
        added = self.added(piece, first=first)
        return {**added, "logprobs": None, "finish_reason": piece.end or None}

    @abstractmethod
    def choice(self, index: int, text: str) -> Json:
        """One text of a whole response."""

    @abstractmethod
    def added(self, piece: TextPiece, *, first: bool) -> Json:
        """One piece of a text."""


class Completion(TextResponse):
    """The response of /v1/completions."""

    prefix = "cmpl"
    kind = chunk_kind = "text_completion"

    def choice(self, index: int, text: str) -> Json:
        """A text."""
        return {"index": index, "text": text}

    def added(self, piece: TextPiece, *, first: bool) -> Json:  # noqa: ARG002 - ChatMessage uses it
        """More of a text."""
        return {"index": piece.index, "text": piece.text}


class ChatMessage(TextResponse):
    """The response of /v1/chat/completions."""

    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def choice(self, index: int, text: str) -> Json:
        """A message of the assistant."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message}

    def added(self, piece: TextPiece, *, first: bool) -> Json:
        """More of a message; the first piece has the role."""
        delta: Json = {"role": "assistant"} if first else {}
        if piece.text or first:
            delta["content"] = piece.text
        return {"index": piece.index, "delta": delta}


def usage_of(generations: Sequence[Generation], prompts: int) -> Json:
    """The tokens of all texts; a prompt counts once, however many texts it has."""
    each = max(1, len(generations) // max(1, prompts))
    prompt_tokens = sum(one.usage.prompt_tokens for one in generations[::each])
    completion_tokens = sum(one.usage.completion_tokens for one in generations)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
