"""An event loop in its own thread, for servers that must not block the caller's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """An event loop in its own thread."""

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
        """Run the callbacks that are due, then stop the loop and its threads."""
        self.run(_finish_loop(), timeout_secs)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of a server: uvloop's if it is installed, else asyncio's."""
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
