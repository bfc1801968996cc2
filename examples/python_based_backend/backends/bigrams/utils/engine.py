"""The engine: continues a text with the word that most often follows the last one."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator


class BigramEngine:
    """The word that follows each word of a text."""

    def __init__(self, text: str) -> None:
        words = text.split()
        followers: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for word, following in zip(words, words[1:] + words[:1], strict=True):
            followers[word.lower()][following] += 1
        self._next = {word: counts.most_common(1)[0][0] for word, counts in followers.items()}

    def __len__(self) -> int:
        return len(self._next)

    async def generate(self, prompt: str, count: int) -> AsyncIterator[str]:
        """Yield the next `count` words; ValueError if the last word of the prompt is unknown."""
        word = prompt.rsplit(maxsplit=1)[-1] if prompt.split() else ""
        if word.lower() not in self._next:
            raise ValueError(f"the text does not have the word '{word}'")
        for _ in range(count):
            await asyncio.sleep(0)  # other requests go on
            word = self._next[word.lower()]
            yield word
