"""Threads for what tasks do before and after the model, and the way to them and back.

    event loop --await stage(item)--> [ waiting ] --a thread takes many--> work
               <------------- one wake-up for all of them ---------------'

Decoding a photo or splitting a text into tokens takes longer than everything else the loop does
for a request, so it happens here, beside the model. Where work on many items costs less than on
each of them, a thread takes all that wait.
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
        """Run `work` on a thread, soon. RuntimeError after `close`."""
        self._pool.submit(work)

    def close(self) -> None:
        """Take no more work; what is under way ends in its own time."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class ThreadStage(Generic[Item, Result]):
    """One kind of work of one model. Called on the event loop, works on the threads."""

    def __init__(
        self,
        workers: Workers,
        work: Work[Item, Result],
        count: Callable[[int, int], None],
        *,
        most: int = 1,
    ) -> None:
        """`count(items, elapsed_ns)` hears of each piece of work that was done."""
        self._workers = workers
        self._work = work
        self._count = count
        self._most = most
        self._lock = threading.Lock()  # guards _waiting and _busy
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._busy = 0  # threads that are at work here, or about to be

    async def __call__(self, item: Item) -> Result:
        """Have the item worked on. Cancelling this drops it, unless a thread has it already."""
        outcome: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.append((item, outcome))
            start = self._busy < self._workers.threads
            self._busy += start
        if start:
            self._workers.start(self._take_turns)
        return await outcome

    def _take_turns(self) -> None:
        while True:
            with self._lock:
                taken = [
                    self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))
                ]
                if not taken:
                    self._busy -= 1
                    return
            self._turn([pair for pair in taken if not pair[1].cancelled()])

    def _turn(self, taken: Sequence[tuple[Item, asyncio.Future[Result]]]) -> None:
        if not taken:
            return
        start_ns = time.monotonic_ns()
        try:
            results = self._work([item for item, _ in taken])
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            results = [error] * len(taken)
        self._count(len(taken), time.monotonic_ns() - start_ns)
        outcomes = [outcome for _, outcome in taken]
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
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
