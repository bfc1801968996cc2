"""Converts a model's scores to the best labels.

[0.2, 7.1, 3.3] --softmax--> probabilities --the best of them--> labels with scores
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core import dtypes
from shoal.core.signature import Signature, TensorSpec
from shoal.errors import ConfigError, Internal
from shoal.tasks.settings import TaskSettings

_LABELS = "labels.txt"
_DIGITS = 6  # of a score, after the point
_ONE = 0.01  # tolerance for the sum of half-precision probabilities


@dataclass(frozen=True, slots=True)
class Ranking:
    """The meaning of a classifier's output. Any thread may use it."""

    output: str
    classes: int  # -1 if not declared
    labels: tuple[str, ...]
    scores: str  # auto | softmax | sigmoid | as-is
    top: int  # the default number of labels for an input

    @classmethod
    def of(cls, settings: TaskSettings, signature: Signature, folder: Path) -> Ranking:
        """The ranking for a model's outputs. Reads: output, labels, scores, top.

        Raises ConfigError.
        """
        output = _output(settings, signature)
        classes = _classes(output)
        labels = read_labels(settings, output, folder)
        if labels and classes not in (-1, len(labels)):
            settings.wrong(
                "labels",
                f"there are {len(labels)} labels, and output '{output.name}' has {classes} classes",
                "Write one label per line, in the order of the output",
            )
        if classes == -1 and labels:
            classes = len(labels)
        most = classes if classes > 0 else 1 << 20
        return cls(
            output.name,
            classes,
            labels,
            settings.choice("scores", "auto", ("auto", "softmax", "sigmoid", "as-is")),
            settings.integer("top", min(5, most), lowest=1, highest=most),
        )

    @property
    def highest_top(self) -> int:
        """The largest number of labels that a request may ask for."""
        return self.classes if self.classes > 0 else 1 << 20

    def best(
        self, output: np.ndarray, rows: int, top: int, *, raw: bool = False
    ) -> list[list[dict[str, Any]]]:
        """The best labels of each row, the best first; with `raw` the scores are the output itself.

        Raises Internal if the output is not scores.
        """
        if output.size % rows or (self.classes > 0 and output.size != rows * self.classes):
            raise Internal(
                f"the model's output '{self.output}' has the shape {list(output.shape)}, which is "
                f"not one row of classes for each of {rows} inputs"
            )
        scores = self._scores(output.reshape(rows, -1), raw=raw)
        return [self._best(row, top) for row in scores]

    def _best(self, scores: np.ndarray, top: int) -> list[dict[str, Any]]:
        top = min(top, len(scores))
        best = np.argpartition(scores, len(scores) - top)[len(scores) - top :]
        best = best[np.lexsort((best, -scores[best]))]
        return self.labelled(best.tolist(), scores[best].tolist(), top)

    def labelled(
        self, indexes: Sequence[int], scores: Sequence[float], top: int
    ) -> list[dict[str, Any]]:
        """The first `top` of ranked classes, with their labels."""
        labels = self.labels
        return [
            {
                "label": labels[index] if labels else str(index),
                "score": round(score, _DIGITS),
                "index": index,
            }
            for index, score in zip(indexes[:top], scores[:top], strict=True)
        ]

    def _scores(self, rows: np.ndarray, *, raw: bool) -> np.ndarray:
        whole = rows.dtype.kind in "iu"
        rows = rows.astype(np.float32)
        if not np.isfinite(rows).all():
            raise Internal(
                f"the model's output '{self.output}' contains scores that are not finite"
            )
        if (
            raw
            or self.scores == "as-is"
            or (self.scores == "auto" and (whole or _probabilities(rows)))
        ):
            return rows
        if self.scores == "sigmoid":
            return sigmoid(rows)
        rows -= rows.max(axis=1, keepdims=True)
        np.exp(rows, out=rows)
        rows /= rows.sum(axis=1, keepdims=True)
        return rows


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Logits as probabilities, each on its own. Does not overflow."""
    small = np.exp(-np.abs(logits))
    return np.asarray(np.where(logits >= 0, 1 / (1 + small), small / (1 + small)))


def _probabilities(rows: np.ndarray) -> bool:
    return bool((rows >= 0).all() and (np.abs(rows.sum(axis=1) - 1) < _ONE).all())


def _output(settings: TaskSettings, signature: Signature) -> TensorSpec:
    outputs = signature.outputs
    name = settings.text("output")
    if not name:
        labelled = [spec for spec in outputs.values() if spec.labels]
        found = labelled if len(labelled) == 1 else list(outputs.values())
        if len(found) != 1:
            settings.wrong(
                "output",
                f"the model has {len(outputs)} outputs",
                f"Write which one has the scores: {', '.join(outputs)}",
            )
        return found[0]
    if name not in outputs:
        settings.wrong(
            "output", f"there is no output '{name}'", f"Write one of {', '.join(outputs)}"
        )
    return outputs[name]


def _classes(output: TensorSpec) -> int:
    """The length of the one dimension that is not 1; -1 if it is variable."""
    field = f"output '{output.name}'"
    if output.datatype in (dtypes.BYTES, dtypes.BOOL, dtypes.BF16):
        raise ConfigError(
            f"is of type {output.datatype.config_name}; a classifier returns scores",
            file="config.pbtxt",
            field=f"{field}.data_type",
        )
    long = [dim for dim in output.dims if dim != 1]
    if len(long) > 1 and -1 in long[:1]:  # a batch dimension that max_batch_size does not declare
        long = long[1:]
    if len(long) > 1:
        raise ConfigError(
            f"has the dims {list(output.dims)}; a classifier returns one row of scores per input",
            file="config.pbtxt",
            field=f"{field}.dims",
            fix="Name the output with the scores as 'output' in task.json",
        )
    return long[0] if long else 1


def read_labels(settings: TaskSettings, output: TensorSpec, folder: Path) -> tuple[str, ...]:
    """The labels of the setting, of the output's label_filename, or of labels.txt; else none."""
    if settings.value("labels") is None and (output.labels or not (folder / _LABELS).is_file()):
        return output.labels
    path = settings.file("labels", _LABELS)
    try:
        return tuple(path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        settings.wrong(
            "labels", f"cannot read '{path.name}': {error}", "Write one label per line, as UTF-8"
        )
