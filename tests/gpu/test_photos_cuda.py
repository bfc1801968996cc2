"""Photos decoded by nvJPEG: the same pixels as Pillow's, and what it cannot read goes to Pillow.

    python -m pytest tests/gpu -q

Needs PyTorch and torchvision with CUDA, and Pillow; left out where there is no GPU.
"""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")
Image = pytest.importorskip("PIL.Image")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs PyTorch with CUDA and a GPU"),
    pytest.mark.filterwarnings("ignore"),
]

if torch.cuda.is_available():
    from shoal.core import dtypes
    from shoal.errors import InvalidArgument
    from shoal.tasks.images.many import SentPhoto, prepare_on_gpu
    from shoal.tasks.images.nvjpeg import NvJpeg
    from shoal.tasks.images.preparation import ImagePreparation
    from shoal.tasks.settings import TaskSettings
    from shoal.testing.server import running_server

CONFIG = """
backend: "pytorch" max_batch_size: 8
input { name: "image" data_type: TYPE_FP32 dims: [ 3, 64, 64 ] }
output { name: "scores" data_type: TYPE_FP32 dims: [ 3 ] }
instance_group { kind: KIND_GPU }
dynamic_batching { }
parameters { key: "task" value { string_value: "image-classification" } }
"""


@pytest.fixture(scope="module")
def gpu():
    return NvJpeg(0)


@pytest.fixture(scope="module")
def scene():
    """Smooth colours, shapes with sharp edges, and some noise: decoders differ as on a photo."""
    across, down = np.linspace(0, 1, 640), np.linspace(0, 1, 480)[:, None]
    pixels = np.stack(
        [200 * across * down, 60 + 120 * down + 0 * across, 220 - 180 * across * down], 2
    )
    pixels[100:300, 80:260] = (200, 120, 40)
    pixels[220:420, 330:560] = (40, 90, 160)
    pixels += np.random.default_rng(0).integers(-12, 13, (480, 640, 1))
    return encode(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), quality=92)


def encode(image, kind="JPEG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def preparation(folder, dims=(3, 224, 224), datatype=None, **values):
    return ImagePreparation.of(TaskSettings(values, folder), dims, datatype or dtypes.UINT8)


def sent(prepare, *files):
    dtype = prepare.table.dtype
    return [SentPhoto(data, "the photo", np.empty(prepare.shape, dtype)) for data in files]


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("crop", ["center", "none"])
def test_nearly_the_pixels_of_pillow(gpu, scene, tmp_path, interpolation, crop):
    prepare = preparation(tmp_path, interpolation=interpolation, crop=crop)
    (row,) = prepare_on_gpu(gpu, prepare, sent(prepare, scene))
    off = np.abs(row.astype(int) - prepare(scene))
    assert off.mean() < (4 if interpolation == "nearest" else 1.5)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_way_up(gpu, scene, tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(Image.open(io.BytesIO(scene)), exif=exif, quality=95)
    prepare = preparation(tmp_path)
    (row,) = prepare_on_gpu(gpu, prepare, sent(prepare, data))
    assert np.abs(row.astype(int) - prepare(data)).mean() < 1.5


def test_many_photos_of_many_kinds(gpu, scene, tmp_path):
    image = Image.open(io.BytesIO(scene))
    files = [
        scene,
        encode(image, "PNG"),
        encode(image, progressive=True, quality=95),
        encode(image.convert("L"), quality=95),
        encode(image.convert("CMYK"), quality=95),
        encode(image, "WEBP"),
        encode(image, subsampling=0, quality=95),
        encode(image.resize((1900, 1300)), quality=95),
    ]
    prepare = preparation(tmp_path, (224, 224, 3))
    rows = prepare_on_gpu(gpu, prepare, sent(prepare, *files))
    for row, data in zip(rows, files, strict=True):
        assert np.abs(row.astype(int) - prepare(data)).mean() < 2


def test_grey_models(gpu, scene, tmp_path):
    prepare = preparation(tmp_path, (1, 64, 64))
    (row,) = prepare_on_gpu(gpu, prepare, sent(prepare, scene))
    assert np.abs(row.astype(int) - prepare(scene)).mean() < 2


def test_broken_files_get_a_sentence_and_affect_no_other(gpu, scene, tmp_path):
    prepare = preparation(tmp_path)
    damaged = scene[:5000] + bytes(200) + scene[5200:]
    cut = scene[:9000]
    cut_with_end = scene[:9000] + b"\xff\xd9"
    outcomes = prepare_on_gpu(gpu, prepare, sent(prepare, scene, cut, b"", cut_with_end, damaged))
    assert isinstance(outcomes[0], np.ndarray)
    assert isinstance(outcomes[1], InvalidArgument)
    assert isinstance(outcomes[2], InvalidArgument)
    assert np.abs(outcomes[0].astype(int) - prepare(scene)).mean() < 1.5


def test_workers_decode_on_the_gpu_for_a_model_there(scene, tmp_path):
    class MeanColours(torch.nn.Module):
        def forward(self, image):
            return image.mean(dim=(2, 3))

    # The model itself would decode photos that are resized in another way.
    task = {"scale": 1, "scores": "as-is", "interpolation": "nearest"}
    folder = tmp_path / "models" / "colours"
    (folder / "1").mkdir(parents=True)
    torch.jit.script(MeanColours()).save(str(folder / "1" / "model.pt"))
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "task.json").write_text(json.dumps(task))
    (folder / "labels.txt").write_text("red\ngreen\nblue\n")
    red = encode(Image.new("RGB", (300, 200), (200, 30, 40)))
    with running_server(tmp_path / "models") as server:
        door = server.model("colours").task
        assert isinstance(door.task._gpu, NvJpeg)

        def ask(data):
            return server.post("/classify", data, {"Content-Type": "image/jpeg"})

        with ThreadPoolExecutor(16) as threads:
            answers = list(threads.map(ask, [red, scene] * 32))
        assert {answer.status for answer in answers} == {200}
        for answer in answers[::2]:
            best = answer.json["images"][0]["labels"][0]
            assert best["label"] == "red"
            assert best["score"] == pytest.approx(200, abs=2)
        assert server.statistics("colours")["task"]["preprocess"]["count"] == 64
        assert ask(scene[:5000]).status == 400
