"""Several texts at once: their pieces in the order of arrival."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


async def merged(sources: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """The items of all sources. An error in one of them ends all, and is raised here.

    Closing this generator closes the sources.
    """
    if len(sources) == 1:
        async with contextlib.aclosing(sources[0]) as only:
            async for item in only:
                yield item
        return
    arrived: asyncio.Queue[Item | Exception | None] = asyncio.Queue()

    async def read(source: AsyncGenerator[Item, None]) -> None:
        try:
            async with contextlib.aclosing(source):
                async for item in source:
                    arrived.put_nowait(item)
        except Exception as error:  # noqa: BLE001 - raised where the items are read
            arrived.put_nowait(error)
        else:
            arrived.put_nowait(None)

    readers = [asyncio.ensure_future(read(source)) for source in sources]
    try:
        left = len(readers)
        while left:
            item_or_error = await arrived.get()
            if isinstance(item_or_error, Exception):
                raise item_or_error
            if item_or_error is None:
                left -= 1
            else:
                yield item_or_error
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
