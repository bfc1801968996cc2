"""The JPEG decoder of a GPU, through NVIDIA's library nvJPEG.

    JPEGs in memory --decode: all engines at once--> planes in the GPU's memory

A GPU has engines that decode JPEGs, beside its processors. A call uses all of them, so calls run
one after the other: at the same time they take a fifth more of the CPU's time, for no more photos.
"""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

_HARDWARE = 3  # NVJPEG_BACKEND_HARDWARE
_PLANES = 1  # NVJPEG_OUTPUT_YUV: the planes as they are stored
_NAMES = ("libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so")
# Packages that may have it: the folder beside that of the package, and the name in it.
_WHEELS = (
    ("nvidia", "nvidia", "**/libnvjpeg.so*"),
    ("torchvision", "torchvision.libs", "libnvjpeg*"),
)
_SYSTEM = ("/usr/local", "cuda*/lib64/libnvjpeg.so*")
_STATUS = {
    1: "not initialised",
    2: "invalid parameter",
    3: "bad JPEG",
    4: "JPEG not supported",
    5: "no memory",
    6: "execution failed",
    7: "architecture mismatch",
    8: "internal error",
    9: "not implemented",
    10: "incomplete bitstream",
}
_pointer, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_SIGNATURES: dict[str, list[Any]] = {
    "nvjpegCreateEx": [_int, _pointer, _pointer, ctypes.c_uint, _pointer],
    "nvjpegJpegStateCreate": [_pointer, _pointer],
    "nvjpegDecodeBatchedInitialize": [_pointer, _pointer, _int, _int, _int],
    "nvjpegDecodeBatched": [_pointer, _pointer, _pointer, _pointer, _pointer, _pointer],
    "nvjpegJpegStateDestroy": [_pointer],
}
_IMAGE_WORDS, _PITCHES = 8, 4  # of nvjpegImage_t: the addresses of four planes, four pitches


class JpegError(Exception):
    """The decoder has rejected a batch: at least one file in it cannot be decoded."""


class NvJpeg:
    """The library, with the decoder of one GPU. Any thread may use it."""

    def __init__(self, device: torch.device) -> None:
        """Raises OSError if it is not installed, RuntimeError if the GPU has no such decoder."""
        self.calls, self.path = _load()
        self.device = device
        self.lock = threading.Lock()  # held while a batch is decoded
        self.handle = _pointer()
        with torch.cuda.device(device):
            self.check("nvjpegCreateEx", _HARDWARE, None, None, 0, ctypes.byref(self.handle))

    def check(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises RuntimeError if it fails."""
        status = getattr(self.calls, name)(*arguments)
        if status:
            raise RuntimeError(_text(name, status))


class JpegDecoder:
    """Decodes batches of JPEGs, one after the other. One thread at a time."""

    def __init__(self, library: NvJpeg) -> None:
        """Raises RuntimeError if there is no memory for it."""
        self._library = library
        self._state = _pointer()
        self._batch = 0
        with torch.cuda.device(library.device):
            self._bound: Any = torch.cuda.Event()
            library.check("nvjpegJpegStateCreate", library.handle, ctypes.byref(self._state))

    def decode(
        self,
        addresses: np.ndarray,
        sizes: np.ndarray,
        planes: np.ndarray,
        memory: int,
        stream: Any,
    ) -> None:
        """Decode the JPEGs at `addresses` to their `planes` (PLANES) in the GPU's memory, which
        begins at the address `memory`, on `stream`, and wait until that is done. Raises JpegError
        if one of them cannot be decoded."""
        count = len(addresses)
        images = np.zeros((count, _IMAGE_WORDS), np.uint64)
        for index, name in enumerate(("luma", "blue", "red")):
            images[:, index] = planes[name] + memory
            images[:, _PITCHES + index] = planes["chroma_pitch" if index else "luma_pitch"]
        with self._library.lock:
            # The library fails on a thread that has not used the GPU before. This uses it.
            self._bound.record(stream)
            if count != self._batch:
                self._begin(count)
            status = self._library.calls.nvjpegDecodeBatched(
                self._library.handle,
                self._state,
                addresses.ctypes.data,
                sizes.ctypes.data,
                images.ctypes.data,
                stream.cuda_stream,
            )
            stream.synchronize()
        if status:
            self._batch = 0  # begin anew
            raise JpegError(_text("nvjpegDecodeBatched", status))

    def _begin(self, count: int) -> None:
        """Prepare for batches of that size."""
        self._batch = 0
        handle, settings = self._library.handle, (count, 1, _PLANES)
        self._library.check("nvjpegDecodeBatchedInitialize", handle, self._state, *settings)
        self._batch = count

    def close(self) -> None:
        """Release its memory."""
        if self._state:
            self._library.calls.nvjpegJpegStateDestroy(self._state)
            self._state = _pointer()


def _text(name: str, status: int) -> str:
    return f"{name}: {_STATUS.get(status, f'status {status}')}"


def _load() -> tuple[Any, str]:
    """The library of the system, of NVIDIA's wheels or of torchvision's, and where it was found."""
    reasons = []
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
            for name, arguments in _SIGNATURES.items():
                getattr(library, name).argtypes = arguments
        except (OSError, AttributeError) as error:
            reasons.append(str(error))
        else:
            return library, path
    raise OSError(f"nvJPEG is not installed ({reasons[-1]}); install the wheel nvidia-nvjpeg")


def _candidates() -> Iterator[str]:
    for package, beside, pattern in _WHEELS:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield from map(str, sorted(Path(folder).with_name(beside).glob(pattern)))
    yield from _NAMES
    folder, pattern = _SYSTEM
    yield from map(str, sorted(Path(folder).glob(pattern)))
