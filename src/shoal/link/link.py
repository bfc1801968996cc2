"""One end of a link: messages with tensors or arrays.

    pack(tensors) --> plain values --> send --> receive --> unpack --> tensors

Small tensors are part of the message, which is fastest; larger ones are copied into shared memory
once and read there, or not even copied: what was received into memory that the link has lent is
there already. The next message in the other direction reports segments that are unused.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from socket import socket
from typing import Any

import numpy as np

from shoal.core import bytes_tensor, dtypes
from shoal.core.dtypes import BYTES
from shoal.core.tensor import Buffer, Tensor
from shoal.link.channel import ChannelClosed, MessageChannel
from shoal.link.segments import ALIGNMENT, SegmentPool, SegmentViews

INLINE_BYTES = 16 * 1024  # of one tensor
_TYPES = {kind.number: kind for kind in dtypes.ALL}
_OBJECTS = np.dtype(object).str
# Of the most used ones, because formatting and parsing the text takes as long as all the rest.
_DTYPES = {kind.numpy.str: kind.numpy for kind in dtypes.ALL if kind is not BYTES}
_DTYPE_TEXTS = {dtype: text for text, dtype in _DTYPES.items()}

Place = Any  # bytes, or (segment, start, end)
Packed = tuple[str, int, tuple[int, ...], Any]  # name, datatype, shape, bytes or location
PackedArray = tuple[str, tuple[int, ...], Any]  # dtype, shape, bytes or location


class Link:
    """Sends from any thread; one thread receives."""

    def __init__(self, connection: socket) -> None:
        self.connection = connection
        self._channel = MessageChannel(connection)
        self._sending = threading.Lock()  # news of a segment must go out before its number does
        self._pool = SegmentPool()
        self._views = SegmentViews()
        # Appended when the last view of a segment ends, even inside the garbage collector, so no
        # lock may be taken for it.
        self._released: deque[int] = deque()

    def send(self, kind: str, *body: Any, more: bool = False) -> None:
        """Send a message, with `more` together with the next one.

        ChannelClosed if the other side is gone.
        """
        with self._sending:
            if not (self._released or self._pool.has_news):
                self._channel.send((kind, body, None), more=more)
                return
            released = []
            while self._released:
                released.append(self._released.popleft())
            opened, files, closed = self._pool.news()
            self._channel.send((kind, body, (released, opened, closed)), files, more=more)

    def send_files(self, kind: str, *body: Any, files: Sequence[int]) -> None:
        """Send a message with open files, which are closed here; the other side calls `take_file`
        for each. Only on links without tensors."""
        with self._sending:
            self._channel.send((kind, body, None), files, more=False)

    def take_file(self) -> int:
        """The next file that was received; the caller closes it."""
        return self._channel.next_file()

    def fileno(self) -> int:
        """The socket, to wait until there is something to `receive`."""
        return self._channel.fileno()

    @property
    def backlog_bytes(self) -> int:
        """How much the other side has still to accept."""
        return self._channel.backlog_bytes

    @property
    def lent_bytes(self) -> int:
        """Shared memory that the other side uses, or does not know of yet."""
        return self._pool.lent_bytes

    @property
    def silent_secs(self) -> float:
        """For how long the other side has accepted nothing of the backlog; 0 without one."""
        return self._channel.silent_secs

    def lend(self, size: int, aligned_at: int = 0) -> memoryview:
        """Shared memory to receive into, so that it can be sent without a copy; it is in use until
        nothing refers to it. Byte number `aligned_at` lies on a 64-byte boundary."""
        return self._pool.lend(size, aligned_at)

    def flush(self) -> None:
        """Send messages that wait for a next one, if there are any."""
        self._channel.flush()

    def wait_for_room(self, most_bytes: int) -> None:
        """Wait until the other side has accepted all but `most_bytes`, or is gone."""
        self._channel.wait_for_room(most_bytes)

    def receive(self) -> list[tuple[str, tuple[Any, ...]]]:
        """Wait for messages; ChannelClosed at the end, or after a damaged message."""
        messages: list[tuple[str, tuple[Any, ...]]] = []
        received = self._channel.receive()
        try:
            for kind, body, news in received:
                if news is not None:
                    self._take_news(*news)
                messages.append((kind, body))
        except (TypeError, ValueError, IndexError):
            raise ChannelClosed from None
        return messages

    def _take_news(self, released: Any, opened: Any, closed: Any) -> None:
        self._pool.released(released)
        for number, size, tag in opened:
            self._views.open(number, size, tag, self._channel.next_file)
        for number in closed:
            self._views.drop(number)

    def pack(self, tensors: Iterable[Tensor]) -> list[Packed]:
        """Tensors as plain values, for one message; large ones go to shared memory."""
        packed: list[Packed] = []
        large: list[tuple[int, memoryview]] = []
        for tensor in tensors:
            place = None
            if not tensor.has_raw and tensor.datatype is not BYTES:
                array = tensor.array
                if array.nbytes <= INLINE_BYTES:
                    place = array.astype(tensor.datatype.numpy, copy=False).tobytes()
            if place is None:
                raw = tensor.raw
                view = raw if isinstance(raw, memoryview) else memoryview(raw)
                if view.nbytes > INLINE_BYTES:
                    large.append((len(packed), view))
                else:
                    place = raw if type(raw) is bytes else bytes(raw)
            packed.append((tensor.name, tensor.datatype.number, tensor.shape, place))
        if large:
            places = self._share([view for _, view in large])
            for (index, _), found in zip(large, places, strict=True):
                name, kind, shape, _ = packed[index]
                packed[index] = (name, kind, shape, found)
        return packed

    def pack_buffers(self, buffers: Sequence[Buffer]) -> list[Place]:
        """As `pack`, for bytes alone."""
        places: list[Place] = []
        large: list[tuple[int, memoryview]] = []
        for buffer in buffers:
            if len(buffer) > INLINE_BYTES:
                view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
                large.append((len(places), view))
                places.append(None)
            else:
                places.append(buffer if type(buffer) is bytes else bytes(buffer))
        if large:
            found = self._share([view for _, view in large])
            for (index, _), place in zip(large, found, strict=True):
                places[index] = place
        return places

    def _share(self, views: Sequence[memoryview]) -> list[tuple[int, int, int]]:
        """Where the other side finds these, for one message, which releases each segment once."""
        places: list[tuple[int, int, int] | None] = [self._pool.find(view) for view in views]
        for number in {place[0] for place in places if place is not None}:
            self._pool.hold(number)
        sizes = [_aligned(v.nbytes) for v, place in zip(views, places, strict=True) if not place]
        if sizes:
            segment = self._pool.take(sum(sizes))
            memory = memoryview(segment.memory)
            start = 0
            for index, view in enumerate(views):
                if places[index] is None:
                    end = start + view.nbytes
                    flat = view.cast("B") if view.format != "B" or view.ndim != 1 else view
                    memory[start:end] = flat
                    places[index] = (segment.number, start, end)
                    start = _aligned(end)
        return [place for place in places if place is not None]

    def unpack(self, packed: Iterable[Packed]) -> list[Tensor]:
        """The tensors of a message. Those in shared memory are views; call this once a message."""
        leases: dict[int, memoryview] = {}
        return [
            Tensor(name, _TYPES[kind], tuple(shape), raw=self._taken(place, leases))
            for name, kind, shape, place in packed
        ]

    def unpack_buffers(self, places: Iterable[Place]) -> list[bytes | memoryview]:
        """As `unpack`, for bytes alone."""
        leases: dict[int, memoryview] = {}
        return [self._taken(place, leases) for place in places]

    def _taken(self, place: Place, leases: dict[int, memoryview]) -> bytes | memoryview:
        """The bytes at a place of a message; `leases` are those of the message so far."""
        if isinstance(place, bytes):
            return place
        number, start, end = place
        lease = leases.get(number)
        if lease is None:
            lease = leases[number] = self._views.lease(number, self._released.append)
        return lease[start:end]

    def pack_arrays(self, arrays: Iterable[np.ndarray]) -> list[PackedArray]:
        """As `pack`, for arrays of any dtype; objects are `bytes` or texts."""
        packed: list[PackedArray] = []
        large: list[tuple[int, np.ndarray]] = []
        for array in arrays:
            place = None
            kind = array.dtype
            dtype = _DTYPE_TEXTS.get(kind) or kind.str
            if kind.hasobject:
                place = bytes_tensor.encode(array.reshape(-1).tolist())
                if len(place) > INLINE_BYTES:
                    large.append((len(packed), np.frombuffer(place, np.uint8)))
            elif array.nbytes > INLINE_BYTES:
                large.append((len(packed), array))
            else:
                place = array.tobytes()
            packed.append((dtype, array.shape, place))
        if large:
            segment = self._pool.take(sum(_aligned(array.nbytes) for _, array in large))
            start = 0
            for index, array in large:
                target = np.frombuffer(segment.memory, array.dtype, array.size, start)
                np.copyto(target.reshape(array.shape), array)
                dtype, shape, _ = packed[index]
                packed[index] = (dtype, shape, (segment.number, start, start + array.nbytes))
                start = _aligned(start + array.nbytes)
        return packed

    def unpack_arrays(self, packed: Iterable[PackedArray]) -> list[np.ndarray]:
        """The arrays of a message. Those in shared memory are views; call this once a message."""
        arrays: list[np.ndarray] = []
        lease: memoryview | None = None
        for dtype, shape, place in packed:
            raw = place
            if isinstance(place, tuple):
                number, start, end = place
                if lease is None:
                    lease = self._views.lease(number, self._released.append)
                raw = lease[start:end]
            if dtype == _OBJECTS:
                flat = bytes_tensor.decode(raw, math.prod(shape), "an array")
            else:
                flat = np.frombuffer(raw, _DTYPES.get(dtype, dtype))
            arrays.append(flat.reshape(shape))
        return arrays

    def hang_up(self) -> None:
        """End it. What has arrived can still be received; then waiting threads are notified."""
        self._channel.hang_up()

    def close(self) -> None:
        """Close the pipe and drop all state. No thread may be receiving."""
        self._channel.close()
        self._pool.close()
        self._views.close()


def _aligned(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
