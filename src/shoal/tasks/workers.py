"""Worker threads for the work of tasks before and after the model.

    event loop --await stage(item)--> [ queue ] --a thread takes several--> work
               <------------ one wake-up for all of them -------------'

Decoding a photo or tokenising a text takes longer than everything else the loop does for a request,
so it runs on threads. Where batches cost less than single items, a thread takes all that wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

Work = Callable[[Sequence[Item]], Sequence[Result | Exception]]


class Workers:
    """The threads that all tasks of a server share."""

    def __init__(self, threads: int) -> None:
        self.threads = max(1, threads)
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="shoal-task")

    def start(self, work: Callable[[], None]) -> None:
        """Run `work` on a thread. RuntimeError after `close`."""
        self._pool.submit(work)

    def close(self) -> None:
        """Accept no more work; work that has begun finishes."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class ThreadStage(Generic[Item, Result]):
    """One kind of work of one model. Called on the event loop, runs on the threads."""

    def __init__(
        self,
        workers: Workers,
        work: Work[Item, Result],
        count: Callable[[int, int], None],
        *,
        most: int = 1,
    ) -> None:
        """`count(items, elapsed_ns)` is called after each run of `work`."""
        self._workers = workers
        self._work = work
        self._count = count
        self._most = most
        self._lock = threading.Lock()  # guards _waiting and _busy
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._busy = 0  # threads that run this work, or are about to

    async def __call__(self, item: Item) -> Result:
        """Process the item. Cancelling this drops it, unless a thread has taken it already."""
        outcome: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.append((item, outcome))
            start = self._busy < self._workers.threads
            self._busy += start
        if start:
            self._workers.start(self._work_off_queue)
        return await outcome

    @property
    def waiting(self) -> int:
        """How many items no thread has taken yet."""
        return len(self._waiting)

    def _work_off_queue(self) -> None:
        while True:
            with self._lock:
                taken = [
                    self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))
                ]
                if not taken:
                    self._busy -= 1
                    return
            self._process([pair for pair in taken if not pair[1].cancelled()])

    def _process(self, taken: Sequence[tuple[Item, asyncio.Future[Result]]]) -> None:
        if not taken:
            return
        start_ns = time.monotonic_ns()
        try:
            results = self._work([item for item, _ in taken])
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            results = [error] * len(taken)
        self._count(len(taken), time.monotonic_ns() - start_ns)
        outcomes = [outcome for _, outcome in taken]
        with contextlib.suppress(RuntimeError):  # the loop is closed
            outcomes[0].get_loop().call_soon_threadsafe(_settle, outcomes, results)


def _settle(
    outcomes: Sequence[asyncio.Future[Result]], results: Sequence[Result | Exception]
) -> None:
    for outcome, result in zip(outcomes, results, strict=True):
        if outcome.done():  # cancelled meanwhile
            continue
        if isinstance(result, Exception):
            outcome.set_exception(result)
        else:
            outcome.set_result(result)
