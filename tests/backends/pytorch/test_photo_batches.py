"""Batches of photos through the pipeline, with Pillow and numpy in place of the GPU."""

from __future__ import annotations

import ctypes
import io
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")

from shoal.backends.pytorch.photos import pipeline  # noqa: E402 - after the check for torch
from shoal.backends.pytorch.photos.nvjpeg import JpegError  # noqa: E402
from shoal.backends.pytorch.photos.planes import PLANES  # noqa: E402
from shoal.core import dtypes  # noqa: E402
from shoal.core.photos import NOT_FINITE, UNREADABLE  # noqa: E402
from shoal.tasks.images.gpu_preparation import PLACES, GpuPreparation  # noqa: E402
from shoal.tasks.images.jpeg import read_frame  # noqa: E402
from shoal.tasks.images.plan import PhotoPlan  # noqa: E402
from shoal.tasks.images.preparation import ImagePreparation  # noqa: E402
from shoal.tasks.settings import TaskSettings  # noqa: E402
from tests.support import fake_cuda  # noqa: E402
from tests.support.photo_kernel import convert_planes, prepare_placed  # noqa: E402
from tests.support.photos import LABELS, encode, exif, photo  # noqa: E402

REFUSED = b"refused"  # by the decoder, in a comment


class Decoder:
    """Decodes JPEGs in grey or 4:4:4."""

    def __init__(self):
        self.batches = []

    @contextmanager
    def decoding(self, addresses, sizes, planes, memory, stream):
        self.batches.append(len(sizes))
        files = [
            ctypes.string_at(int(address), int(size))
            for address, size in zip(addresses, sizes, strict=True)
        ]
        if any(REFUSED in file for file in files):
            raise JpegError("JPEG not supported")
        for file, one in zip(files, planes, strict=True):
            image = Image.open(io.BytesIO(file))
            if image.mode == "RGB":
                image.draft("YCbCr", image.size)
            found = np.asarray(image).reshape(one["height"], one["width"], -1)
            for index, name in enumerate(("luma", "blue", "red")[: found.shape[2]]):
                pitch = int(one["chroma_pitch" if index else "luma_pitch"])
                plane = np.zeros((one["height"], pitch), np.uint8)
                plane[:, : one["width"]] = found[:, :, index]
                ctypes.memmove(memory + int(one[name]), plane.tobytes(), plane.nbytes)
        yield


class Convert:
    """Planes to pixels."""

    def __call__(self, memory, planes, pixels, stream):
        whole, target = memory.numpy(), pixels.numpy()
        for one in planes.numpy().view(PLANES)[:, 0]:
            if not one["width"]:
                continue
            height, width = one["height"], one["width"]

            def plane(name, pitch, one=one, height=height, width=width):
                start = one[name]
                lines = whole[start : start + height * one[pitch]].reshape(height, -1)
                return lines[:, :width]

            luma = plane("luma", "luma_pitch")
            if one["sampling"] == 0:
                found = np.repeat(luma[:, :, None], 3, axis=2)
            else:
                colours = (plane(name, "chroma_pitch") for name in ("blue", "red"))
                found = convert_planes(luma, *colours)
            target[one["pixels"] : one["pixels"] + found.size] = found.reshape(-1)


class Prepare:
    """Pixels to rows."""

    def __init__(self, prepare, dtype):
        self._prepare = prepare

    def __call__(self, pixels, places, rows, stream):
        for index, place in enumerate(places.numpy().view(PLACES)[:, 0]):
            if not place["width"]:
                continue
            row = prepare_placed(self._prepare, pixels.numpy(), place)
            rows[index] = torch.from_numpy(row.transpose(2, 0, 1).copy())


class Graph:
    """Runs again what was captured."""

    def __init__(self, body):
        self._body = body

    def pool(self):
        return None

    def replay(self):
        self._body()


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Make a pipeline whose network is the means of the colours."""
    fake_cuda.replace(monkeypatch)
    zeros = torch.zeros

    def not_pinned(*arguments, pin_memory=False, **more):
        return zeros(*arguments, **more)

    monkeypatch.setattr(torch, "zeros", not_pinned)
    monkeypatch.setattr(pipeline, "PlaneKernel", Convert)
    monkeypatch.setattr(pipeline, "PhotoKernel", Prepare)
    monkeypatch.setattr(pipeline, "_PIXELS_BYTES", 3 * 160 * 120 * 3)
    monkeypatch.setattr(pipeline, "_PLANES_BYTES", 1 << 20)
    prepare = ImagePreparation.of(TaskSettings({"scale": 1}, tmp_path), (3, 32, 32), dtypes.FP32)
    gpu = GpuPreparation.of(prepare)
    assert gpu is not None

    def make(network=lambda rows: rows.mean(dim=(2, 3)), graphs=True):
        def captured(body, stream, pool):
            if not graphs:
                raise RuntimeError("operation not permitted when stream is capturing")
            body()
            return Graph(body)

        monkeypatch.setattr(pipeline, "captured", captured)
        rows = zeros((8, 3, 32, 32))
        plan = PhotoPlan("image", "scores", gpu, "as-is", 3)
        stream = fake_cuda.Stream()
        return pipeline.PhotoPipeline(plan, network, rows, Decoder(), stream)

    return make


def frames(sent):
    return np.array([read_frame(data) for data in sent], np.uint16)


def coloured(colour, size=(160, 120), **options):
    return encode(photo(colour, size), subsampling=0, **options)


def best(found):
    return [LABELS[index] if index >= 0 else int(index) for index in found[0][:, 0]]


def test_a_batch_without_graphs(made):
    """Photos of different sizes and turns, in several parts."""
    sent = [
        coloured("red"),
        coloured("green", (90, 120), exif=exif(6)),
        coloured("blue", (64, 64)),
        coloured("green", (160, 119)),
        coloured("blue"),
    ]
    one = made(graphs=False)
    found = one.classify(sent, frames(sent))
    assert best(found) == ["red", "green", "blue", "green", "blue"]
    assert len(one._decoder.batches) > 1  # not all fit into the memory at once
    assert sum(one._decoder.batches) == 5
    for index, data in enumerate(sent):  # alone they get the same
        indexes, scores = one.classify([data], frames([data]))
        assert (indexes[0] == found[0][index]).all()
        assert (scores[0] == found[1][index]).all()


def test_files_that_do_not_fit_into_the_memory_for_them(made, monkeypatch):
    """They are read where they are."""
    colours = ["red", "green", "blue", "green"]
    sent = [coloured(colour) for colour in colours]
    monkeypatch.setattr(pipeline, "_FILES_BYTES", len(sent[0]) + len(sent[1]) + 10)
    one = made(graphs=False)
    assert best(one.classify(sent, frames(sent))) == colours
    turned = [memoryview(data) for data in reversed(sent)]
    assert best(one.classify(turned, frames(turned))) == colours[::-1]
    monkeypatch.setattr(pipeline, "_FILES_BYTES", 10)
    assert best(made(graphs=False).classify(sent[:1], frames(sent[:1]))) == ["red"]


def test_scores_are_those_of_pillow(made, tmp_path):
    data = coloured("green", (150, 100))
    prepare = ImagePreparation.of(TaskSettings({"scale": 1}, tmp_path), (3, 32, 32), dtypes.FP32)
    indexes, scores = made(graphs=False).classify([data], frames([data]))
    expected = prepare(data).mean(axis=(1, 2))
    assert scores[0] == pytest.approx(expected[indexes[0]], abs=0.1)


def test_one_that_the_decoder_refuses_harms_no_other(made):
    sent = [coloured("red"), coloured("green", comment=REFUSED), coloured("blue")]
    one = made(graphs=False)
    assert best(one.classify(sent, frames(sent))) == ["red", UNREADABLE, "blue"]
    assert best(one.classify(sent[:1], frames(sent[:1]))) == ["red"]


def test_scores_that_are_not_finite(made):
    one = made(network=lambda rows: rows.mean(dim=(2, 3)) / 0, graphs=False)
    sent = [coloured("red")]
    assert best(one.classify(sent, frames(sent))) == [NOT_FINITE]


def test_the_network_waits_for_the_decoder_on_the_gpu(made):
    one = made()
    waits = one._stream.waits
    sent = [coloured("red")]
    assert best(one.classify(sent, frames(sent))) == ["red"]
    assert one._stream.waits == waits + 1


def test_the_graph_for_a_batch(made):
    """The smallest that is large enough; a batch uses its first rows."""
    sizes = []

    def network(rows):
        sizes.append(len(rows))
        return rows.mean(dim=(2, 3))

    one = made(network)
    assert sorted(set(sizes)) == [1, 2, 4, 8]
    sizes.clear()
    for colours in (["red", "green", "blue"], ["green"], ["blue", "red"] * 4):
        sent = [coloured(colour) for colour in colours]
        assert best(one.classify(sent, frames(sent))) == colours
    assert sizes == [4, 1, 8]
