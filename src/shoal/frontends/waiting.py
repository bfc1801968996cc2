"""Waiting for a model to be loaded without keeping the event loop from anything else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from shoal.core.model_loading import ModelLoading
from shoal.errors import ShoalError


def when_loaded(
    pending: ModelLoading, resume: Callable[[ShoalError | None], None]
) -> Callable[[], None]:
    """Have the model loaded and `resume` called, on this loop, with why that failed if it did.

    What this returns takes it back: then `resume` is not called any more. It must not raise.
    """
    loop = asyncio.get_running_loop()
    wanted = True

    def on_loop(error: ShoalError | None) -> None:
        if wanted:
            resume(error)

    def settled(error: ShoalError | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(on_loop, error)

    leave = pending.then(settled)

    def take_back() -> None:
        nonlocal wanted
        wanted = False
        leave()

    return take_back
