"""The task `rerank`: how well each document answers a query, by a cross-encoder.

query, documents --threads: pairs as tokens--> groups by length --> model --> scores, sorted
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.errors import Internal, InvalidArgument
from shoal.tasks.base import Task, TaskContext
from shoal.tasks.ranking import sigmoid
from shoal.tasks.request import TaskRequest
from shoal.tasks.texts.rows import TextRows, in_order
from shoal.tasks.texts.tensors import TextTensors

_TEXTS = "texts"  # as text-embeddings-inference has it: the response is a list then
_DOCUMENTS = "documents"
_DIGITS = 6


class Rerank(Task):
    """Sorts documents by a query."""

    name = "rerank"
    operation = "rerank"

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        settings = context.settings
        self._tensors = TextTensors.of(context.signature, settings, self.name, ("logits", "scores"))
        if self._tensors.per_token or self._tensors.size not in (1, -1):
            settings.wrong(
                "output",
                f"'{self._tensors.output}' has {self._tensors.size} numbers for a pair of texts",
                "Use a model with one, or the task text-classification",
            )
        self._rows = TextRows(context, self._tensors)
        self._sigmoid = settings.choice("scores", "sigmoid", ("sigmoid", "as-is")) == "sigmoid"

    async def perform(self, request: TaskRequest) -> Any:
        """`results` with `index` and `relevance_score`, the best first.

        `return_documents` adds the documents, `top_n` limits their number. With `texts` instead of
        `documents` the result is a list of `index` and `score`.
        """
        field = _TEXTS if request.has(_TEXTS) else _DOCUMENTS
        if request.has(_TEXTS) and request.has(_DOCUMENTS):
            raise InvalidArgument("send either 'documents' or 'texts', not both")
        query = self._rows.checked_text("'query'", request.values.get("query"), "search for")
        if not request.has(field):
            raise InvalidArgument("'documents' is missing: send a list of texts")
        documents = self._documents(field, request.values[field])
        top = request.integer("top_n", len(documents), lowest=1, highest=1_000_000)
        raw = request.flag("raw_scores", not self._sigmoid)
        with_documents = request.flag("return_text" if field == _TEXTS else "return_documents")
        rows = await self._rows.tokenise([(query, document) for document in documents])
        allowed = request.flag("truncate", self._rows.truncate)
        truncated = self._rows.truncated(rows, field, allowed=allowed)
        logits = in_order(await self._rows.compute(rows))
        scores = _scores(logits, len(documents), raw=raw)
        best = np.argsort(-scores, kind="stable")[:top].tolist()
        if field == _TEXTS:
            return [
                {
                    "index": index,
                    "score": round(float(scores[index]), _DIGITS),
                    **({"text": documents[index]} if with_documents else {}),
                }
                for index in best
            ]
        result = {
            "model_name": self.context.model_name,
            "model_version": str(self.context.model_version),
            "results": [
                {
                    "index": index,
                    "relevance_score": round(float(scores[index]), _DIGITS),
                    **({"document": {"text": documents[index]}} if with_documents else {}),
                }
                for index in best
            ],
            "tokens": sum(len(row.ids) for row in rows),
        }
        return {**result, "truncated": truncated} if truncated else result

    def _documents(self, field: str, sent: Any) -> list[str]:
        """The documents; some clients send objects with a `text`."""
        found = []
        for number, one in enumerate(self._rows.checked_list(field, sent)):
            text = one.get("text") if type(one) is dict else one
            found.append(self._rows.checked_text(f"{field}[{number}]", text, "score"))
        return found


def _scores(logits: np.ndarray, count: int, *, raw: bool) -> np.ndarray:
    if logits.size != count:
        raise Internal(
            f"the model returned the shape {list(logits.shape)}, not one number for each of "
            f"{count} documents"
        )
    values = logits.reshape(count).astype(np.float32)
    if not np.isfinite(values).all():
        raise Internal("the model returned numbers that are not finite")
    return values if raw else sigmoid(values)
