"""Which decoder is chosen, and what a GPU is given; the GPU itself is a stand-in here."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from shoal.config.model import ModelConfig, ModelInstanceGroup
from shoal.core import dtypes
from shoal.errors import ConfigError, InvalidArgument
from shoal.tasks.images import nvjpeg
from shoal.tasks.images.decode import Photo
from shoal.tasks.images.many import SentPhoto, prepare_on_gpu
from shoal.tasks.images.preparation import ImagePreparation

ON_CPU = ModelConfig(instance_group=(ModelInstanceGroup(kind="KIND_CPU", count=2),))
ON_GPU = ModelConfig(instance_group=(ModelInstanceGroup(kind="KIND_GPU", count=1, gpus=(3,)),))


@pytest.fixture
def machine(monkeypatch):
    """Say what is installed and whether there is a GPU."""

    def make(*, installed=True, gpu=True):
        torch = SimpleNamespace(
            cuda=SimpleNamespace(is_available=lambda: gpu),
            device=lambda kind, number: f"{kind}:{number}",
        )
        modules = {"torch": torch, "torch.nn.functional": SimpleNamespace()}
        modules["torchvision.io"] = SimpleNamespace()
        real = importlib.import_module

        def load(name, *more):
            if name.partition(".")[0] not in ("torch", "torchvision"):
                return real(name, *more)
            if not installed:
                raise ImportError(f"No module named '{name}'")
            return modules[name]

        spec = importlib.machinery.ModuleSpec("torch", None)
        monkeypatch.setattr(nvjpeg.importlib, "import_module", load)
        monkeypatch.setattr(
            nvjpeg.importlib.util, "find_spec", lambda name: spec if installed else None
        )

    return make


@pytest.mark.parametrize(
    ("config", "decoder", "installed", "gpu", "chosen"),
    [
        (ON_CPU, "auto", True, True, False),
        (ON_GPU, "auto", True, True, True),
        (ON_GPU, "auto", False, True, False),
        (ON_GPU, "auto", True, False, False),
        (ON_GPU, "pillow", True, True, False),
        (ON_CPU, "nvjpeg", True, True, True),
    ],
)
def test_which_decoder(settings, machine, config, decoder, installed, gpu, chosen):
    machine(installed=installed, gpu=gpu)
    found = nvjpeg.choose(settings(decoder=decoder), config)
    assert (found is not None) is chosen
    if chosen:
        assert found._device == ("cuda:3" if config is ON_GPU else "cuda:0")


@pytest.mark.parametrize(
    ("installed", "gpu", "reason"),
    [(False, True, "No module named"), (True, False, "PyTorch finds no GPU")],
)
def test_what_cannot_be_had(settings, machine, installed, gpu, reason):
    machine(installed=installed, gpu=gpu)
    with pytest.raises(ConfigError) as raised:
        nvjpeg.choose(settings(decoder="nvjpeg"), ON_GPU)
    assert "task.json: decoder: nvJPEG is not available" in raised.value.message
    assert reason in raised.value.message
    with pytest.raises(ConfigError, match="Write one of auto, pillow, nvjpeg"):
        nvjpeg.choose(settings(decoder="cuda"), ON_GPU)


def test_a_model_on_the_cpu_costs_no_import(settings):
    known = set(sys.modules)
    assert nvjpeg.choose(settings(), ON_CPU) is None
    assert not {name for name in set(sys.modules) - known if name.startswith("torch")}


def test_what_is_left_to_pillow(gradient, encode):
    def readable(data):
        return nvjpeg.readable(Photo(data), data)

    whole = encode(gradient(), "JPEG")
    assert readable(whole)
    assert readable(encode(gradient().convert("L"), "JPEG"))
    assert not readable(encode(gradient()))
    assert not readable(encode(gradient().convert("CMYK"), "JPEG"))
    assert not readable(whole[:-40])
    assert not readable(whole + b"more")


class FakeGpu:
    """Reads what it can as plain 77, and notes what it was given."""

    def __init__(self, error=None):
        self.given = []
        self.error = error

    def pixels(self, photos, fit):
        self.given.append([photo.title for photo, _ in photos])
        if self.error is not None:
            raise self.error
        return [
            np.full((fit.height, fit.width, fit.channels), 77, np.uint8)
            if nvjpeg.readable(*photo)
            else None
            for photo in photos
        ]


@pytest.fixture
def prepare(settings):
    return ImagePreparation.of(settings(crop="none", scale=1), (3, 8, 8), dtypes.FP32)


def sent(*files):
    return [
        SentPhoto(data, f"photo {place}", np.zeros((3, 8, 8), np.float32))
        for place, data in enumerate(files)
    ]


def test_gpu_and_pillow_share_the_work(prepare, encode, gradient):
    grey = Image.new("RGB", (20, 20), (5, 5, 5))
    cut = encode(gradient(200, 200), "JPEG")[:-60]
    photos = sent(encode(grey, "JPEG"), b"no photo", encode(grey), cut)
    gpu = FakeGpu()
    by_gpu, wrong, by_pillow, broken = prepare_on_gpu(gpu, prepare, photos)
    assert gpu.given == [["photo 0", "photo 2", "photo 3"]]
    assert (by_gpu == 77).all()
    assert by_gpu is photos[0].row
    assert isinstance(wrong, InvalidArgument)
    assert (by_pillow == 5).all()
    assert isinstance(broken, InvalidArgument)
    assert "photo 3 is truncated" in broken.message


def test_a_gpu_that_fails_is_not_missed(prepare, encode, caplog):
    photos = sent(encode(Image.new("RGB", (20, 20), (5, 5, 5)), "JPEG"))
    (row,) = prepare_on_gpu(FakeGpu(RuntimeError("out of memory")), prepare, photos)
    assert np.abs(row - 5).max() <= 1
    assert "the GPU failed, Pillow decodes 1 photos: out of memory" in caplog.text
