"""Text out of tokens as they come: only what later tokens cannot change is handed out.

A character may be spread over several tokens, and what a token looks like depends on the ones
before it. So the piece that a token brings is the difference between two decoded texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

_HALF = "\ufffd"  # what decoders write for a character that is not complete
_CONTEXT = 8  # tokens before a piece that may matter for how it is written


class TextStream:
    """The text of one sequence of tokens, piece by piece. Pieces joined are the whole text."""

    def __init__(self, decode: Decode, before: Sequence[int] = ()) -> None:
        """`before` are tokens that the text goes on from; they are not part of it."""
        self._decode = decode
        self._tokens = list(before)
        self._given = len(self._tokens)  # tokens whose text has been handed out
        self._start = max(0, self._given - _CONTEXT)

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens make certain; empty while a character is incomplete."""
        self._tokens.extend(token_ids)
        text, known = self._texts()
        if text.endswith(_HALF) or not text.startswith(known):
            return ""
        self._advance()
        return text[len(known) :]

    def rest(self) -> str:
        """What is still held back, now that no more tokens will come."""
        text, known = self._texts()
        self._advance()
        if text.startswith(known):
            return text[len(known) :]
        return ""  # it was rewritten: what has been handed out cannot be taken back

    def _texts(self) -> tuple[str, str]:
        window = self._tokens[self._start :]
        known = window[: self._given - self._start]
        return self._decode(window), self._decode(known) if known else ""

    def _advance(self) -> None:
        self._given = len(self._tokens)
        self._start = max(0, self._given - _CONTEXT)
