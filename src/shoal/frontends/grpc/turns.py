"""Sharing the loop: how long one connection may work in a loop iteration, and what runs on threads.

    connection --slow frames--> over? --yes--> the rest in the next iteration, after the others
    message    --large, compressed--> a thread --> back on the loop, in the order of its call

Calls on the fast path are not counted: a whole read of them takes a few milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

TURN_NS = 5_000_000  # of one connection in one iteration
GAP_NS = 500_000  # between two reads of one turn at most: an event loop may read several times
_THREADS = 4
_Job: TypeAlias = tuple[Callable[[], Any], "Callable[[Future[Any]], None]"]


class Turns:
    """What is put off, to the next iteration or to threads; nothing is where there is no loop."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._waiting: dict[Hashable, deque[_Job]] = {}  # by connection; the first one runs

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back in the next iteration."""
        if self.loop is None:
            callback()
        else:
            self.loop.call_soon(callback)

    def on_thread(
        self, owner: Hashable, work: Callable[[], Any], done: Callable[[Future[Any]], None]
    ) -> None:
        """Run `work` on a thread and call `done` with its outcome, on the loop. What has the same
        `owner` runs one after the other, so that one connection does not occupy all threads."""
        if self.loop is None:
            future: Future[Any] = Future()
            _run(future, work)
            done(future)
            return
        jobs = self._waiting.setdefault(owner, deque())
        jobs.append((work, done))
        if len(jobs) == 1:
            self._start(owner, work)

    def close(self) -> None:
        """Start nothing more on threads."""
        self._waiting.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self, owner: Hashable, work: Callable[[], Any]) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="shoal-grpc-inflate")
        try:
            self._threads.submit(work).add_done_callback(partial(self._ended, owner))
        except RuntimeError:  # the server stops, and so do its calls
            self._waiting.pop(owner, None)

    def _ended(self, owner: Hashable, future: Future[Any]) -> None:
        """Called on the thread."""
        loop = self.loop
        assert loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: no client is left
            loop.call_soon_threadsafe(self._deliver, owner, future)

    def _deliver(self, owner: Hashable, future: Future[Any]) -> None:
        jobs = self._waiting.get(owner)
        if not jobs:  # closed meanwhile
            return
        _, done = jobs.popleft()
        if jobs:
            self._start(owner, jobs[0][0])
        else:
            del self._waiting[owner]
        if not future.cancelled():
            done(future)


def _run(future: Future[Any], work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except Exception as error:  # noqa: BLE001 - as on a thread
        future.set_exception(error)
