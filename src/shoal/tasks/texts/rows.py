"""Texts to rows of tokens, and rows to the model, those of similar length together.

    texts --threads: tokens--> rows --> groups by length --> model --> the output of each group

The groups of a call go to the model a few at a time, so that a call with thousands of texts does
not block others. Groups of different calls may share a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Encoding

from shoal.errors import InvalidArgument
from shoal.tasks.base import TaskContext
from shoal.tasks.texts.grouping import grouped
from shoal.tasks.texts.tensors import TextTensors, TokenRow
from shoal.tasks.tokenizer import pad_token_of, read_tokenizer

Text = str | tuple[str, str]  # a pair is one row

_BATCHES_AHEAD = 4  # of one call in the model's queue, so that other calls get their share
_CALLS_AT_ONCE = 64  # tokenised together
PORTION = 200_000  # characters of one call that are tokenised at once, for the same reason
LONGEST_POSSIBLE = 1_000_000


class ModelOutput(NamedTuple):
    """The model's output for some rows of a call."""

    indexes: Sequence[int]
    lengths: Sequence[int]  # in tokens
    values: np.ndarray


class TextRows:
    """The tokenizer of a model and its limits. For the loop's thread, except `tokenised`."""

    def __init__(
        self, context: TaskContext, tensors: TextTensors, *, positions: bool = False
    ) -> None:
        """`positions`: rows have offsets and words.

        Reads: tokenizer, max_length, truncate, max_texts, max_characters. Raises ConfigError.
        """
        settings = context.settings
        self._context = context
        self._tensors = tensors
        self._tokenizer = read_tokenizer(settings)
        width = tensors.width
        self.max_length = settings.integer(
            "max_length", width or 512, lowest=3, highest=width or LONGEST_POSSIBLE
        )
        self._tokenizer.enable_truncation(self.max_length)
        self.vocabulary: int = self._tokenizer.get_vocab_size()
        self._pad_token = pad_token_of(self._tokenizer)
        self._positions = positions
        self.truncate = settings.flag("truncate", True)
        self._most_texts = settings.integer("max_texts", 2048, lowest=1, highest=1_000_000)
        self._most_characters = settings.integer(
            "max_characters", 100_000, lowest=1, highest=100_000_000
        )
        self._tokenise = context.stage("preprocess", self.tokenised, most=_CALLS_AT_ONCE)

    # ---- the request. All of these raise InvalidArgument

    def checked_list(self, name: str, items: Any) -> list[Any]:
        """A list with as many elements as a call may have."""
        if type(items) is not list:
            raise InvalidArgument(f"'{name}' must be a list")
        if not 1 <= len(items) <= self._most_texts:
            raise InvalidArgument(
                f"'{name}' must have from 1 to {self._most_texts} elements, not {len(items)}"
            )
        return items

    def checked_text(self, where: str, text: Any, what: str = "read") -> str:
        """A text that is not empty and not too long."""
        if type(text) is not str:
            raise InvalidArgument(f"{where} must be a text")
        if not text.strip():
            raise InvalidArgument(f"{where} is empty: there is nothing to {what}")
        if len(text) > self._most_characters:
            raise InvalidArgument(
                f"{where} has {len(text):,} characters, at most {self._most_characters:,} are "
                f"allowed; send it in parts"
            )
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"{where} has half a surrogate pair: remove it") from None
        return text

    def checked_texts(self, name: str, value: Any, what: str) -> list[str]:
        """The texts of a field: `text` is one, `texts` a list, any other name either."""
        if name == "text" or (name != "texts" and type(value) is not list):
            return [self.checked_text(f"'{name}'", value, what)]
        return [
            self.checked_text(f"{name}[{number}]", text, what)
            for number, text in enumerate(self.checked_list(name, value))
        ]

    def truncated(self, rows: Sequence[TokenRow], name: str, *, allowed: bool) -> list[int]:
        """The indexes of truncated rows."""
        found = [number for number, row in enumerate(rows) if row.truncated]
        if found and not allowed:
            raise InvalidArgument(
                f"{name}[{found[0]}] has more than {self.max_length} tokens; send it in parts, "
                f'or truncate it with "truncate": true'
            )
        return found

    # ---- before the model

    async def tokenise(self, texts: Sequence[Text]) -> list[TokenRow]:
        """The row of each text."""
        rows: list[TokenRow] = []
        for some in portions(texts):
            rows += await self._tokenise(some)
        return rows

    def tokenised(self, calls: Sequence[Sequence[Text]]) -> Sequence[Sequence[TokenRow]]:
        """On a thread: the texts of several calls at once; the library uses all cores."""
        texts = [text for call in calls for text in call]
        encode = self._tokenizer.encode_batch if self._positions else None
        found = iter((encode or self._tokenizer.encode_batch_fast)(texts))
        return [
            [self._row(one, text) for text, one in zip(call, found, strict=False)] for call in calls
        ]

    def _row(self, one: Encoding, text: Text) -> TokenRow:
        types = one.type_ids if type(text) is tuple else ()
        if not self._positions:
            return TokenRow(one.ids, types, bool(one.overflowing))
        return TokenRow(one.ids, types, bool(one.overflowing), one.offsets, one.word_ids)

    # ---- the model

    async def compute(self, rows: Sequence[TokenRow]) -> Sequence[ModelOutput]:
        """The model's output for all rows, in groups of similar length."""
        most = self._tensors.most_rows
        equal = not self._tensors.masked
        groups = grouped([len(row.ids) for row in rows], most, equal=equal)
        if len(groups) == 1:
            return [await self._ask(groups[0], rows)]
        waiting = list(reversed(groups))  # the shortest are sent first
        running: set[asyncio.Task[ModelOutput]] = set()
        outputs: list[ModelOutput] = []
        running_rows = 0
        try:
            while waiting or running:
                while waiting and running_rows < _BATCHES_AHEAD * most:
                    group = waiting.pop()
                    running_rows += len(group)
                    running.add(asyncio.ensure_future(self._ask(group, rows)))
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    output = one.result()
                    running_rows -= len(output.indexes)
                    outputs.append(output)
        finally:
            for other in running:
                other.cancel()
        return outputs

    async def _ask(self, indexes: Sequence[int], rows: Sequence[TokenRow]) -> ModelOutput:
        some = [rows[index] for index in indexes]
        output = self._tensors.output
        inputs = self._tensors.arrays(some, self._pad_token)
        found = await self._context.infer(inputs, (output,))
        return ModelOutput(indexes, [len(row.ids) for row in some], found[output])


def in_order(outputs: Sequence[ModelOutput]) -> np.ndarray:
    """One array with a row for each text, in the order of the call; for outputs per text."""
    values = np.concatenate([output.values for output in outputs])
    ordered = np.empty_like(values)
    ordered[np.concatenate([output.indexes for output in outputs])] = values
    return ordered


def portions(texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
    """All texts, in portions that a thread processes quickly."""
    some: list[Text] = []
    characters = 0
    for text in texts:
        some.append(text)
        characters += len(text) if type(text) is str else len(text[0]) + len(text[1])
        if characters >= PORTION:
            yield some
            some, characters = [], 0
    if some:
        yield some
