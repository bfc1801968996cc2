"""An event loop in a thread of its own, for servers that must not have the caller's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(
        self, coroutine: Coroutine[Any, Any, Result], timeout_secs: float | None = None
    ) -> Result:
        """Run a coroutine on the loop and wait for it. Raises what it raises."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_secs)

    def close(self, timeout_secs: float | None = None) -> None:
        """Let callbacks that are due run, then end the loop and its threads."""
        self.run(_finish_loop(), timeout_secs)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The loop a server runs on: uvloop's where it exists, else what Python brings."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _finish_loop() -> None:
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
