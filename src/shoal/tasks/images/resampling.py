"""Bilinear resizing without antialias, with OpenCV if it is installed.

Each new pixel is computed from its four neighbours only, as in OpenCV and TensorFlow. OpenCV is
much faster than Pillow; their results differ by at most one of a pixel's 256 values.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

Size = tuple[int, int]  # width, height


def by_opencv(image: Image.Image, size: Size) -> np.ndarray | None:
    """The resized pixels of an RGB image; None if OpenCV is not installed."""
    opencv = _opencv()
    if opencv is None or image.mode != "RGB":
        return None
    pixels: np.ndarray = opencv.resize(np.asarray(image), size)
    return pixels


@cache
def _opencv() -> Any:
    try:
        return importlib.import_module("cv2")
    except ImportError:
        return None
