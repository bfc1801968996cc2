"""Waits for a model to be loaded without blocking the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from shoal.core.model_loading import ModelLoading
from shoal.errors import QueueRejected, ShoalError

Found = TypeVar("Found")


async def once_loaded(find: Callable[[], Found]) -> Found:
    """The result of `find`, after the model has been loaded if that happens on demand."""
    while True:
        try:
            return find()
        except ModelLoading as pending:
            await _until_loaded(pending)


async def _until_loaded(pending: ModelLoading) -> None:
    """Wait until a model is loaded; raises the error if that fails."""
    settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def resume(error: ShoalError | None) -> None:
        if settled.done():
            return
        if error is None:
            settled.set_result(None)
        else:
            settled.set_exception(error)

    take_back = when_loaded(pending, resume)
    try:
        await settled
    finally:
        take_back()


def when_loaded(
    pending: ModelLoading, resume: Callable[[ShoalError | None], None], timeout_us: int = 0
) -> Callable[[], None]:
    """Have the model loaded and `resume` called, on this loop, with why that failed if it did.

    With `timeout_us`, the request's own, it waits no longer than that. What this returns takes it
    back: then `resume` is not called any more. It must not raise.
    """
    loop = asyncio.get_running_loop()
    active = True
    timer: asyncio.TimerHandle | None = None

    def on_loop(error: ShoalError | None) -> None:
        if active:
            if timer is not None:
                timer.cancel()
            resume(error)

    def expired() -> None:
        cancel()
        resume(QueueRejected("Request timeout expired"))  # as the queue does

    def settled(error: ShoalError | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(on_loop, error)

    leave = pending.then(settled)
    if timeout_us:
        timer = loop.call_later(timeout_us / 1e6, expired)

    def cancel() -> None:
        nonlocal active
        active = False
        if timer is not None:
            timer.cancel()
        leave()

    return cancel
