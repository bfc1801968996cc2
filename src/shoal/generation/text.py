"""Text from tokens as they arrive: only text that later tokens cannot change is returned.

A character may span several tokens, and the text of a token depends on the previous ones. So the
piece that a token adds is the difference between two decoded texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

_HALF = "\ufffd"  # stands for an incomplete character
_CONTEXT = 8  # previous tokens that may affect the text of a piece


class TextStream:
    """The text of one sequence of tokens, piece by piece. Pieces joined are the whole text."""

    def __init__(self, decode: Decode, before: Sequence[int] = ()) -> None:
        """`before` are the tokens of the prompt, which is not part of the text."""
        self._decode = decode
        self._tokens = list(before)
        self._given = len(self._tokens)  # tokens whose text was returned
        self._start = max(0, self._given - _CONTEXT)

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete; empty while a character is incomplete."""
        self._tokens.extend(token_ids)
        text, known = self._texts()
        if text.endswith(_HALF) or not text.startswith(known):
            return ""
        self._advance()
        return text[len(known) :]

    def rest(self) -> str:
        """The remaining text, after the last token."""
        text, known = self._texts()
        self._advance()
        if text.startswith(known):
            return text[len(known) :]
        return ""  # it was rewritten, but returned text cannot be changed

    def _texts(self) -> tuple[str, str]:
        window = self._tokens[self._start :]
        known = window[: self._given - self._start]
        return self._decode(window), self._decode(known) if known else ""

    def _advance(self) -> None:
        self._given = len(self._tokens)
        self._start = max(0, self._given - _CONTEXT)
