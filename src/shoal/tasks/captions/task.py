"""image-to-text: a caption for each photo, whole or token by token.

files --decode, resize, scale: threads--> pixels --writer--> {"caption": "two cats on a couch"}
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import numpy as np

from shoal.core import dtypes
from shoal.core.tensor import Buffer
from shoal.errors import InvalidArgument
from shoal.generation.options import GenerationOptions
from shoal.tasks.base import Task, TaskContext
from shoal.tasks.captions.writers import Caption, pixel_dims, writer_of
from shoal.tasks.gather import gather_or_cancel
from shoal.tasks.images.preparation import ImagePreparation
from shoal.tasks.images.sent import images_of, titles
from shoal.tasks.request import File, TaskRequest
from shoal.tasks.text_settings import DEFAULT_SEQUENCES, MAX_SEQUENCES, TextSettings

_MOST_IMAGES = 16
_LONGEST_PROMPT = 2_000  # characters


class _Photo(NamedTuple):
    """A photo, and its name in errors."""

    data: Buffer
    title: str


class _CaptionOptions(NamedTuple):
    """The options of a call."""

    prompt: list[int]
    options: GenerationOptions


class ImageToText(Task):
    """Captions for photos."""

    name = "image-to-text"
    operation = "caption"
    streams = True

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        settings, signature = context.settings, context.signature
        self._text_settings = TextSettings.of(settings, _most_beams(context))
        self._writer = writer_of(context, self._text_settings)
        self._preparation = ImagePreparation.of(settings, pixel_dims(signature), dtypes.FP32)
        self._most_images = settings.integer("max_images", _MOST_IMAGES, lowest=1, highest=1024)
        self._prepare = context.stage("preprocess", self._prepared)

    async def perform(self, request: TaskRequest) -> dict[str, Any]:
        """A caption for each photo, in the order they were sent.

        Raises InvalidArgument for a call without photos, with too many or with one that cannot be
        read, and for options out of range.
        """
        options = self._options(request)
        files = images_of(request, self._most_images)
        photos = [
            _Photo(*pair) for pair in zip((f.data for f in files), titles(files), strict=True)
        ]
        captions = await gather_or_cancel(self._caption(photo, options) for photo in photos)
        return {
            **self._head(),
            "captions": [
                _described(file, caption) for file, caption in zip(files, captions, strict=True)
            ],
        }

    async def stream(self, request: TaskRequest) -> AsyncIterator[dict[str, Any]]:
        """{"text": piece} for each piece and the whole caption last. Raises as `perform` does.

        A beam search decides at the end, so with several beams there is one piece.
        """
        options = self._options(request)
        files = images_of(request, self._most_images)
        if len(files) > 1:
            raise InvalidArgument(
                f"the request has {len(files)} images, and 'stream' supports one; send them one by "
                f"one, or leave 'stream' out"
            )
        pixels = await self._prepare(_Photo(files[0].data, titles(files)[0]))
        async with aclosing(self._writer.write(pixels, *options, stream=True)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Caption):
                    yield {**self._head(), **_described(files[0], piece)}
                else:
                    yield {"text": piece}

    def _options(self, request: TaskRequest) -> _CaptionOptions:
        texts = self._text_settings
        text = request.text("prompt", longest=_LONGEST_PROMPT, default=texts.prompt)
        prompt = texts.prompt_ids(text)
        return _CaptionOptions(prompt, texts.options(request, len(prompt)))

    async def _caption(self, photo: _Photo, options: _CaptionOptions) -> Caption:
        pixels = await self._prepare(photo)
        async with aclosing(self._writer.write(pixels, *options, stream=False)) as pieces:
            async for piece in pieces:
                last = piece
        assert isinstance(last, Caption)  # a writer ends with the caption
        return last

    def _prepared(self, photos: Sequence[_Photo]) -> list[np.ndarray]:
        """On a thread, one at a time."""
        return [self._preparation(data, title) for data, title in photos]

    def _head(self) -> dict[str, str]:
        context = self.context
        return {
            "model_name": context.model_name,
            "model_version": str(context.model_version),
        }


def _most_beams(context: TaskContext) -> int:
    """The batch size of the model, or the number of texts it generates at once."""
    if context.signature.max_batch_size:
        return context.signature.max_batch_size
    limit = context.config.parameters.get(MAX_SEQUENCES)
    # The backend has checked the value.
    return (int(limit.string_value or 0) if limit is not None else 0) or DEFAULT_SEQUENCES


def _described(file: File, caption: Caption) -> dict[str, Any]:
    described: dict[str, Any] = {
        "file": file.name,
        "caption": caption.caption,
        "tokens": caption.tokens,
        "finish_reason": caption.finish_reason,
    }
    if caption.score is not None:
        described["score"] = caption.score
    return described
