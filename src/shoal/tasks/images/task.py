"""image-classification: photos in, the best labels of each out.

    files --decode, resize, scale: threads--> rows --model--> scores --threads--> labels

The photos of a call share requests to the model as far as its batches allow; with dynamic batching
many calls share an execution, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal.tasks.base import Task, TaskContext
from shoal.tasks.gather import gather_or_cancel
from shoal.tasks.images import nvjpeg
from shoal.tasks.images.many import SentPhoto, outcomes, prepare_on_gpu
from shoal.tasks.images.ranking import Ranking
from shoal.tasks.images.rows import ImageRows
from shoal.tasks.images.sent import MOST_IMAGES, images_of, titles
from shoal.tasks.request import TaskRequest

_RANKED_AT_ONCE = 64


class _Scored(NamedTuple):
    """What the model gave for some photos, and how many labels each of them gets."""

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
        """The best labels of each photo, in the order they were sent.

        Raises InvalidArgument for a call without photos, with too many, with one that cannot be
        read, which is named, and for a `top` out of range.
        """
        ranking = self._ranking
        top = request.integer("top", ranking.top, lowest=1, highest=ranking.highest_top)
        files = images_of(request, self._most_images)
        requests = self._rows.requests(len(files))
        rows = [row for request in requests for row in request]
        await gather_or_cancel(
            self._prepare(SentPhoto(file.data, title, row))
            for file, title, row in zip(files, titles(files), rows, strict=True)
        )
        answers = await gather_or_cancel(self._labels(request, top) for request in requests)
        labels = [each for answer in answers for each in answer]
        return {
            "model_name": self.context.model_name,
            "model_version": str(self.context.model_version),
            "images": [
                {"file": file.name, "labels": best}
                for file, best in zip(files, labels, strict=True)
            ],
        }

    async def _labels(self, request: np.ndarray, top: int) -> list[Labels]:
        output = self._ranking.output
        answer = await self.context.infer({self._rows.input: self._rows.tensor(request)}, (output,))
        return await self._rank(_Scored(answer[output], len(request), top))

    def _prepared(self, photos: Sequence[SentPhoto]) -> list[np.ndarray | Exception]:
        """On a thread: fill the rows."""
        if self._gpu is not None:
            return prepare_on_gpu(self._gpu, self._rows.prepare, photos)
        return outcomes(self._rows.prepare, photos)

    def _ranked(self, scored: Sequence[_Scored]) -> list[list[Labels] | Exception]:
        """On a thread: rank what the model gave."""
        return outcomes(self._ranking.best, scored)
