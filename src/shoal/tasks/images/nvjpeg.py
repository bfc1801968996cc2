"""Decodes and resizes JPEGs on a GPU, with nvJPEG through torchvision.

    many photos --nvJPEG, one call--> upright --resize, crop--> pixels back in memory

Pillow decodes what nvJPEG does not support, or decodes without an error although it is corrupt:
other formats, CMYK, truncated files. Only pixels of the model's size are copied back, an eighth or
less of the photo.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from PIL import Image

from shoal.config.model import ModelConfig
from shoal.core.tensor import Buffer
from shoal.tasks.images.decode import Photo
from shoal.tasks.images.preparation import ImagePreparation
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
# By EXIF orientation: whether to transpose, then which axes to flip.
_FLIPS = MappingProxyType(
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


class NvJpeg:
    """The GPU's decoder. Any thread may use it."""

    def __init__(self, device: int) -> None:
        """Use that GPU. Raises ImportError or RuntimeError if it is not available."""
        self._torch: Any = importlib.import_module("torch")
        self._io: Any = importlib.import_module("torchvision.io")
        if not self._torch.cuda.is_available():
            raise RuntimeError("PyTorch finds no GPU")
        self._device = self._torch.device("cuda", device)
        self._functional: Any = importlib.import_module("torch.nn.functional")

    def pixels(
        self, photos: Sequence[tuple[Photo, Buffer]], fit: ImagePreparation
    ) -> list[np.ndarray | None]:
        """The pixels of each photo in the model's size; None for those that Pillow must decode."""
        found: list[np.ndarray | None] = [None] * len(photos)
        chosen = [
            index
            for index, (photo, data) in enumerate(photos)
            if readable(photo, data) and fit.may_be_resized(photo.size)
        ]
        if fit.resampling not in _MODES or not chosen:
            return found
        with self._torch.inference_mode():
            decoded = self._decode([photos[index][1] for index in chosen], fit)
            parts = {
                index: self._fitted(image, photos[index][0], fit)
                for index, image in zip(chosen, decoded, strict=True)
                if image is not None
            }
            if parts:
                copied = (
                    self._torch.stack(list(parts.values())).cpu().numpy()
                )  # one synchronisation
                for index, pixels in zip(parts, copied, strict=True):
                    found[index] = pixels
        return found

    def _decode(self, files: Sequence[Buffer], fit: ImagePreparation) -> list[Any]:
        torch, modes = self._torch, self._io.ImageReadMode
        data = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
        mode = modes.GRAY if fit.channels == 1 else modes.RGB
        try:
            return list(self._io.decode_jpeg(data, mode=mode, device=self._device))
        except RuntimeError as error:
            if len(files) == 1:
                logger.debug("Pillow decodes a photo that nvJPEG rejects: %s", error)
                return [None]
        return [
            self._decode([file], fit)[0] for file in files
        ]  # one by one: only the invalid one fails

    def _fitted(self, image: Any, photo: Photo, fit: ImagePreparation) -> Any:
        """Resized and cropped; from [channels, height, width] to channels last."""
        if photo.orientation in _FLIPS:
            transposed, axes = _FLIPS[photo.orientation]
            image = image.transpose(1, 2) if transposed else image
            image = image.flip(axes) if axes else image
        (width, height), (left, top, right, bottom) = fit.crop(photo.size)
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
    """Whether nvJPEG supports a photo: a JPEG in grey or RGB that is not truncated."""
    if photo.kind != "JPEG" or photo.mode not in ("L", "RGB"):
        return False
    end = bytes(memoryview(data).cast("B")[-2:])
    return end == b"\xff\xd9"


def is_allowed(settings: TaskSettings) -> bool:
    """Whether a GPU may decode photos, by the setting `decoder`. Raises ConfigError."""
    return _decoder(settings) != "pillow"


def _decoder(settings: TaskSettings) -> str:
    return settings.choice("decoder", "auto", ("auto", "pillow", "nvjpeg"))


def choose(settings: TaskSettings, config: ModelConfig) -> NvJpeg | None:
    """The GPU's decoder, depending on the setting `decoder` and the machine; None for Pillow.

    `auto` selects it for models on a GPU if torchvision is installed. Raises ConfigError if the
    setting requires it and it is not available.
    """
    decoder = _decoder(settings)
    devices = [gpu for group in config.instance_group for gpu in _gpus_of(group)]
    if decoder == "pillow" or (decoder == "auto" and not (devices and _installed())):
        return None
    try:
        return NvJpeg(devices[0] if devices else 0)
    except (ImportError, RuntimeError, OSError) as error:
        if decoder == "nvjpeg":
            settings.wrong(
                "decoder",
                f"nvJPEG is not available: {error}",
                'Install torch and torchvision for CUDA, or write "auto"',
            )
        logger.warning("nvJPEG is not available, Pillow decodes photos: %s", error)
        return None


def _gpus_of(group: Any) -> tuple[int, ...]:
    return (tuple(group.gpus) or (0,)) if group.kind == "KIND_GPU" else ()


def _installed() -> bool:
    """Whether both are installed; importing them takes seconds."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "torchvision"))
