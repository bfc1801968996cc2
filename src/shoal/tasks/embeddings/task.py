"""The task `sentence-embedding`: a vector for each text.

texts --threads: tokens--> groups by length --> model --threads: pool, normalise--> JSON
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.errors import InvalidArgument
from shoal.tasks.base import Task, TaskContext
from shoal.tasks.embeddings.pooling import POOLINGS, finished, pooled
from shoal.tasks.embeddings.prompts import Prompts
from shoal.tasks.request import TaskRequest
from shoal.tasks.texts.rows import LONGEST_POSSIBLE, ModelOutput, TextRows
from shoal.tasks.texts.tensors import TextTensors, TokenRow
from shoal.wire import json_text

_OUTPUTS = ("sentence_embedding", "embedding", "last_hidden_state", "token_embeddings")
_FORMATS = ("float", "base64")
_INPUTS = "inputs"  # as text-embeddings-inference has it: the response is a list then


@dataclass(frozen=True, slots=True)
class EmbeddingOptions:
    """The texts or token ids of a call, and the format of its vectors."""

    field: str  # the one with the texts
    texts: Sequence[str]
    token_ids: Sequence[Sequence[int]]
    truncate: bool
    dimensions: int  # 0: all of them
    encoding: str
    normalise: bool


class SentenceEmbedding(Task):
    """Embeds texts with the model's encoder."""

    name = "sentence-embedding"
    operation = "embed"

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        settings = context.settings
        self._tensors = TextTensors.of(context.signature, settings, self.name, _OUTPUTS)
        self._rows = TextRows(context, self._tensors)
        self.max_length = self._rows.max_length
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
        self._prompts = Prompts.of(settings)
        self._finish = context.stage("postprocess", self._finished)

    async def perform(self, request: TaskRequest) -> Any:
        """`embeddings` in the order of the texts, and the total number of `tokens`.

        `truncated` lists the texts that were longer than the model allows, if there are any. With
        `inputs` instead of `texts` the result is the list of vectors alone.
        """
        options = self._read(request)
        rows = [TokenRow(ids) for ids in options.token_ids]
        rows += await self._rows.tokenise(options.texts)
        truncated = self._rows.truncated(rows, options.field, allowed=options.truncate)
        outputs = await self._rows.compute(rows)
        vectors = await self._finish((outputs, options))
        if options.field == _INPUTS:
            return vectors
        result = {
            "model_name": self.context.model_name,
            "model_version": str(self.context.model_version),
            "embeddings": vectors,
            "tokens": sum(len(row.ids) for row in rows),
        }
        return {**result, "truncated": truncated} if truncated else result

    # ---- the request

    def _read(self, request: TaskRequest) -> EmbeddingOptions:
        size = self._tensors.size
        dimensions = request.integer(
            "dimensions", 0, lowest=1, highest=size if size > 0 else LONGEST_POSSIBLE
        )
        encoding = request.text("encoding_format", longest=16, default=_FORMATS[0])
        if encoding not in _FORMATS:
            raise InvalidArgument(
                f"'encoding_format' must be one of {', '.join(_FORMATS)}, not {encoding!r}"
            )
        given = [name for name in ("text", "texts", _INPUTS, "token_ids") if request.has(name)]
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
            texts = self._rows.checked_texts(given[0], request.values[given[0]], "embed")
            prompt = self._prompts.chosen(request)
            texts = [prompt + text for text in texts] if prompt else texts
        return EmbeddingOptions(
            "texts" if given == ["text"] else given[0],
            texts,
            token_ids,
            request.flag("truncate", self._rows.truncate),
            dimensions,
            encoding,
            request.flag("normalize", self._normalise),
        )

    def _read_ids(self, rows: Any) -> Sequence[Sequence[int]]:
        for number, ids in enumerate(self._rows.checked_list("token_ids", rows)):
            where = f"token_ids[{number}]"
            if type(ids) is not list or not ids or any(type(one) is not int for one in ids):
                raise InvalidArgument(f"{where} must be a list of whole numbers, and not empty")
            if not 0 <= min(ids) <= max(ids) < self._rows.vocabulary:
                raise InvalidArgument(
                    f"{where} contains a number that is not a token of this model: tokens are from "
                    f"0 to {self._rows.vocabulary - 1}. Other models have other tokens; send the "
                    f"text"
                )
            if len(ids) > self.max_length:
                raise InvalidArgument(
                    f"{where} has {len(ids)} tokens, at most {self.max_length} are allowed"
                )
        return list(rows)

    # ---- after the model, on threads

    def _finished(
        self, calls: Sequence[tuple[Sequence[ModelOutput], EmbeddingOptions]]
    ) -> Sequence[Sequence[Any]]:
        return [self._vectors(outputs, options) for outputs, options in calls]

    def _vectors(self, outputs: Sequence[ModelOutput], options: EmbeddingOptions) -> Sequence[Any]:
        """The vectors in the order of the texts, already serialised."""
        vectors: list[Any] = [None] * sum(len(output.indexes) for output in outputs)
        for output in outputs:
            whole = pooled(output.values, output.lengths, self._pooling)
            made = finished(
                whole, options.dimensions or whole.shape[1], normalise=options.normalise
            )
            for index, row in zip(output.indexes, made, strict=True):
                vectors[index] = (
                    json_text.written(row)
                    if options.encoding == "float"
                    else base64.b64encode(row.tobytes()).decode()
                )
        return vectors
