"""The task `token-classification`: names, places and other words that are marked in a text.

    texts --threads: tokens--> groups by length --> model --threads: spans of equal labels--> JSON

Labels may have the prefixes B- (begins) and I- (inside); neighbours with the same name are one
entity, unless the second begins one. O marks all other words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import Internal, InvalidArgument
from shoal.tasks.base import Task, TaskContext
from shoal.tasks.ranking import read_labels
from shoal.tasks.request import TaskRequest
from shoal.tasks.texts.rows import ModelOutput, TextRows
from shoal.tasks.texts.tensors import TextTensors, TokenRow

_OTHER = "O"
_DIGITS = 6
_WAYS = ("simple", "first", "none")


class _Tagged(NamedTuple):
    """A token, or a word, with its label."""

    label: str
    score: float
    start: int
    end: int


class _Call(NamedTuple):
    """What the model has returned for the texts of a call."""

    texts: Sequence[str]
    rows: Sequence[TokenRow]
    outputs: Sequence[ModelOutput]
    way: str


class TokenClassification(Task):
    """Marks words in texts."""

    name = "token-classification"
    operation = "tag"

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        settings = context.settings
        self._tensors = TextTensors.of(context.signature, settings, self.name, ("logits", "scores"))
        if not self._tensors.per_token:
            settings.wrong(
                "output",
                f"'{self._tensors.output}' has one row for a text, not one for each token",
                "Name another one, or use the task text-classification",
            )
        self._rows = TextRows(context, self._tensors, positions=True)
        output = context.signature.outputs[self._tensors.output]
        self._labels = read_labels(settings, output, context.folder)
        if self._labels and self._tensors.size not in (-1, len(self._labels)):
            settings.wrong(
                "labels",
                f"there are {len(self._labels)} labels, and output '{output.name}' has "
                f"{self._tensors.size} classes",
                "Write one label per line, in the order of the output",
            )
        self._way = settings.choice("aggregation", _WAYS[0], _WAYS)
        self._finish = context.stage("postprocess", self._finished)

    async def perform(self, request: TaskRequest) -> dict[str, Any]:
        """`texts`, each with its `entities`: `label`, `text`, `start`, `end` and `score`."""
        given = [name for name in ("text", "texts") if request.has(name)]
        if len(given) != 1:
            raise InvalidArgument(
                "send either 'text', a text, or 'texts', a list of them"
                + (f"; found {' and '.join(given)}" if given else "")
            )
        texts = self._rows.checked_texts(given[0], request.values[given[0]], "mark")
        way = request.text("aggregation", longest=16, default=self._way)
        if way not in _WAYS:
            raise InvalidArgument(f"'aggregation' must be one of {', '.join(_WAYS)}, not {way!r}")
        rows = await self._rows.tokenise(texts)
        allowed = request.flag("truncate", self._rows.truncate)
        truncated = self._rows.truncated(rows, "texts", allowed=allowed)
        outputs = await self._rows.compute(rows)
        entities = await self._finish(_Call(texts, rows, outputs, way))
        result = {
            "model_name": self.context.model_name,
            "model_version": str(self.context.model_version),
            "texts": [{"entities": found} for found in entities],
            "tokens": sum(len(row.ids) for row in rows),
        }
        return {**result, "truncated": truncated} if truncated else result

    # ---- after the model, on threads

    def _finished(self, calls: Sequence[_Call]) -> list[list[list[dict[str, Any]]] | Exception]:
        finished: list[list[list[dict[str, Any]]] | Exception] = []
        for call in calls:
            try:
                finished.append(self._entities(call))
            except Exception as error:  # noqa: BLE001 - fails only its own call
                finished.append(error)
        return finished

    def _entities(self, call: _Call) -> list[list[dict[str, Any]]]:
        found: list[list[dict[str, Any]]] = [[] for _ in call.texts]
        for output in call.outputs:
            for index, length, logits in zip(
                output.indexes, output.lengths, output.values, strict=True
            ):
                tokens = self._tagged(call.rows[index], logits[:length], whole=call.way == "first")
                groups = [[token] for token in tokens] if call.way == "none" else _grouped(tokens)
                found[index] = [
                    _entity(group, call.texts[index], named=call.way == "none")
                    for group in groups
                    if group[0].label != _OTHER
                ]
        return found

    def _tagged(self, row: TokenRow, logits: np.ndarray, *, whole: bool) -> list[_Tagged]:
        """The tokens of a text with their labels; with `whole` words, by their first token."""
        if not np.isfinite(logits).all():
            raise Internal("the model returned numbers that are not finite")
        shares = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        best = shares.argmax(axis=1).tolist()
        scores = shares.max(axis=1).tolist()
        names = [self._labels[index] if self._labels else f"LABEL_{index}" for index in best]
        tokens = [
            (row.words[at], _Tagged(names[at], scores[at], *row.offsets[at]))
            for at in range(len(best))
            if row.words[at] is not None  # not a special token
        ]
        if not whole:
            return [token for _, token in tokens]
        words = ([token for _, token in some] for _, some in groupby(tokens, lambda one: one[0]))
        return [word[0]._replace(end=word[-1].end) for word in words]


def _grouped(tokens: Sequence[_Tagged]) -> Iterator[list[_Tagged]]:
    """Neighbours with labels of the same name, unless the second begins an entity."""
    group: list[_Tagged] = []
    for token in tokens:
        begins = token.label.startswith("B-")
        if group and (begins or _name(token.label) != _name(group[-1].label)):
            yield group
            group = []
        group.append(token)
    if group:
        yield group


def _entity(group: Sequence[_Tagged], text: str, *, named: bool) -> dict[str, Any]:
    start, end = group[0].start, group[-1].end
    return {
        "label": group[0].label if named else _name(group[0].label),
        "text": text[start:end],
        "start": start,
        "end": end,
        "score": round(sum(token.score for token in group) / len(group), _DIGITS),
    }


def _name(label: str) -> str:
    return label[2:] if label[:2] in ("B-", "I-") else label
