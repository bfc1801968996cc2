"""JPEGs decoded and resized on a GPU, by nvJPEG through torchvision.

    many photos --nvJPEG, one call--> upright --resize, crop--> pixels back in memory

What nvJPEG does not read, or reads without a word although it is broken, is left to Pillow: other
formats, printers' colours, files without an end. Only pixels of the model's size come back, an
eighth or less of what a tensor of the photo would be.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from PIL import Image

from shoal.config.model import ModelConfig
from shoal.core.tensor import Buffer
from shoal.tasks.images.decode import Photo, Size
from shoal.tasks.settings import TaskSettings

logger = logging.getLogger(__name__)

AT_ONCE = 32  # photos in one call
_MODES = MappingProxyType(
    {
        Image.Resampling.NEAREST: "nearest-exact",
        Image.Resampling.BILINEAR: "bilinear",
        Image.Resampling.BICUBIC: "bicubic",
    }
)
# By EXIF orientation: whether rows and columns change places, then which axes are turned round.
_TURNS = MappingProxyType(
    {
        2: (False, (2,)),
        3: (False, (1, 2)),
        4: (False, (1,)),
        5: (True, ()),
        6: (True, (2,)),
        7: (True, (1, 2)),
        8: (True, (1,)),
    }
)


class Fit(Protocol):
    """What is made of a photo: see `ImagePreparation`."""

    @property
    def channels(self) -> int:
        """1: grey, 3: colours."""

    @property
    def resampling(self) -> Image.Resampling:
        """How it is resized."""

    @property
    def antialias(self) -> bool:
        """Whether all pixels count when it is made smaller."""

    def place(self, whole: Size) -> tuple[Size, tuple[int, int, int, int]]:
        """The size it is made, and the part of that which is kept."""

    def may_be_made(self, whole: Size) -> bool:
        """Whether it may be made that size as a whole."""


class NvJpeg:
    """The GPU's decoder. Any thread may use it."""

    def __init__(self, device: int) -> None:
        """Use that GPU. Raises ImportError or RuntimeError where it cannot be."""
        self._torch: Any = importlib.import_module("torch")
        self._io: Any = importlib.import_module("torchvision.io")
        if not self._torch.cuda.is_available():
            raise RuntimeError("PyTorch finds no GPU")
        self._device = self._torch.device("cuda", device)
        self._functional: Any = importlib.import_module("torch.nn.functional")

    def pixels(self, photos: Sequence[tuple[Photo, Buffer]], fit: Fit) -> list[np.ndarray | None]:
        """Of each photo the pixels that the model wants; None for what Pillow must read."""
        found: list[np.ndarray | None] = [None] * len(photos)
        chosen = [
            place
            for place, (photo, data) in enumerate(photos)
            if readable(photo, data) and fit.may_be_made(photo.size)
        ]
        if fit.resampling not in _MODES or not chosen:
            return found
        with self._torch.inference_mode():
            decoded = self._decode([photos[place][1] for place in chosen], fit)
            parts = {
                place: self._fitted(image, photos[place][0], fit)
                for place, image in zip(chosen, decoded, strict=True)
                if image is not None
            }
            if parts:
                together = self._torch.stack(list(parts.values())).cpu().numpy()  # waits once
                for place, pixels in zip(parts, together, strict=True):
                    found[place] = pixels
        return found

    def _decode(self, files: Sequence[Buffer], fit: Fit) -> list[Any]:
        torch, modes = self._torch, self._io.ImageReadMode
        data = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
        mode = modes.GRAY if fit.channels == 1 else modes.RGB
        try:
            return list(self._io.decode_jpeg(data, mode=mode, device=self._device))
        except RuntimeError as error:
            if len(files) == 1:
                logger.debug("nvJPEG left a photo to Pillow: %s", error)
                return [None]
        return [self._decode([file], fit)[0] for file in files]  # whose fault it was

    def _fitted(self, image: Any, photo: Photo, fit: Fit) -> Any:
        """The part that is kept, resized; from [channels, height, width] to channels last."""
        if photo.orientation in _TURNS:
            lying, axes = _TURNS[photo.orientation]
            image = image.transpose(1, 2) if lying else image
            image = image.flip(axes) if axes else image
        (width, height), (left, top, right, bottom) = fit.place(photo.size)
        if tuple(image.shape[1:]) != (height, width):
            smooth = fit.resampling != Image.Resampling.NEAREST
            resized = self._functional.interpolate(
                image[None].float(),
                (height, width),
                mode=_MODES[fit.resampling],
                **({"antialias": fit.antialias, "align_corners": False} if smooth else {}),
            )
            image = resized[0].round_().clamp_(0, 255).to(self._torch.uint8)
        return image[:, top:bottom, left:right].permute(1, 2, 0)


def readable(photo: Photo, data: Buffer) -> bool:
    """Whether nvJPEG reads a photo: a JPEG in grey or colours that has an end."""
    if photo.kind != "JPEG" or photo.mode not in ("L", "RGB"):
        return False
    end = bytes(memoryview(data).cast("B")[-2:])
    return end == b"\xff\xd9"


def choose(settings: TaskSettings, config: ModelConfig) -> NvJpeg | None:
    """The GPU's decoder where the setting `decoder` and the machine want it; else None: Pillow.

    `auto` takes it for models that run on a GPU, where torchvision is installed. Raises
    ConfigError where it is asked for and cannot be had.
    """
    wanted = settings.choice("decoder", "auto", ("auto", "pillow", "nvjpeg"))
    devices = [gpu for group in config.instance_group for gpu in _gpus_of(group)]
    if wanted == "pillow" or (wanted == "auto" and not (devices and _installed())):
        return None
    try:
        return NvJpeg(devices[0] if devices else 0)
    except (ImportError, RuntimeError, OSError) as error:
        if wanted == "nvjpeg":
            settings.wrong(
                "decoder",
                f"nvJPEG cannot be used here: {error}",
                'Install torch and torchvision for CUDA, or write "auto"',
            )
        logger.warning("photos are decoded by Pillow, as nvJPEG cannot be used: %s", error)
        return None


def _gpus_of(group: Any) -> tuple[int, ...]:
    return (tuple(group.gpus) or (0,)) if group.kind == "KIND_GPU" else ()


def _installed() -> bool:
    """Whether a try is worth it; importing both takes seconds."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "torchvision"))
