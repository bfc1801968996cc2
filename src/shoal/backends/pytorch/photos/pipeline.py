"""Classifies batches of photos on one stream of a GPU.

    decode --> the graph of that size: pixels --> rows --> network, scores, labels --> one copy

The graphs are captured when an instance is created. Each belongs to a number of rows; the rows of a
larger graph that a batch does not fill are computed and ignored. Everything after decoding is one
launch: each call of CUDA's from Python releases the GIL, and may wait long to get it back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from shoal.backends.pytorch.graphs import captured
from shoal.backends.pytorch.library import clean_message
from shoal.backends.pytorch.photos.kernel import PhotoKernel
from shoal.backends.pytorch.photos.nvjpeg import JpegDecoder, JpegError
from shoal.backends.pytorch.photos.planes import PLANES, PlaneKernel, lay_out
from shoal.core.photos import NOT_FINITE, UNREADABLE
from shoal.core.tensor import Buffer
from shoal.tasks.images.gpu_preparation import PIXEL_BYTES, PLACES
from shoal.tasks.images.plan import MOST_GPU_PIXELS, PhotoPlan

logger = logging.getLogger(__name__)

# Of the photos that are decoded at once; their planes take as much, with some margins.
_PIXELS_BYTES = MOST_GPU_PIXELS * PIXEL_BYTES
_PLANES_BYTES = _PIXELS_BYTES * 9 // 8
_FILES_BYTES = 16 << 20
_MOST_CLASSES = 0x7FFFFFFF
_ONE = 0.01  # as `ranking` has it, for the sum of probabilities

Network = Callable[[torch.Tensor], torch.Tensor]  # from rows of the input to those of the output


class PhotoPipeline:
    """The photos of one instance. One thread at a time."""

    def __init__(
        self,
        plan: PhotoPlan,
        network: Network,
        rows: torch.Tensor,
        decoder: JpegDecoder,
        stream: Any,
    ) -> None:
        """`rows` is the input of `network` for the largest batch, in the layout and type that it
        takes; its memory is used. Raises what CUDA raises."""
        device = rows.device
        self._plan = plan
        self._network = network
        self._rows = rows
        self._decoder = decoder
        self._stream = stream
        # It must not wait for networks of other instances.
        self._decoding: Any = torch.cuda.Stream(device, priority=-1)
        self._done: Any = torch.cuda.Event(blocking=True)
        self._convert = PlaneKernel()
        self._kernel = PhotoKernel(plan.prepare, rows.dtype)
        self._plane_memory = torch.empty(_PLANES_BYTES, dtype=torch.uint8, device=device)
        self._pixels = torch.empty(_PIXELS_BYTES, dtype=torch.uint8, device=device)
        self._files = _Files()
        self._planes = _Table(PLANES, len(rows), device)
        self._places = _Table(PLACES, len(rows), device)
        self._host_labels = torch.zeros(
            (len(rows), 2 * plan.labels), dtype=torch.int32, pin_memory=True
        )
        self._graphs: dict[int, Any] = {}  # by size
        self._capture()

    @property
    def nbytes(self) -> int:
        """Its GPU memory, without what the graphs compute in."""
        tensors = (self._plane_memory, self._pixels, self._rows)
        return sum(tensor.nbytes for tensor in tensors)

    def _capture(self) -> None:
        """Capture the graphs, the largest first; without them, batches run operator by operator."""
        pool = None
        for size in reversed(graph_sizes(len(self._rows))):
            try:
                graph = captured(partial(self._classify_decoded, size), self._stream, pool)
            except Exception as error:  # noqa: BLE001 - what a network or CUDA raises
                logger.warning(
                    "photos are classified without CUDA graphs, which is slower: %s",
                    clean_message(error),
                )
                self._graphs.clear()
                return
            pool = graph.pool()
            self._graphs[size] = graph

    def _prepare(self, count: int) -> None:
        """Fill the rows of those of the first photos that have been decoded."""
        planes, places = self._planes.upload(count), self._places.upload(count)
        self._convert(self._plane_memory, planes, self._pixels, self._stream)
        self._kernel(self._pixels, places, self._rows[:count], self._stream)

    def _classify_decoded(self, count: int) -> None:
        """Everything after decoding, up to the labels in the CPU's memory."""
        self._prepare(count)
        output = self._network(self._rows[:count])
        labels = best_labels(output, self._plan.scores, self._plan.labels)
        self._host_labels[:count].copy_(labels, non_blocking=True)

    def classify(
        self, photos: Sequence[Buffer], frames: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `PhotoExecutor`."""
        count = len(photos)
        addresses, sizes = self._files.put(photos)
        unreadable = np.zeros(count, bool)
        planes, places = self._planes.array, self._places.array
        ends = lay_out(frames, planes[:count])
        self._plan.prepare.place(frames, planes["pixels"][:count], places[:count])
        planes["width"][count:] = places["width"][count:] = 0
        found_parts = parts(*ends, _PLANES_BYTES, _PIXELS_BYTES)
        if len(found_parts) == 1:
            self._decode(addresses, sizes, slice(count), unreadable, partial(self._run, count))
        else:
            self._decode_in_parts(found_parts, addresses, sizes, unreadable)
        self._done.record(self._stream)
        self._done.synchronize()
        found = self._host_labels[:count].numpy()
        indexes = found[:, : self._plan.labels].copy()
        indexes[unreadable, 0] = UNREADABLE
        return indexes, found[:, self._plan.labels :].view(np.float32).copy()

    def _decode(
        self,
        addresses: np.ndarray,
        sizes: np.ndarray,
        part: slice,
        unreadable: np.ndarray,
        then: Callable[[], None],
    ) -> None:
        """Decode photos to their planes, mark those that are unreadable, and start what comes
        `then`: the GPU waits for the decoder, not the CPU."""
        planes, memory = self._planes.array[part], self._plane_memory.data_ptr()
        try:
            with self._decoder.decoding(addresses, sizes, planes, memory, self._decoding):
                self._stream.wait_stream(self._decoding)
                then()
        except JpegError as error:
            logger.debug("the GPU cannot decode a batch of %d photos: %s", len(sizes), error)
            for index in range(len(sizes)):  # only the invalid one fails
                one = slice(index, index + 1)
                try:
                    with self._decoder.decoding(
                        addresses[one], sizes[one], planes[one], memory, self._decoding
                    ):
                        pass
                except JpegError:
                    unreadable[index] = True
            then()

    def _decode_in_parts(
        self,
        found_parts: Sequence[tuple[int, int]],
        addresses: np.ndarray,
        sizes: np.ndarray,
        unreadable: np.ndarray,
    ) -> None:
        """Decode photos that do not fit into the memory at once, and start the network behind the
        last part."""
        count = len(sizes)
        planes, places = self._planes.array[:count], self._places.array[:count]
        all_planes, all_places = planes.copy(), places.copy()
        for start, end in found_parts:
            part = slice(start, end)
            planes["width"] = places["width"] = 0  # the others are left out
            planes[part], places[part] = all_planes[part], all_places[part]
            for name in ("luma", "blue", "red"):
                planes[name][part] -= all_planes["luma"][start]
            for table, name in ((planes, "pixels"), (places, "origin")):
                table[name][part] -= all_planes["pixels"][start]
            then = partial(self._run if end == count else self._prepare, count)
            self._decode(addresses[part], sizes[part], part, unreadable[part], then)
            if end < count:
                self._stream.synchronize()  # before its memory is used again

    def _run(self, count: int) -> None:
        """Start what comes after decoding."""
        size = next((size for size in sorted(self._graphs) if size >= count), None)
        if size is None:
            self._classify_decoded(count)
        else:
            self._graphs[size].replay()


def best_labels(output: torch.Tensor, scores: str, labels: int) -> torch.Tensor:
    """Index and score (as bits) of the best classes of each row, in one INT32 tensor.

    As `Ranking` does on the CPU; the first index is NOT_FINITE where a score is not finite.
    """
    rows = output.reshape(len(output), -1)
    as_they_are = scores == "as-is" or (scores == "auto" and not rows.is_floating_point())
    rows = rows.float()
    values = rows
    if not as_they_are:
        values = torch.sigmoid(rows) if scores == "sigmoid" else torch.softmax(rows, 1)
        if scores == "auto":
            total = rows.sum(1, keepdim=True)
            probable = (rows >= 0).all(1, keepdim=True) & ((total - 1).abs() < _ONE)
            values = torch.where(probable, rows, values)
    # Numbers in the order of the scores, which end with the class: of equal scores the first class
    # is the best, as on the CPU. In half precision many are equal.
    bits = values.contiguous().view(torch.int32)
    order = (bits ^ ((bits >> 31) & _MOST_CLASSES)).long() << 32
    classes = _MOST_CLASSES - torch.arange(values.shape[1], device=values.device)
    indexes = _MOST_CLASSES - (torch.topk(order | classes, labels).values & 0xFFFFFFFF)
    best = torch.gather(values, 1, indexes)
    finite = torch.isfinite(rows).all(1, keepdim=True)
    return torch.cat((torch.where(finite, indexes, NOT_FINITE).int(), best.view(torch.int32)), 1)


def graph_sizes(most: int) -> list[int]:
    """The numbers of rows to capture graphs for: powers of two, and three quarters of them."""
    powers = [1 << exponent for exponent in range(most.bit_length())]
    between = [3 * power // 4 for power in powers if power >= 16]
    return sorted({size for size in (*powers, *between, most) if size <= most})


def parts(
    plane_ends: np.ndarray, pixel_ends: np.ndarray, most_planes: int, most_pixels: int
) -> list[tuple[int, int]]:
    """Divide photos, in their order, so that the planes and pixels of each part fit into the memory
    for them; those of one photo do."""
    count = len(plane_ends)
    if plane_ends[-1] <= most_planes and pixel_ends[-1] <= most_pixels:  # nearly always
        return [(0, count)]
    found: list[tuple[int, int]] = []
    start, planes_before, pixels_before = 0, 0, 0
    for index in range(1, count):
        too_many_planes = plane_ends[index] - planes_before > most_planes
        if too_many_planes or pixel_ends[index] - pixels_before > most_pixels:
            found.append((start, index))
            start = index
            planes_before, pixels_before = plane_ends[index - 1], pixel_ends[index - 1]
    found.append((start, count))
    return found


class _Files:
    """The files of a batch, copied to page-locked memory as far as they fit in.

    The decoder copies them to the GPU while other instances wait for it, and from other memory each
    copy takes 20 µs of the CPU's time. This one is made before, for all files without the GIL.
    """

    def __init__(self) -> None:
        self._memory = torch.zeros(_FILES_BYTES, dtype=torch.uint8, pin_memory=True)

    def put(self, files: Sequence[Buffer]) -> tuple[np.ndarray, np.ndarray]:
        """The address and the size of each file; they are valid until the next call, as long as the
        files are."""
        arrays = [np.frombuffer(file, np.uint8) for file in files]
        sizes = np.array([len(array) for array in arrays], np.uint64)
        ends = np.cumsum(sizes)
        addresses: np.ndarray = ends - sizes + np.uint64(self._memory.data_ptr())
        fit = int(np.searchsorted(ends, len(self._memory), side="right"))
        if fit:
            target = self._memory[: int(ends[fit - 1])]
            torch.cat([torch.from_numpy(array) for array in arrays[:fit]], out=target)
        for index in range(fit, len(arrays)):
            addresses[index] = arrays[index].__array_interface__["data"][0]
        return addresses, sizes


class _Table:
    """One entry for each photo, in the CPU's memory and in the GPU's."""

    def __init__(self, dtype: np.dtype, rows: int, device: torch.device) -> None:
        shape = (rows, dtype.itemsize)
        self._host = torch.zeros(shape, dtype=torch.uint8, pin_memory=True)
        self._device = torch.zeros(shape, dtype=torch.uint8, device=device)
        self.array: np.ndarray = self._host.numpy().view(dtype)[:, 0]

    def upload(self, count: int) -> torch.Tensor:
        """Start to copy the first entries to the GPU, on the current stream; returns them there."""
        return self._device[:count].copy_(self._host[:count], non_blocking=True)
