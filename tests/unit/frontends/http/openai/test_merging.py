"""Several streams at once."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from shoal.frontends.http.openai.merging import merged


class Source:
    """Gives what is put into it; knows whether it was closed."""

    def __init__(self, *items):
        self.queue = asyncio.Queue()
        self.closed = False
        for item in items:
            self.queue.put_nowait(item)

    async def read(self):
        try:
            while (item := await self.queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.closed = True


def test_items_come_in_the_order_in_which_they_arrive():
    async def scenario():
        first, second = Source(), Source("b1")
        found = []
        async with aclosing(merged([first.read(), second.read()])) as stream:
            async for item in stream:
                found.append(item)
                if item == "b1":
                    first.queue.put_nowait("a1")
                elif item == "a1":
                    first.queue.put_nowait(None)
                    second.queue.put_nowait(None)
        assert first.closed
        assert second.closed
        return found

    assert asyncio.run(scenario()) == ["b1", "a1"]


@pytest.mark.parametrize("others", [0, 1])
def test_what_one_raises_ends_all(others):
    async def scenario():
        broken, waiting = Source(ValueError("no")), [Source() for _ in range(others)]
        with pytest.raises(ValueError, match="no"):
            async for _ in merged([broken.read(), *(one.read() for one in waiting)]):
                pass
        return all(one.closed for one in waiting)

    assert asyncio.run(scenario())


def test_closing_early_closes_all():
    async def scenario():
        sources = [Source("a"), Source("b")]
        async with aclosing(merged([one.read() for one in sources])) as stream:
            await stream.__anext__()
            await stream.__anext__()
        return [one.closed for one in sources]

    assert asyncio.run(scenario()) == [True, True]
