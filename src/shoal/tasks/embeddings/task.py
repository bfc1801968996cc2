"""The task `sentence-embedding`: a vector for each text.

    texts --threads: tokens--> groups by length --> model --threads: pool, normalise--> JSON

The texts of a call go to the model in groups of similar length, a few at a time, so that a call
with thousands of texts does not block others. Groups of different calls may share a batch.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import InvalidArgument
from shoal.tasks.base import Task, TaskContext
from shoal.tasks.embeddings.grouping import grouped
from shoal.tasks.embeddings.pooling import POOLINGS, finished, pooled
from shoal.tasks.embeddings.tensors import EncoderTensors
from shoal.tasks.request import TaskRequest
from shoal.tasks.tokenizer import pad_token_of, read_tokenizer
from shoal.wire import json_text

_BATCHES_AHEAD = 4  # of one call in the model's queue, so that other calls get their share
_CALLS_AT_ONCE = 64  # tokenised together
_PORTION = 200_000  # characters of one call that are tokenised at once, for the same reason
_FORMATS = ("float", "base64")
_LONGEST_POSSIBLE = 1_000_000


class Tokens(NamedTuple):
    """One text as the model reads it."""

    ids: Sequence[int]
    truncated: bool = False


class EncodedTexts(NamedTuple):
    """The model's output for some texts of a call."""

    indexes: Sequence[int]
    lengths: Sequence[int]
    states: np.ndarray


@dataclass(frozen=True, slots=True)
class EmbeddingOptions:
    """The texts or token ids of a call, and the format of its vectors."""

    texts: Sequence[str]
    token_ids: Sequence[Sequence[int]]
    truncate: bool
    dimensions: int  # 0: all of them
    encoding: str


class SentenceEmbedding(Task):
    """Embeds texts with the model's encoder."""

    name = "sentence-embedding"
    operation = "embed"

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        settings = context.settings
        self._tensors = EncoderTensors.of(context.signature, settings)
        self._tokenizer = read_tokenizer(settings)
        width = self._tensors.width
        self.max_length = settings.integer(
            "max_length", width or 512, lowest=3, highest=width or _LONGEST_POSSIBLE
        )
        self._tokenizer.enable_truncation(self.max_length)
        self._vocabulary = self._tokenizer.get_vocab_size()
        self._pad_token = pad_token_of(self._tokenizer)
        self._truncate = settings.flag("truncate", True)
        natural = "mean" if self._tensors.per_token else "none"
        self._pooling = settings.choice("pooling", natural, POOLINGS)
        if (self._pooling == "none") == self._tensors.per_token:
            has = "a vector for each token" if self._tensors.per_token else "one vector for a text"
            settings.wrong(
                "pooling",
                f"'{self._pooling}' does not go with the output '{self._tensors.output}', which is "
                f"{has}",
                "Write mean, cls or max" if self._tensors.per_token else "Write none",
            )
        self._normalise = settings.flag("normalise", True)
        self._most_texts = settings.integer("max_texts", 2048, lowest=1, highest=1_000_000)
        self._most_characters = settings.integer(
            "max_characters", 100_000, lowest=1, highest=100_000_000
        )
        self._tokenise = context.stage("preprocess", self._tokenised, most=_CALLS_AT_ONCE)
        self._finish = context.stage("postprocess", self._finished)

    async def perform(self, request: TaskRequest) -> dict[str, Any]:
        """`embeddings` in the order of the texts, and the total number of `tokens`.

        `truncated` lists the texts that were longer than the model allows, if there are any.
        """
        options = self._read(request)
        rows = [Tokens(ids) for ids in options.token_ids]
        for some in _portions(options.texts):
            rows += await self._tokenise(some)
        truncated = [number for number, row in enumerate(rows) if row.truncated]
        if truncated and not options.truncate:
            raise InvalidArgument(
                f"texts[{truncated[0]}] has more than {self.max_length} tokens; send it in parts, "
                f'or truncate it with "truncate": true'
            )
        pieces = await self._encode(rows)
        result = {
            "model_name": self.context.model_name,
            "model_version": str(self.context.model_version),
            "embeddings": await self._finish((pieces, options)),
            "tokens": sum(len(row.ids) for row in rows),
        }
        return {**result, "truncated": truncated} if truncated else result

    # ---- the request

    def _read(self, request: TaskRequest) -> EmbeddingOptions:
        size = self._tensors.size
        dimensions = request.integer(
            "dimensions", 0, lowest=1, highest=size if size > 0 else _LONGEST_POSSIBLE
        )
        encoding = request.text("encoding_format", longest=16, default=_FORMATS[0])
        if encoding not in _FORMATS:
            raise InvalidArgument(
                f"'encoding_format' must be one of {', '.join(_FORMATS)}, not {encoding!r}"
            )
        given = [name for name in ("text", "texts", "token_ids") if request.has(name)]
        if len(given) != 1:
            raise InvalidArgument(
                "send either 'text', a text, or 'texts', a list of them"
                + (f"; found {' and '.join(given)}" if given else "")
            )
        texts: Sequence[str] = ()
        token_ids: Sequence[Sequence[int]] = ()
        if given == ["token_ids"]:
            token_ids = self._read_ids(request.values["token_ids"])
        else:
            texts = self._read_texts(given[0], request.values[given[0]])
        truncate = request.flag("truncate", self._truncate)
        return EmbeddingOptions(texts, token_ids, truncate, dimensions, encoding)

    def _read_texts(self, name: str, value: Any) -> Sequence[str]:
        texts = value if name == "texts" else [value]
        self._check_count(name, texts)
        for number, text in enumerate(texts):
            where = f"texts[{number}]" if name == "texts" else "'text'"
            if type(text) is not str:
                raise InvalidArgument(f"{where} must be a text")
            if not text.strip():
                raise InvalidArgument(f"{where} is empty: there is nothing to embed")
            if len(text) > self._most_characters:
                raise InvalidArgument(
                    f"{where} has {len(text):,} characters, at most {self._most_characters:,} are "
                    f"allowed; send it in parts"
                )
        return list(texts)

    def _read_ids(self, rows: Any) -> Sequence[Sequence[int]]:
        self._check_count("token_ids", rows)
        for number, ids in enumerate(rows):
            where = f"token_ids[{number}]"
            if type(ids) is not list or not ids or any(type(one) is not int for one in ids):
                raise InvalidArgument(f"{where} must be a list of whole numbers, and not empty")
            if not 0 <= min(ids) <= max(ids) < self._vocabulary:
                raise InvalidArgument(
                    f"{where} contains a number that is not a token of this model: tokens are from "
                    f"0 to {self._vocabulary - 1}. Other models have other tokens; send the text"
                )
            if len(ids) > self.max_length:
                raise InvalidArgument(
                    f"{where} has {len(ids)} tokens, at most {self.max_length} are allowed"
                )
        return list(rows)

    def _check_count(self, name: str, items: Any) -> None:
        if type(items) is not list:
            raise InvalidArgument(f"'{name}' must be a list")
        if not 1 <= len(items) <= self._most_texts:
            raise InvalidArgument(
                f"'{name}' must have from 1 to {self._most_texts} elements, not {len(items)}"
            )

    # ---- before the model, on threads

    def _tokenised(self, calls: Sequence[Sequence[str]]) -> Sequence[Sequence[Tokens]]:
        """The texts of several calls at once: the library uses all cores."""
        found = iter(self._tokenizer.encode_batch_fast([text for call in calls for text in call]))
        return [
            [Tokens(one.ids, bool(one.overflowing)) for _, one in zip(call, found, strict=False)]
            for call in calls
        ]

    # ---- the model

    async def _encode(self, rows: Sequence[Tokens]) -> Sequence[EncodedTexts]:
        most = self._tensors.most_rows
        equal = not self._tensors.masked
        groups = grouped([len(row.ids) for row in rows], most, equal=equal)
        if len(groups) == 1:
            return [await self._ask(groups[0], rows)]
        waiting = list(reversed(groups))  # the shortest are sent first
        running: set[asyncio.Task[EncodedTexts]] = set()
        pieces: list[EncodedTexts] = []
        running_rows = 0
        try:
            while waiting or running:
                while waiting and running_rows < _BATCHES_AHEAD * most:
                    group = waiting.pop()
                    running_rows += len(group)
                    running.add(asyncio.ensure_future(self._ask(group, rows)))
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    piece = one.result()
                    running_rows -= len(piece.indexes)
                    pieces.append(piece)
        finally:
            for other in running:
                other.cancel()
        return pieces

    async def _ask(self, indexes: Sequence[int], rows: Sequence[Tokens]) -> EncodedTexts:
        ids = [rows[index].ids for index in indexes]
        output = self._tensors.output
        inputs = self._tensors.arrays(ids, self._pad_token)
        found = await self.context.infer(inputs, (output,))
        return EncodedTexts(indexes, [len(one) for one in ids], found[output])

    # ---- after the model, on threads

    def _finished(
        self, calls: Sequence[tuple[Sequence[EncodedTexts], EmbeddingOptions]]
    ) -> Sequence[Sequence[Any]]:
        return [self._vectors(pieces, options) for pieces, options in calls]

    def _vectors(self, pieces: Sequence[EncodedTexts], options: EmbeddingOptions) -> Sequence[Any]:
        """The vectors in the order of the texts, already serialised."""
        vectors: list[Any] = [None] * sum(len(piece.indexes) for piece in pieces)
        for piece in pieces:
            whole = pooled(piece.states, piece.lengths, self._pooling)
            made = finished(whole, options.dimensions or whole.shape[1], normalise=self._normalise)
            for index, row in zip(piece.indexes, made, strict=True):
                vectors[index] = (
                    json_text.written(row)
                    if options.encoding == "float"
                    else base64.b64encode(row.tobytes()).decode()
                )
        return vectors


def _portions(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """All texts, in portions that a thread processes quickly."""
    some: list[str] = []
    characters = 0
    for text in texts:
        some.append(text)
        characters += len(text)
        if characters >= _PORTION:
            yield some
            some, characters = [], 0
    if some:
        yield some
