"""Concurrent calls of which all results are needed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def gather_or_cancel(calls: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """The results of all calls. The first error cancels the others and is raised."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
