"""image-classification: the best labels for each photo.

    files --decode, resize, scale: threads--> rows --model--> scores --threads--> labels
    JPEGs --------------------------------------> model on a GPU that decodes them --> labels

The photos of a call go to the model in as few requests as its batch size allows. With dynamic
batching, several calls share an execution. A model on a GPU may decode and rank photos itself; then
each photo is a request, and those that the GPU cannot decode take the other way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal.tasks.base import Task, TaskContext
from shoal.tasks.context import traced_call
from shoal.tasks.gather import gather_or_cancel
from shoal.tasks.images import nvjpeg
from shoal.tasks.images.jpeg import JpegFrame, read_frame
from shoal.tasks.images.many import SentPhoto, outcomes, prepare_on_gpu
from shoal.tasks.images.photo_requests import PhotoRequests
from shoal.tasks.images.plan import MOST_GPU_PIXELS, PhotoPlan
from shoal.tasks.images.rows import ImageRows
from shoal.tasks.images.sent import MOST_IMAGES, images_of, titles
from shoal.tasks.ranking import Ranking
from shoal.tasks.request import File, TaskRequest

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
        plan = PhotoPlan.of(self._rows, self._ranking) if nvjpeg.is_allowed(settings) else None
        self._photos: PhotoRequests | None = None
        if plan is not None and context.offer_photos(plan):
            self._photos = PhotoRequests(context, plan)
        # Pillow decodes what such a model cannot decode.
        self._gpu = None if self._photos is not None else nvjpeg.choose(settings, context.config)
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
        photos = self._photos
        if photos is None or top > photos.most_labels or traced_call.get() is not None:
            labels = await self._prepare_and_classify(files, titles(files), top)
        else:
            labels = await self._classify(files, photos, top)
        return {
            "model_name": self.context.model_name,
            "model_version": str(self.context.model_version),
            "images": [
                {"file": file.name, "labels": best}
                for file, best in zip(files, labels, strict=True)
            ],
        }

    async def _classify(
        self, files: Sequence[File], photos: PhotoRequests, top: int
    ) -> list[Labels]:
        """The labels of each photo, from a model that decodes most of them itself."""
        frames = [self._frame(file) for file in files]
        if len(files) == 1 and frames[0] is not None:  # most calls
            labels = [await photos.classify(files[0].data, frames[0])]
        else:
            labels = await gather_or_cancel(
                _none() if frame is None else photos.classify(file.data, frame)
                for file, frame in zip(files, frames, strict=True)
            )
        found = [None if best is None else self._ranking.labelled(*best, top) for best in labels]
        left = [index for index, best in enumerate(found) if best is None]
        if left:
            names = titles(files)
            rest = await self._prepare_and_classify(
                [files[index] for index in left], [names[index] for index in left], top
            )
            for index, best in zip(left, rest, strict=True):
                found[index] = best
        return [best for best in found if best is not None]

    def _frame(self, file: File) -> JpegFrame | None:
        """The frame of a photo that a GPU can decode, unless it is too large to be accepted."""
        prepare = self._rows.prepare
        if len(file.data) > prepare.most_bytes:
            return None
        frame = read_frame(file.data)
        if frame is None or frame.width * frame.height > min(prepare.most_pixels, MOST_GPU_PIXELS):
            return None
        return frame

    async def _prepare_and_classify(
        self, files: Sequence[File], names: Sequence[str], top: int
    ) -> list[Labels]:
        """The labels of each photo, prepared on the CPU."""
        batches = self._rows.requests(len(files))
        rows = [row for batch in batches for row in batch]
        await gather_or_cancel(
            self._prepare(SentPhoto(file.data, title, row))
            for file, title, row in zip(files, names, rows, strict=True)
        )
        ranked = await gather_or_cancel(self._labels(batch, top) for batch in batches)
        return [each for batch in ranked for each in batch]

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


async def _none() -> None:
    return None
