"""image-classification: the best labels for each photo.

    files --decode, resize, scale: threads--> rows --model--> scores --threads--> labels

The photos of a call go to the model in as few requests as its batch size allows. With dynamic
batching, several calls share an execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal.tasks.base import Task, TaskContext
from shoal.tasks.gather import gather_or_cancel
from shoal.tasks.images import nvjpeg
from shoal.tasks.images.many import SentPhoto, outcomes, prepare_on_gpu
from shoal.tasks.images.rows import ImageRows
from shoal.tasks.images.sent import MOST_IMAGES, images_of, titles
from shoal.tasks.ranking import Ranking
from shoal.tasks.request import TaskRequest

_RANKED_AT_ONCE = 64


class _Scored(NamedTuple):
    """The model's output for some photos, and the number of labels for each."""

    output: np.ndarray
    rows: int
    top: int


Labels = list[dict[str, Any]]


class ImageClassification(Task):
    """Labels with scores for photos."""

    name = "image-classification"
    operation = "classify"

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        settings = context.settings
        declared = {tensor.name: tensor.format for tensor in context.config.input}
        first = next(iter(context.signature.inputs), "")
        self._rows = ImageRows.of(settings, context.signature, declared.get(first, "FORMAT_NONE"))
        self._ranking = Ranking.of(settings, context.signature, context.folder)
        self._most_images = settings.integer("max_images", MOST_IMAGES, lowest=1, highest=1 << 16)
        self._gpu = nvjpeg.choose(settings, context.config)
        at_once = 1 if self._gpu is None else nvjpeg.AT_ONCE
        self._prepare = context.stage("preprocess", self._prepared, most=at_once)
        self._rank = context.stage("postprocess", self._ranked, most=_RANKED_AT_ONCE)

    async def perform(self, request: TaskRequest) -> dict[str, Any]:
        """The best labels of each photo, in the order of the request.

        Raises InvalidArgument if there are no photos or too many, for an invalid one, which is
        named, and for a `top` out of range.
        """
        ranking = self._ranking
        top = request.integer("top", ranking.top, lowest=1, highest=ranking.highest_top)
        files = images_of(request, self._most_images)
        batches = self._rows.requests(len(files))
        rows = [row for batch in batches for row in batch]
        await gather_or_cancel(
            self._prepare(SentPhoto(file.data, title, row))
            for file, title, row in zip(files, titles(files), rows, strict=True)
        )
        ranked = await gather_or_cancel(self._labels(batch, top) for batch in batches)
        labels = [each for batch in ranked for each in batch]
        return {
            "model_name": self.context.model_name,
            "model_version": str(self.context.model_version),
            "images": [
                {"file": file.name, "labels": best}
                for file, best in zip(files, labels, strict=True)
            ],
        }

    async def _labels(self, batch: np.ndarray, top: int) -> list[Labels]:
        output = self._ranking.output
        outputs = await self.context.infer({self._rows.input: self._rows.tensor(batch)}, (output,))
        return await self._rank(_Scored(outputs[output], len(batch), top))

    def _prepared(self, photos: Sequence[SentPhoto]) -> list[np.ndarray | Exception]:
        """On a thread: fill the rows."""
        if self._gpu is not None:
            return prepare_on_gpu(self._gpu, self._rows.prepare, photos)
        return outcomes(self._rows.prepare, photos)

    def _ranked(self, scored: Sequence[_Scored]) -> list[list[Labels] | Exception]:
        """On a thread: rank the scores."""
        return outcomes(self._ranking.best, scored)
