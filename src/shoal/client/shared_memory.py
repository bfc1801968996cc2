"""Shared memory that is registered with a server for the length of a `with` block.

with client.shared_memory("images", 1 << 20) as region:
    result = client.infer("model", {"x": region.put(x)}, outputs={"y": region.place(4000)})
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

from shoal.client import control
from shoal.client.errors import ClientError
from shoal.client.region import Region
from shoal.client.steps import ClientSession, Steps


@contextlib.contextmanager
def registered(
    session: ClientSession, run: Callable[[Steps[Any]], Any], region: Region
) -> Iterator[Region]:
    """For `Client`. An error inside the block takes precedence over one of unregistering."""
    try:
        run(control.register(session, region.name, region.key, region.byte_size))
        region.unlink()  # the server has it open, so the name is no longer needed
        try:
            yield region
        except BaseException:
            with contextlib.suppress(ClientError):
                run(control.unregister(session, region.name))
            raise
        run(control.unregister(session, region.name))
    finally:
        region.close()


@contextlib.asynccontextmanager
async def async_registered(
    session: ClientSession, run: Callable[[Steps[Any]], Coroutine[Any, Any, Any]], region: Region
) -> AsyncIterator[Region]:
    """The same for `AsyncClient`."""
    try:
        await run(control.register(session, region.name, region.key, region.byte_size))
        region.unlink()
        try:
            yield region
        except BaseException:
            with contextlib.suppress(ClientError):
                await run(control.unregister(session, region.name))
            raise
        await run(control.unregister(session, region.name))
    finally:
        region.close()
