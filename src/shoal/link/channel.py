"""Messages over a socket: a length, then plain values, with optional file descriptors.

    send(message, files) --> | uint32 length | marshal | --> receive() --> messages

Sending never blocks: a thread that exists only while there is a backlog sends what the socket does
not accept at once. `receive` reads once, so it does not block when the socket is readable. An event
loop may therefore use both: `loop.add_reader(channel.fileno(), ...)`. A sender that may be faster
than the other side limits its backlog with `wait_for_room`, or by `backlog_bytes` on an event loop.
"""

from __future__ import annotations

import array
import contextlib
import marshal
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 16
MOST_BYTES = 1 << 30  # of a message; a longer one is damaged
_MOST_FILES = 64  # per call; the system accepts about 250
_CARRIES_FILES = hasattr(socket, "SCM_RIGHTS")
_FILES_BYTES = socket.CMSG_SPACE(_MOST_FILES * 4) if _CARRIES_FILES else 0
_AT_ONCE = getattr(socket, "MSG_DONTWAIT", 0)


class ChannelClosed(Exception):
    """The other side is gone, or sends what cannot be read."""


class MessageChannel:
    """One end. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.setblocking(True)
        self._lock = threading.Lock()  # guards the messages to send, and their order
        self._backlog_sent = threading.Condition(self._lock)
        self._held: list[bytes] = []  # to be sent with the next message
        self._held_files: list[int] = []
        self._backlog: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._backlog_bytes = 0
        self._accepted_at = 0.0  # when the other side last accepted some of the backlog
        self._flushing = False
        self._closed = False
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0  # incomplete messages in the buffer
        self._files: deque[int] = deque()  # received files, in the order of their messages

    def fileno(self) -> int:
        """The socket, to wait until it is readable."""
        return self._socket.fileno()

    @property
    def backlog_bytes(self) -> int:
        """How much the other side has still to accept."""
        return self._backlog_bytes

    @property
    def silent_secs(self) -> float:
        """For how long the other side has accepted nothing of the backlog; 0 without one."""
        return time.monotonic() - self._accepted_at if self._flushing else 0.0

    def wait_for_room(self, most_bytes: int) -> None:
        """Wait until the backlog is at most `most_bytes`, or the other side is gone."""
        if self._backlog_bytes > most_bytes:
            with self._lock:
                self._backlog_sent.wait_for(
                    lambda: self._backlog_bytes <= most_bytes or self._closed
                )

    def send(self, message: tuple[Any, ...], files: Sequence[int] = (), *, more: bool) -> None:
        """Send plain values (numbers, text, bytes, lists, dicts) and open files, which are closed.

        With `more` it is sent together with the next message: waking the other side costs more
        than the message does. ChannelClosed if the other side is gone.
        """
        content = marshal.dumps(message, 4)
        with self._lock:
            if self._closed:
                _close_files(files)
                raise ChannelClosed
            held = self._held
            if not (files or more or held or self._flushing):  # most messages
                self._send_frame(_LENGTH.pack(len(content)) + content)
                return
            if held or more:
                held.append(_LENGTH.pack(len(content)))
                held.append(content)
                self._held_files.extend(files)
                if more and len(self._held_files) < _MOST_FILES:
                    return
                frame = memoryview(b"".join(held))
                files, self._held_files = self._held_files, []
                held.clear()
            else:
                frame = memoryview(_LENGTH.pack(len(content)) + content)
            self._send_or_queue(frame, files)

    def flush(self) -> None:
        """Send messages that wait for a next one, if there are any."""
        with self._lock:
            if not self._held or self._closed:
                return
            frame = memoryview(b"".join(self._held))
            files, self._held_files = self._held_files, []
            self._held.clear()
            self._send_or_queue(frame, files)

    def _send_frame(self, frame: bytes) -> None:
        """As `_send_or_queue`, for a frame without files when there is no backlog."""
        try:
            sent = self._socket.send(frame, _AT_ONCE)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._closed = True
            raise ChannelClosed from None
        if sent < len(frame):
            self._send_or_queue(memoryview(frame)[sent:], ())

    def _send_or_queue(self, frame: memoryview, files: Sequence[int]) -> None:
        """Send what the socket accepts, and the rest in the background. The lock is held."""
        if not self._flushing:
            frame, files = self._send_some(frame, files, _AT_ONCE)
        if not len(frame):
            return
        self._backlog.append((frame, files))
        self._backlog_bytes += len(frame)
        if not self._flushing:
            self._flushing = True
            self._accepted_at = time.monotonic()
            threading.Thread(target=self._flush, name="shoal-link-backlog", daemon=True).start()

    def _send_some(
        self, frame: memoryview, files: Sequence[int], flags: int
    ) -> tuple[memoryview, Sequence[int]]:
        """Send what the socket accepts; returns the rest. Closes the files after sending."""
        while len(frame):
            now, later = files[:_MOST_FILES], files[_MOST_FILES:]
            piece = frame[:1] if later else frame  # each group of files needs a byte of data
            try:
                if _CARRIES_FILES:
                    sent = self._socket.sendmsg([piece], _rights(now), flags)
                else:
                    sent = self._socket.send(piece)
            except BlockingIOError:
                if flags:
                    break
                # An event loop may have made the socket non-blocking for its own purposes.
                _wait_for_room(self._socket)
                continue
            except OSError:
                self._closed = True
                _close_files(files)
                raise ChannelClosed from None
            frame = frame[sent:]
            _close_files(now)
            files = later
        return frame, files

    def _flush(self) -> None:
        """Send the backlog, waiting for the other side."""
        while True:
            with self._lock:
                if not self._backlog:
                    self._flushing = False
                    return
                frame, files = self._backlog.popleft()
                size = len(frame)
            try:
                self._send_some(frame, files, 0)
            except ChannelClosed:
                with self._lock:
                    for _, left in self._backlog:
                        _close_files(left)
                    self._backlog.clear()
                    self._backlog_bytes = 0
                    self._flushing = False
                    self._backlog_sent.notify_all()
                return
            with self._lock:
                self._backlog_bytes -= size
                self._accepted_at = time.monotonic()
                self._backlog_sent.notify_all()

    def receive(self) -> list[tuple[Any, ...]]:
        """Read once, waiting for something to read, and return complete messages.

        ChannelClosed at the end, or after a damaged message.
        """
        self._read()
        messages: list[tuple[Any, ...]] = []
        view, filled, position, wanted = self._view, self._filled, 0, 0
        while filled - position >= 4:
            (length,) = _LENGTH.unpack_from(view, position)
            end = position + 4 + length
            if end > filled:
                if length > MOST_BYTES:
                    raise ChannelClosed
                wanted = 4 + length
                break
            try:
                # Both ends are ours and exchange plain values: reading them runs no code.
                messages.append(marshal.loads(view[position + 4 : end]))  # noqa: S302
            except (EOFError, TypeError, ValueError):
                raise ChannelClosed from None
            position = end
        if position == filled and len(view) == _READ_BYTES:
            self._filled = 0
        elif position or wanted > len(view):
            self._keep(position, wanted)
        return messages

    def _keep(self, start: int, wanted: int) -> None:
        """Move the incomplete message to the front, with room for all of it."""
        rest = bytes(self._view[start : self._filled])
        if wanted > len(self._buffer) or len(self._buffer) > _READ_BYTES >= wanted:
            self._buffer = bytearray(max(wanted, _READ_BYTES))
            self._view = memoryview(self._buffer)
        self._view[: len(rest)] = rest
        self._filled = len(rest)

    def _read(self) -> None:
        """Wait for bytes and files; ChannelClosed at the end."""
        room = self._view[self._filled :] if self._filled else self._view
        ancillary: list[tuple[int, int, bytes]] = []
        try:
            if _CARRIES_FILES:
                size, ancillary, _, _ = self._socket.recvmsg_into([room], _FILES_BYTES)
            else:
                size = self._socket.recv_into(room)
        except BlockingIOError:  # there is nothing to read after all
            return
        except OSError:
            size = 0
        if not size:
            raise ChannelClosed
        self._filled += size
        if ancillary:
            self._take_files(ancillary)

    def _take_files(self, ancillary: Sequence[tuple[int, int, bytes]]) -> None:
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                files = array.array("i")
                files.frombytes(content[: len(content) - len(content) % files.itemsize])
                self._files.extend(files)

    def next_file(self) -> int:
        """The next received file; the caller closes it."""
        return self._files.popleft()

    def hang_up(self) -> None:
        """End it. What has arrived can still be received; then waiting threads are notified."""
        with self._lock:
            self._closed = True
            self._held.clear()
            _close_files(self._held_files)
            self._held_files.clear()
            self._backlog_sent.notify_all()
        with contextlib.suppress(OSError):  # the other side may have closed it before
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. No thread may be receiving."""
        self.hang_up()
        self._socket.close()
        _close_files(self._files)
        self._files.clear()


def _wait_for_room(connection: socket.socket) -> None:
    """Wait until the socket accepts bytes, or has ended."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_WRITE)
        selector.select()


def _rights(files: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []


def _close_files(files: Sequence[int] | deque[int]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.close(file)
