"""A backend that classifies photos itself, as a GPU does, with Pillow and numpy: by mean colours."""

from __future__ import annotations

import io
import threading

import numpy as np
from PIL import Image

from shoal.backends.base import Backend, LoadedModel, PhotoExecutor
from shoal.core.photos import UNREADABLE
from tests.support.photo_kernel import prepare_photo
from tests.support.photos import UNDECODABLE

FAILING = b"failing"  # one with this fails its batch


class PhotoBackend(Backend):
    """Its model's scores are the means of red, green and blue."""

    name = "photos"

    def __init__(self, *, offers: bool = True) -> None:
        self.offers = offers
        self.batches: list[int] = []  # sizes of batches of photos
        self.tensors: list[int] = []  # sizes of batches of rows
        self.running = threading.Event()  # a batch of photos has begun
        self.go_on = threading.Event()  # it may end
        self.go_on.set()

    def complete(self, config, model_folder, version_folder, settings):
        return config

    def load(self, context):
        return _PhotoModel(self)


class _PhotoModel(LoadedModel):
    def __init__(self, backend):
        self._backend = backend
        self._plan = None

    def classify_photos(self, plan):
        self._plan = plan
        return self._backend.offers

    def executor(self, placement):
        return _MeanColours(self._backend, self._plan)


class _MeanColours(PhotoExecutor):
    def __init__(self, backend, plan):
        self._backend = backend
        self._plan = plan

    def run(self, inputs, outputs):
        (rows,) = inputs.values()
        self._backend.tensors.append(len(rows))
        return [rows.mean(axis=(2, 3))]

    def classify(self, photos, frames):
        self._backend.batches.append(len(photos))
        self._backend.running.set()
        assert self._backend.go_on.wait(10)
        if any(FAILING in bytes(photo) for photo in photos):
            raise RuntimeError("the GPU is on fire")
        found = [
            self._means(bytes(photo), frame) for photo, frame in zip(photos, frames, strict=True)
        ]
        indexes = np.array([np.argsort(-means, kind="stable") for means in found], np.int32)
        scores = np.take_along_axis(np.array(found, np.float32), indexes, axis=1)
        for index, photo in enumerate(photos):
            if UNDECODABLE in bytes(photo):
                indexes[index, 0] = UNREADABLE
        return indexes, scores

    def _means(self, photo, frame):
        stored = np.asarray(Image.open(io.BytesIO(photo)).convert("RGB"))
        assert stored.shape[:2] == (frame[1], frame[0])
        return prepare_photo(self._plan.prepare, stored, int(frame[2])).mean(axis=(0, 1))
