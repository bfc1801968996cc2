"""Writes lines to a file on a thread of its own, for logs that may not slow anything down.

    write(line) --queue, bounded--> thread --one write for all of them--> file

A disk that is full or a file that cannot be opened loses lines, never a request: lost lines are
counted and reported in the server's log, at most once a minute. A line of which only a part could
be written is ended before the next one. `reopen` is for programs that rename log files.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from shoal.errors import InvalidArgument

logger = logging.getLogger(__name__)

STANDARD_OUTPUT = "-"
_PAUSE_SECS = 0.1  # between two writes: many lines are written at once
_MOST_LINES = 100_000  # that wait; beyond it they are lost
_REPORT_SECS = 60.0


class LineWriter:
    """One file, or standard output. `write` and `reopen` are thread-safe and never block."""

    def __init__(
        self, path: str, purpose: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`purpose` names the log in messages. Raises InvalidArgument if the file cannot be
        opened."""
        self._path = path
        self._purpose = purpose
        self._clock = clock
        self._lines: deque[str] = deque()
        self._lost = 0
        self._in_line = False  # only a part of the last line is in the file
        self._problem = ""
        self._reported = -_REPORT_SECS
        self._wake = threading.Event()
        self._reopen = False
        self._closing = threading.Event()
        try:
            self._file = self._open()
        except OSError as error:
            raise InvalidArgument(
                f"the {purpose} '{path}' cannot be written: {error.strerror}"
            ) from None
        self._thread = threading.Thread(target=self._run, name=f"shoal-{purpose}", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Write `line` soon; it has no newline at its end."""
        lines = self._lines
        if len(lines) < _MOST_LINES:
            lines.append(line)
            if not self._wake.is_set():
                self._wake.set()
        else:
            self._lost += 1

    def reopen(self) -> None:
        """Continue in a new file of the same name, if the old one was renamed.

        If it cannot be opened, that is logged and the old one is used on.
        """
        self._reopen = True
        self._wake.set()

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._closing.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            self._write_waiting()
            self._closing.wait(_PAUSE_SECS)
        self._write_waiting()
        if self._path != STANDARD_OUTPUT:
            self._attempt(self._file.close)

    def _write_waiting(self) -> None:
        if self._reopen:
            self._reopen = False
            if not self._attempt(self._open_again):
                logger.error("the %s goes on in its old file: %s", self._purpose, self._problem)
        waiting = self._lines
        lines = [waiting.popleft() for _ in range(len(waiting))]
        if lines:
            self._append(("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))
        if self._lost and self._clock() - self._reported >= _REPORT_SECS:
            self._reported = self._clock()
            lost, self._lost = self._lost, 0
            why = self._problem or "there were more than could be written"
            logger.error("%d lines of the %s were lost: %s", lost, self._purpose, why)

    def _append(self, lines: bytes) -> None:
        """Write as much as there is space for, and count the rest as lost."""
        ending = b"\n" if self._in_line else b""
        content = ending + lines
        written = 0

        def write() -> None:
            nonlocal written
            while written < len(content):  # a disk that becomes full takes a part first
                count = self._file.write(content[written:])
                self._file.flush()
                written += count

        if not self._attempt(write):
            self._lost += content.count(b"\n", max(written, len(ending)))
        if written:
            self._in_line = content[written - 1] != ord("\n")

    def _attempt(self, action: Callable[[], object]) -> bool:
        try:
            action()
        except (OSError, ValueError) as error:  # ValueError: the stream was closed by someone
            self._problem = str(error)
            return False
        return True

    def _open_again(self) -> None:
        if self._path != STANDARD_OUTPUT:
            old, self._file = self._file, self._open()
            self._in_line = False
            old.close()

    def _open(self) -> BinaryIO:
        if self._path == STANDARD_OUTPUT:
            return sys.stdout.buffer
        return Path(self._path).open("ab", buffering=0)
