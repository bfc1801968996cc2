"""The JPEG decoder of a GPU, through NVIDIA's library nvJPEG.

    JPEGs in memory --decode: all engines at once--> planes in the GPU's memory

A GPU has engines that decode JPEGs, beside its processors. A call uses all of them, and a core of
the CPU, so calls run one after the other: at the same time they take more CPU time, for no more
photos. Two states are enough for that: while the GPU ends one batch, the next one is begun. Each
has streams of its own, which use up the queues of the GPU, so all instances share them.
"""

from __future__ import annotations

import ctypes
import importlib.util
import queue
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

_STATES = 2
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
    """The library, for one GPU that has a decoder. Any thread may use it."""

    def __init__(self, device: torch.device) -> None:
        """Raises OSError if it is not installed, RuntimeError if the GPU has no such decoder."""
        self.calls, self.path = _load()
        self.device = device
        self.handle = _pointer()
        with torch.cuda.device(device):
            self.check("nvjpegCreateEx", _HARDWARE, None, None, 0, ctypes.byref(self.handle))

    def check(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises RuntimeError if it fails."""
        status = getattr(self.calls, name)(*arguments)
        if status:
            raise RuntimeError(_text(name, status))


class _State:
    """What the library needs to decode one batch."""

    def __init__(self, library: NvJpeg) -> None:
        self.pointer = _pointer()
        self.photos = 0  # of the batches that it is prepared for
        self._library = library
        library.check("nvjpegJpegStateCreate", library.handle, ctypes.byref(self.pointer))
        weakref.finalize(self, library.calls.nvjpegJpegStateDestroy, self.pointer).atexit = False

    def begin(self, photos: int) -> None:
        """Prepare for batches of that size."""
        if photos != self.photos:
            self.photos = 0
            settings = (photos, 1, _PLANES)
            library = self._library
            library.check("nvjpegDecodeBatchedInitialize", library.handle, self.pointer, *settings)
            self.photos = photos


class JpegDecoder:
    """Decodes batches of JPEGs. Any thread may use it."""

    def __init__(self, library: NvJpeg) -> None:
        """Raises RuntimeError if there is no memory for it."""
        self._library = library
        self._free: queue.SimpleQueue[_State] = queue.SimpleQueue()
        self._calling = threading.Lock()  # held while the library is called
        self._thread = threading.local()  # .used: whether it has used the GPU
        with torch.cuda.device(library.device):
            for _ in range(_STATES):
                self._free.put(_State(library))

    @contextmanager
    def decoding(
        self,
        addresses: np.ndarray,
        sizes: np.ndarray,
        planes: np.ndarray,
        memory: int,
        stream: Any,
    ) -> Iterator[None]:
        """Decode the JPEGs at `addresses` to their `planes` (PLANES) in the GPU's memory, which
        begins at the address `memory`, on `stream`, while the block runs; its end waits until that
        is done. Raises JpegError, before the block, if one of them cannot be decoded."""
        count = len(addresses)
        images = np.zeros((count, _IMAGE_WORDS), np.uint64)
        for index, name in enumerate(("luma", "blue", "red")):
            images[:, index] = planes[name] + memory
            images[:, _PITCHES + index] = planes["chroma_pitch" if index else "luma_pitch"]
        state = self._free.get()
        try:
            if not getattr(self._thread, "used", False):
                # The library fails on a thread that has not used the GPU before. This uses it.
                torch.cuda.Event().record(stream)
                self._thread.used = True
            state.begin(count)
            arrays = addresses.ctypes.data, sizes.ctypes.data, images.ctypes.data
            decode, handle = self._library.calls.nvjpegDecodeBatched, self._library.handle
            with self._calling:
                status = decode(handle, state.pointer, *arrays, stream.cuda_stream)
            try:
                if status:
                    state.photos = 0  # begin anew
                    raise JpegError(_text("nvjpegDecodeBatched", status))
                yield
            finally:
                stream.synchronize()
        finally:
            self._free.put(state)


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
