"""The parts of the photo pipeline that need no GPU: planes, labels, sizes of graphs, parts."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")

from shoal.backends.pytorch.photos import kernel  # noqa: E402 - after the check for torch
from shoal.backends.pytorch.photos.nvjpeg import NvJpeg  # noqa: E402
from shoal.backends.pytorch.photos.pipeline import best_labels, graph_sizes, parts  # noqa: E402
from shoal.backends.pytorch.photos.planes import PLANES, lay_out  # noqa: E402
from shoal.core.photos import NOT_FINITE  # noqa: E402
from shoal.tasks.images.gpu_preparation import GpuPreparation  # noqa: E402
from shoal.tasks.images.jpeg import read_frame  # noqa: E402
from shoal.tasks.ranking import Ranking  # noqa: E402
from tests.support.photo_kernel import convert_planes  # noqa: E402
from tests.support.photos import encode, photo  # noqa: E402


@pytest.mark.parametrize("size", [(160, 120), (161, 121), (501, 377), (66, 64), (65, 99)])
@pytest.mark.parametrize("subsampling", [0, 2])
def test_pixels_are_exactly_those_of_pillow(size, subsampling):
    """The colour planes are what libjpeg decodes at half the size, if they have half the size."""
    data = encode(photo("red", size, noise=100), subsampling=subsampling)
    whole, half = (Image.open(io.BytesIO(data)) for _ in range(2))
    whole.draft("YCbCr", size)
    half.draft("YCbCr", (size[0] // 2, size[1] // 2) if subsampling else size)
    luma, colours = np.asarray(whole)[:, :, 0], np.asarray(half)
    pixels = convert_planes(luma, colours[:, :, 1], colours[:, :, 2])
    assert (pixels == np.asarray(Image.open(io.BytesIO(data)))).all()


def test_planes_of_a_batch():
    """They do not overlap, and there is room for all that a decoder writes."""
    sizes = [(160, 120), (161, 121), (64, 64), (501, 377)]
    sent = [encode(photo("red", size), subsampling=kind) for size in sizes for kind in range(3)]
    sent.append(encode(photo().convert("L")))
    frames = np.array([read_frame(data) for data in sent], np.uint16)
    planes = np.zeros(len(frames), PLANES)
    plane_total, pixel_total = (ends[-1] for ends in lay_out(frames, planes))
    used = []
    for one in planes:
        assert one["luma_pitch"] >= one["width"]
        assert one["chroma_pitch"] >= one["chroma_width"]
        used.append((one["luma"], one["luma_pitch"] * one["height"]))
        used.append((one["blue"], one["chroma_pitch"] * one["chroma_height"]))
        used.append((one["red"], one["chroma_pitch"] * one["chroma_height"]))
    ends = [start + size for start, size in used]
    assert all(end <= start for end, (start, _) in zip(ends, used[1:], strict=False))
    assert ends[-1] <= plane_total
    areas = planes["width"].astype(int) * planes["height"] * 3
    assert (np.diff(planes["pixels"]) == areas[:-1]).all()
    assert planes["pixels"][-1] + areas[-1] == pixel_total
    halved = planes[frames[:, 3] == 3]
    assert (halved["chroma_width"] == -(-halved["width"] // 2)).all()
    assert (halved["chroma_height"] == -(-halved["height"] // 2)).all()


@pytest.mark.parametrize(
    ("planes", "pixels", "expected"),
    [
        ([5], [5], [(0, 1)]),
        ([5, 5], [5, 5], [(0, 2)]),
        ([5, 6], [1, 1], [(0, 1), (1, 2)]),
        ([1, 1, 1], [8, 8, 2], [(0, 1), (1, 3)]),
        ([10, 10, 10], [1, 1, 1], [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_parts(planes, pixels, expected):
    assert parts(np.cumsum(planes), np.cumsum(pixels), 10, 10) == expected


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, [1]),
        (2, [1, 2]),
        (64, [1, 2, 4, 8, 12, 16, 24, 32, 48, 64]),
        (20, [1, 2, 4, 8, 12, 16, 20]),
    ],
)
def test_graph_sizes(most, sizes):
    assert graph_sizes(most) == sizes


@pytest.mark.parametrize("scores", ["auto", "softmax", "sigmoid", "as-is"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
@pytest.mark.parametrize("probabilities", [False, True])
def test_labels_are_those_of_the_ranking(scores, dtype, probabilities):
    rows = torch.linspace(-3, 9, 4 * 7).reshape(4, 7)[:, torch.tensor([3, 0, 6, 1, 5, 2, 4])]
    if probabilities:
        rows = torch.softmax(rows, 1)
    rows = rows.to(dtype)
    found = best_labels(rows, scores, 3)
    indexes, values = found[:, :3].tolist(), found[:, 3:].contiguous().view(torch.float32).tolist()
    ranking = Ranking("y", 7, (), scores, 3)
    for index, best in enumerate(ranking.best(rows.numpy(), 4, 3)):
        assert values[index] == pytest.approx([one["score"] for one in best], abs=1e-3)
        if dtype is not torch.int32:  # which of equal ones are left out is not said
            assert indexes[index] == [one["index"] for one in best]


def test_of_equal_scores_the_first_class_is_best():
    rows = torch.tensor([[0.0, 2.0, 1.0, 2.0, 2.0], [-1.0, -3.0, -1.0, -2.0, -1.0]])
    assert best_labels(rows, "as-is", 4)[:, :4].tolist() == [[1, 3, 4, 2], [0, 2, 4, 3]]


def test_scores_that_are_not_finite():
    rows = torch.tensor([[1.0, 2.0, 3.0], [1.0, float("nan"), 2.0], [float("inf"), 0.0, 0.0]])
    assert best_labels(rows, "auto", 2)[:, 0].tolist() == [2, NOT_FINITE, NOT_FINITE]


def test_the_kernel_is_made_for_its_model():
    prepare = GpuPreparation(
        224, 160, None, "bicubic", False, (1.0, 2.0, 3.0), (4.0, 5.0, 6.0), True, True
    )
    text = kernel.source(prepare, torch.float16)
    for line in ("WIDTH 160", "HEIGHT 224", "ANTIALIAS 0", "SUPPORT 2.", "RED 2", "BLUE 0"):
        assert f"#define {line}\n" in text
    assert "#define FACTOR_RED (3.000000000e+00f)" in text  # red is the last channel of the row


def test_without_the_library(monkeypatch):
    def fail(path):
        raise OSError(f"{path}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", fail)
    with pytest.raises(OSError, match=r"nvJPEG is not installed \(.*; install the wheel"):
        NvJpeg(torch.device("cuda", 0))
