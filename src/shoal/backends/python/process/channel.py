"""Messages over a socket: a length, then plain values; files may ride along.

    send(message, files) --> | uint32 length | marshal | --> receive() --> messages

Sending never waits: what the socket does not take at once is sent by a thread that exists only
while there is such a backlog. So the event loop may send too.
"""

from __future__ import annotations

import array
import contextlib
import marshal
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 16
_MOST_FILES = 64  # in one message
_CARRIES_FILES = hasattr(socket, "SCM_RIGHTS")
_AT_ONCE = getattr(socket, "MSG_DONTWAIT", 0)


class ChannelClosed(Exception):  # noqa: N818 - it is no error to hang up
    """The other side is gone."""


class Channel:
    """One end. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.setblocking(True)
        self._lock = threading.Lock()  # guards _backlog, _flushing and the order of sending
        self._backlog: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._flushing = False
        self._closed = False
        self._received = bytearray()
        self._files: deque[int] = deque()  # that came along, in the order of their messages

    def send(self, message: tuple[Any, ...], files: Sequence[int] = ()) -> None:
        """Send plain values (numbers, text, bytes, lists, dicts) and open files, which are closed.

        ChannelClosed when nobody is there any more.
        """
        content = marshal.dumps(message, 4)
        frame = memoryview(_LENGTH.pack(len(content)) + content)
        with self._lock:
            if self._closed:
                _close_files(files)
                raise ChannelClosed
            if not self._flushing:
                frame, files = self._send_some(frame, files, _AT_ONCE)
            if not len(frame):
                return
            self._backlog.append((frame, files))
            if not self._flushing:
                self._flushing = True
                threading.Thread(target=self._flush, name="shoal-model-pipe", daemon=True).start()

    def _send_some(
        self, frame: memoryview, files: Sequence[int], flags: int
    ) -> tuple[memoryview, Sequence[int]]:
        """Send what the socket takes; what is left comes back. Closes the files once sent."""
        ancillary = []
        if files:
            rights = array.array("i", files)
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        while len(frame):
            try:
                if _CARRIES_FILES:
                    sent = self._socket.sendmsg([frame], ancillary, flags)
                else:
                    sent = self._socket.send(frame)
            except BlockingIOError:
                break
            except OSError:
                self._closed = True
                _close_files(files)
                raise ChannelClosed from None
            frame = frame[sent:]
            if files:
                _close_files(files)
                files, ancillary = (), []
        return frame, files

    def _flush(self) -> None:
        """Send the backlog, waiting for the other side to take it."""
        while True:
            with self._lock:
                if not self._backlog:
                    self._flushing = False
                    return
                frame, files = self._backlog.popleft()
            try:
                self._send_some(frame, files, 0)
            except ChannelClosed:
                with self._lock:
                    for _, left in self._backlog:
                        _close_files(left)
                    self._backlog.clear()
                    self._flushing = False
                return

    def receive(self) -> Iterator[tuple[Any, ...]]:
        """Wait for messages and hand out those that are complete; ChannelClosed at the end."""
        data = self._read()
        if not data:
            raise ChannelClosed
        buffer = self._received
        buffer += data
        position = 0
        while len(buffer) - position >= 4:
            (length,) = _LENGTH.unpack_from(buffer, position)
            end = position + 4 + length
            if end > len(buffer):
                break
            # Both ends are ours and exchange plain values: reading them runs no code.
            with memoryview(buffer) as view, view[position + 4 : end] as content:
                message: tuple[Any, ...] = marshal.loads(content)  # noqa: S302
            position = end
            yield message
        del buffer[:position]

    def _read(self) -> bytes:
        try:
            if not _CARRIES_FILES:
                return self._socket.recv(_READ_BYTES)
            data, ancillary, _, _ = self._socket.recvmsg(
                _READ_BYTES, socket.CMSG_SPACE(_MOST_FILES * 4)
            )
        except OSError:
            return b""
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                files = array.array("i")
                files.frombytes(content[: len(content) - len(content) % files.itemsize])
                self._files.extend(files)
        return data

    def next_file(self) -> int:
        """The next file that came along; the caller closes it."""
        return self._files.popleft()

    def close(self) -> None:
        """Hang up. Who waits in `receive` is told."""
        with self._lock:
            self._closed = True
        with contextlib.suppress(OSError):  # the other side may have hung up already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        _close_files(self._files)
        self._files.clear()


def _close_files(files: Sequence[int] | deque[int]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.close(file)
