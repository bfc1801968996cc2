"""Images as arrays: decoded, resized, scaled and arranged for a model.

    photo.jpg --Pillow--> upright, grey or colour --resize--> scale --> datatype --> CHW or HWC

Pillow is imported when the first image is read; the extra `shoal[image]` installs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.core import dtypes
from shoal.core.dtypes import DataType
from shoal.errors import InvalidArgument, NotFound, Unsupported
from shoal.image.classifier import Classifier

if TYPE_CHECKING:
    from PIL.Image import Image

_CROP_MARGIN = 256 / 224  # size before cropping relative to the crop; the common ratio
_FLOATS = (dtypes.FP16, dtypes.FP32, dtypes.FP64, dtypes.BF16)


@dataclass(frozen=True, slots=True)
class Scaling:
    """Maps pixel values from 0 to 255 to the range of the training."""

    scale: Callable[[np.ndarray], np.ndarray]
    lowest: float
    highest: float
    whole: bool  # whether the results are whole numbers
    words: str


def _vgg(pixels: np.ndarray) -> np.ndarray:
    means = (128.0,) if pixels.shape[2] == 1 else (123.0, 117.0, 104.0)
    return pixels - np.array(means, np.float32)


def _imagenet(pixels: np.ndarray) -> np.ndarray:
    grey = pixels.shape[2] == 1
    means = (0.449,) if grey else (0.485, 0.456, 0.406)
    deviations = (0.226,) if grey else (0.229, 0.224, 0.225)
    scaled: np.ndarray = pixels / np.float32(255) - np.array(means, np.float32)
    return scaled / np.array(deviations, np.float32)


SCALINGS: Mapping[str, Scaling] = MappingProxyType(
    {
        "NONE": Scaling(lambda pixels: pixels, 0, 255, True, "0 to 255, unchanged"),
        "INCEPTION": Scaling(
            lambda pixels: pixels / np.float32(127.5) - np.float32(1), -1, 1, False, "-1 to 1"
        ),
        "VGG": Scaling(_vgg, -128, 151, True, "minus the mean colour, 123, 117, 104 (grey: 128)"),
        "UNIT": Scaling(lambda pixels: pixels / np.float32(255), 0, 1, False, "0 to 1"),
        "IMAGENET": Scaling(
            _imagenet, -2.2, 2.7, False, "0 to 1, minus mean, divided by deviation (torchvision)"
        ),
        "LITE": Scaling(
            lambda pixels: (pixels - np.float32(127)) / np.float32(128),
            -1,
            1,
            False,
            "(x - 127) / 128 (EfficientNet-Lite)",
        ),
    }
)


def fits(scaling: str, datatype: DataType) -> bool:
    """Whether scaled pixels can be represented in a datatype."""
    kind = SCALINGS[scaling]
    if datatype in _FLOATS:
        return True
    limits = np.iinfo(datatype.numpy)  # type: ignore[type-var]
    return kind.whole and bool(limits.min <= kind.lowest and kind.highest <= limits.max)


def check_scaling(scaling: str, model: Classifier) -> None:
    """Raises InvalidArgument when the model's datatype cannot represent scaled pixels."""
    if fits(scaling, model.datatype):
        return
    possible = [name for name in SCALINGS if fits(name, model.datatype)]
    advice = f"use -s {' or -s '.join(possible)}" if possible else "no scaling fits"
    raise InvalidArgument(
        f"-s {scaling} produces values that {model.datatype.name}, the datatype of model "
        f"'{model.model}', cannot represent; {advice}"
    )


def preprocess(path: Path, model: Classifier, scaling: str, *, crop: bool = False) -> np.ndarray:
    """The image in a file as one row of the model's input, without the batch dimension.

    Resized to the model's size or, with `crop`, cropped to its centre. BF16 is returned as
    float32. Raises NotFound and InvalidArgument, which name the file.
    """
    opened = _read(path)
    from shoal.tasks.images.decode import flat  # after the check for Pillow

    image = flat(opened, grey=model.channels == 1)
    image = _cropped(image, model) if crop else _stretched(image, model.width, model.height)
    pixels = np.asarray(image, np.float32).reshape(model.height, model.width, model.channels)
    scaled = SCALINGS[scaling].scale(pixels)
    if model.channels_first:
        scaled = scaled.transpose(2, 0, 1)
    numpy_type: Any = np.float32 if model.datatype is dtypes.BF16 else model.datatype.numpy
    return np.ascontiguousarray(scaled, numpy_type)


def image_files(paths: list[str]) -> list[Path]:
    """The files of `paths`; a folder stands for its images, sorted by name.

    Raises NotFound for missing files and for folders without images.
    """
    found: list[Path] = []
    for text in paths:
        path = Path(text)
        if path.is_dir():
            endings = _endings()
            images = sorted(
                file
                for file in path.iterdir()
                if file.suffix.lower() in endings and not file.name.startswith(".")
                if file.is_file()
            )
            if not images:
                raise NotFound(
                    f"there are no images in the folder '{text}'; image files end in .jpg, "
                    f".png or another extension that Pillow supports"
                )
            found += images
        elif path.exists():
            found.append(path)
        else:
            raise NotFound(f"there is no file or folder '{text}'")
    return found


def _read(path: Path) -> Image:
    pillow = _pillow()
    from PIL import UnidentifiedImageError

    from shoal.tasks.images.decode import orientation_of, upright

    try:
        with pillow.open(path) as image:
            image.load()
            return upright(image, orientation_of(image))  # apply the EXIF orientation
    except UnidentifiedImageError:
        raise InvalidArgument(f"'{path}' is not an image that Pillow can read") from None
    except pillow.DecompressionBombError as error:
        raise InvalidArgument(f"the image '{path}' is too large: {error}") from None
    except FileNotFoundError:
        raise NotFound(f"there is no file '{path}'") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:  # raised by Pillow's decoders
        number = error.errno if isinstance(error, OSError) else None
        reason = os.strerror(number) if number else str(error)
        raise InvalidArgument(f"the image '{path}' cannot be read: {reason}") from None


def _stretched(image: Image, width: int, height: int) -> Image:
    return image.resize((width, height), _pillow().Resampling.BILINEAR)


def _cropped(image: Image, model: Classifier) -> Image:
    """The centre of the image after resizing it to slightly more than the model's size."""
    factor = _CROP_MARGIN * max(model.width / image.width, model.height / image.height)
    width = max(model.width, round(image.width * factor))
    height = max(model.height, round(image.height * factor))
    larger = image.resize((width, height), _pillow().Resampling.BICUBIC)
    left, top = round((width - model.width) / 2), round((height - model.height) / 2)
    return larger.crop((left, top, left + model.width, top + model.height))


def _endings() -> frozenset[str]:
    registered: Mapping[str, str] = _pillow().registered_extensions()
    return frozenset(registered)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise Unsupported(
            "images are read with Pillow, which is not installed; install it with: "
            "pip install 'shoal[image]'"
        ) from None
    return Image
