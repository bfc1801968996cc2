"""Several texts at once: their pieces in the order in which they come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


async def merged(sources: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """What all sources give. The first that raises ends all of them, with what it raised.

    When this is closed early, so are they.
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
            came = await arrived.get()
            if isinstance(came, Exception):
                raise came
            if came is None:
                left -= 1
            else:
                yield came
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
