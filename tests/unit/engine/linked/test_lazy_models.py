"""Models that are loaded by requests of front ends."""

from __future__ import annotations

import asyncio

import pytest

from shoal.frontends.waiting import once_loaded


@pytest.mark.parametrize("leaves", ["client", "front end"])
def test_who_has_left_does_not_wait_for_a_load(lazy_world, leaves):
    world = lazy_world
    world.backend.load_gate.clear()
    loads = world.repository._lazy._loads

    async def leave():
        first, second = world.frontends
        asked = [asyncio.ensure_future(once_loaded(lambda: first.find("held"))) for _ in range(2)]
        kept = asyncio.ensure_future(once_loaded(lambda: second.find("held")))
        await world.until(lambda: "held" in loads._loads)
        load = loads._loads["held"]
        await world.until(lambda: len(load.waiting) == 3)
        if leaves == "client":
            asked[0].cancel()
            await world.until(lambda: len(load.waiting) == 2)
        else:
            first.close()
            await world.until(lambda: len(load.waiting) == 1)
        world.backend.load_gate.set()
        assert (await kept).version == 1
        return await asyncio.gather(*asked, return_exceptions=True)

    ends = [type(each).__name__ for each in world.run(leave())]
    expected = {"client": ["CancelledError", "LinkedModel"], "front end": ["Unavailable"] * 2}
    assert ends == expected[leaves]
