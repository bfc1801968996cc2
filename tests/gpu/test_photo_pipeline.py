"""Photos that a GPU decodes, prepares and classifies: the same answers as from the CPU.

    python -m pytest tests/gpu -q

Needs PyTorch with CUDA, nvJPEG and Pillow; left out where there is no GPU.
"""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("PIL.Image")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs PyTorch with CUDA and a GPU"),
    pytest.mark.filterwarnings("ignore"),
]

if torch.cuda.is_available():
    from shoal.backends.pytorch.photos.executor import decoder_of
    from shoal.backends.pytorch.photos.pipeline import PhotoPipeline
    from shoal.core import dtypes
    from shoal.tasks.images.gpu_preparation import GpuPreparation
    from shoal.tasks.images.jpeg import read_frame
    from shoal.tasks.images.plan import PhotoPlan
    from shoal.tasks.images.preparation import ImagePreparation
    from shoal.tasks.settings import TaskSettings
    from shoal.testing.server import running_server
    from tests.support.photos import LABELS, ON_CPU, ON_GPU, WRONG, encode, exif, photo

CONFIG = """
backend: "pytorch" max_batch_size: 16
input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ %s ] }
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 3 ] }
instance_group { kind: KIND_GPU count: 2 }
dynamic_batching { max_queue_delay_microseconds: 3000 }
parameters { key: "task" value { string_value: "image-classification" } }
%s
"""
HALF = """
parameters { key: "HALF_PRECISION" value { string_value: "fp16" } }
parameters { key: "CHANNELS_LAST" value { string_value: "1" } }
"""


class MeanColours(torch.nn.Module):
    """The means of red, green and blue, whatever the layout."""

    def __init__(self, channels_last=False):
        super().__init__()
        self.axes = (1, 2) if channels_last else (2, 3)

    def forward(self, image):
        return 4 * image.mean(dim=self.axes)


LIMITS = {"max_pixels": 30_000_000, "max_bytes": 20_000_000}
VARIANTS = {
    "plain": ("3, 64, 64", "", {}),
    "half": ("3, 64, 64", HALF, {}),
    "last": ("64, 64, 3", "", {"channel_order": "BGR", "scores": "softmax"}),
    "cubic": ("3, 60, 80", "", {"interpolation": "bicubic", "crop": "none"}),
    "as_is": ("3, 64, 64", "", {"scale": 1, "scores": "as-is", "antialias": False}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Every variant twice: with photos on the GPU, and prepared by Pillow."""
    root = tmp_path_factory.mktemp("models")
    for name, (dims, more, task) in VARIANTS.items():
        for decoder in ("auto", "pillow"):
            folder = root / f"{name}_{decoder}"
            (folder / "1").mkdir(parents=True)
            network = torch.jit.script(MeanColours(dims.endswith("3")))
            network.save(str(folder / "1" / "model.pt"))
            (folder / "config.pbtxt").write_text(CONFIG % (dims, more))
            (folder / "task.json").write_text(json.dumps({**task, **LIMITS, "decoder": decoder}))
            (folder / "labels.txt").write_text("\n".join(LABELS))
    with running_server(root) as running:
        yield running


def classify(server, model, data):
    return server.post(f"/v2/models/{model}/classify", data, {"Content-Type": "image/jpeg"})


@pytest.mark.parametrize("values", [{}, {"interpolation": "bicubic", "crop": "none"}])
def test_rows_are_bit_by_bit_those_of_pillow(tmp_path, values):
    prepare = ImagePreparation.of(TaskSettings(values, tmp_path), (3, 224, 224), dtypes.FP32)
    sizes = [(500, 375), (375, 500), (501, 377), (260, 400), (66, 64)]
    sent = [
        encode(photo("red", size, noise=100), subsampling=kind)
        for size in sizes
        for kind in (0, 1, 2)
    ]
    sent += [encode(photo("red", sizes[0], 100), exif=exif(turn)) for turn in range(1, 9)]
    device = torch.device("cuda", 0)
    rows = torch.zeros((len(sent), 3, 224, 224), device=device)
    plan = PhotoPlan("image", "scores", GpuPreparation.of(prepare), "as-is", 3)
    made = PhotoPipeline(
        *(plan, lambda rows: rows.mean(dim=(2, 3)), rows),
        *(decoder_of(device), torch.cuda.Stream(device)),
    )
    made.classify(sent, np.array([read_frame(data) for data in sent], np.uint16))
    for data, row in zip(sent, rows.cpu().numpy(), strict=True):
        assert (row == prepare(data)).all(), read_frame(data)


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_all_kinds_of_photos(server, variant):
    assert server.model(f"{variant}_auto").classifies_photos
    assert not server.model(f"{variant}_pillow").classifies_photos
    sent = {**ON_GPU, **ON_CPU, **WRONG}
    with ThreadPoolExecutor(16) as threads:
        found, expected = (
            list(
                threads.map(lambda data, model=model: classify(server, model, data), sent.values())
            )
            for model in (f"{variant}_auto", f"{variant}_pillow")
        )
    # Without antialias Pillow cuts values off, where OpenCV rounds them; the scores are four means.
    limit = 3 if variant == "as_is" else 0.02
    for name, one, other in zip(sent, found, expected, strict=True):
        assert one.status == other.status, (name, one)
        if one.status != 200:
            assert one.body == other.body
            continue
        scores, expected_scores = (
            {best["label"]: best["score"] for best in answer.json["images"][0]["labels"]}
            for answer in (one, other)
        )
        assert scores == pytest.approx(expected_scores, abs=limit), name
        if name != "grey":  # whose colours are equal
            assert next(iter(scores)) == next(iter(expected_scores)), name
    counted = server.statistics(f"{variant}_auto")
    assert counted["task"]["preprocess"]["count"] < len(ON_CPU) + len(WRONG)


def test_many_photos_of_different_sizes(server):
    """In batches of all sizes, those of a large photo in parts; every photo has its own answer."""
    sizes = [(64 + 37 * number % 900, 64 + 53 * number % 700) for number in range(40)]
    sent = [
        (colour, encode(photo(colour, size)))
        for number, size in enumerate([*sizes, (6000, 5000), (5000, 6000)])
        for colour in (LABELS[number % 3],)
    ]
    with ThreadPoolExecutor(42) as threads:
        for _ in range(3):
            answers = threads.map(lambda one: classify(server, "half_auto", one[1]), sent)
            for (colour, _), answer in zip(sent, answers, strict=True):
                assert answer.status == 200, answer
                assert answer.json["images"][0]["labels"][0]["label"] == colour


def test_damaged_files_affect_no_other(server):
    good = ON_GPU["4:2:0"]
    damaged = good[:4000] + bytes(200) + good[4200:]
    with ThreadPoolExecutor(16) as threads:
        answers = list(
            threads.map(lambda data: classify(server, "plain_auto", data), [good, damaged] * 16)
        )
    assert {answer.status for answer in answers} == {200}
    bodies = {answer.body for answer in answers[::2]}
    assert len(bodies) == 1
    assert answers[0].json["images"][0]["labels"][0]["label"] == "red"


def test_a_process_for_each_of_two_devices(tmp_path):
    """Two groups on one GPU stand for two GPUs: each has a process, both pull from one queue. When
    one ends, the other goes on."""
    folder = tmp_path / "colours"
    (folder / "1").mkdir(parents=True)
    torch.jit.script(MeanColours()).save(str(folder / "1" / "model.pt"))
    one_group = "instance_group { kind: KIND_GPU count: 2 }"
    two_groups = "instance_group [ { kind: KIND_GPU count: 2 }, { kind: KIND_GPU count: 1 } ]"
    isolated = 'parameters { key: "isolation" value { string_value: "process" } }'
    config = (CONFIG % ("3, 64, 64", isolated)).replace(one_group, two_groups)
    (folder / "config.pbtxt").write_text(config)
    (folder / "labels.txt").write_text("\n".join(LABELS))
    sent = [(colour, encode(photo(colour))) for colour in LABELS] * 40
    with running_server(tmp_path) as server, ThreadPoolExecutor(40) as threads:
        model = server.model("colours")
        assert model.classifies_photos
        first, second = model._loaded._processes()

        def best(one):
            answer = classify(server, "colours", one[1])
            return answer.json["images"][0]["labels"][0]["label"] if answer.status == 200 else None

        assert list(threads.map(best, sent)) == [colour for colour, _ in sent]
        os.kill(first.pid, signal.SIGKILL)
        first.wait_gone(10)
        assert list(threads.map(best, sent)) == [colour for colour, _ in sent]
        assert second in model._loaded._processes()
