"""The task `text-classification`: the best labels for each text or pair of texts.

texts --threads: tokens--> groups by length --> model --threads: scores--> labels
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import InvalidArgument
from shoal.tasks.base import Task, TaskContext
from shoal.tasks.ranking import Ranking
from shoal.tasks.request import TaskRequest
from shoal.tasks.texts.rows import Text, TextRows, in_order
from shoal.tasks.texts.tensors import TextTensors

_INPUTS = "inputs"  # as text-embeddings-inference has it: the response is a list then


class _Scored(NamedTuple):
    """The model's logits for the texts of a call."""

    logits: np.ndarray
    top: int
    raw: bool


Labels = list[dict[str, Any]]


class TextClassification(Task):
    """Labels with scores for texts."""

    name = "text-classification"
    operation = "predict"

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        self._tensors = TextTensors.of(
            context.signature, context.settings, self.name, ("logits", "scores")
        )
        self._rows = TextRows(context, self._tensors)
        self._ranking = Ranking.of(context.settings, context.signature, context.folder)
        self._rank = context.stage("postprocess", self._ranked)

    async def perform(self, request: TaskRequest) -> Any:
        """`texts`, each with its best `labels`; with `inputs` a list of labels for each text."""
        ranking = self._ranking
        given = [name for name in ("text", "texts", _INPUTS) if request.has(name)]
        if len(given) != 1:
            raise InvalidArgument(
                "send either 'text', a text, or 'texts', a list of them"
                + (f"; found {' and '.join(given)}" if given else "")
            )
        field, sent = given[0], request.values[given[0]]
        texts = self._texts(field, sent)
        most = ranking.highest_top
        usual = most if field == _INPUTS and ranking.classes > 0 else ranking.top
        top = request.integer("top", usual, lowest=1, highest=most)
        rows = await self._rows.tokenise(texts)
        allowed = request.flag("truncate", self._rows.truncate)
        name = "texts" if field == "text" else field
        truncated = self._rows.truncated(rows, name, allowed=allowed)
        logits = in_order(await self._rows.compute(rows))
        labels = await self._rank(_Scored(logits, top, request.flag("raw_scores")))
        if field == _INPUTS:
            plain = [[_without_index(one) for one in best] for best in labels]
            return plain if type(sent) is list else plain[0]
        result = {
            "model_name": self.context.model_name,
            "model_version": str(self.context.model_version),
            "texts": [{"labels": best} for best in labels],
            "tokens": sum(len(row.ids) for row in rows),
        }
        return {**result, "truncated": truncated} if truncated else result

    def _texts(self, field: str, sent: Any) -> list[Text]:
        """The texts of a call; a list of two texts within `texts` or `inputs` is a pair."""
        if type(sent) is not list or not any(type(one) is list for one in sent):
            return list(self._rows.checked_texts(field, sent, "classify"))
        found: list[Text] = []
        for number, one in enumerate(self._rows.checked_list(field, sent)):
            where = f"{field}[{number}]"
            parts = one if type(one) is list else [one]
            if not 1 <= len(parts) <= 2:
                raise InvalidArgument(f"{where} must be a text or a list of two, a pair")
            checked = [self._rows.checked_text(where, part, "classify") for part in parts]
            found.append((checked[0], checked[1]) if len(checked) == 2 else checked[0])
        return found

    def _ranked(self, calls: Sequence[_Scored]) -> list[list[Labels] | Exception]:
        """On a thread: rank the scores of each call."""
        ranked: list[list[Labels] | Exception] = []
        for logits, top, raw in calls:
            try:
                ranked.append(self._ranking.best(logits, len(logits), top, raw=raw))
            except Exception as error:  # noqa: BLE001 - fails only its own call
                ranked.append(error)
        return ranked


def _without_index(label: dict[str, Any]) -> dict[str, Any]:
    return {"score": label["score"], "label": label["label"]}
