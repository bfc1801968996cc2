"""Shared memory that a server knows for as long as a block runs.

with client.shared_memory("images", 1 << 20) as region:
    result = client.infer("model", {"x": region.put(x)}, outputs={"y": region.place(4000)})
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

from shoal.client import control
from shoal.client.errors import ClientError
from shoal.client.region import Region
from shoal.client.steps import Session, Steps


class SharedMemory:
    """A region of a `Client`: registered at the start of the block, forgotten at its end."""

    def __init__(self, session: Session, run: Callable[[Steps[Any]], Any], region: Region) -> None:
        self._session = session
        self._run = run
        self._region = region

    def __enter__(self) -> Region:
        """Register it. When that fails, nothing of it is left."""
        region = self._region
        try:
            self._run(control.register(self._session, region.name, region.key, region.byte_size))
        except BaseException:
            region.close()
            raise
        region.unlink()  # the server has it open: nothing is left behind, whatever happens
        return region

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            with contextlib.suppress(*(() if kind is None else (ClientError,))):
                self._run(control.unregister(self._session, self._region.name))
        finally:
            self._region.close()


class AsyncSharedMemory:
    """A region of an `AsyncClient`, likewise."""

    def __init__(
        self,
        session: Session,
        run: Callable[[Steps[Any]], Coroutine[Any, Any, Any]],
        region: Region,
    ) -> None:
        self._session = session
        self._run = run
        self._region = region

    async def __aenter__(self) -> Region:
        """Register it. When that fails, nothing of it is left."""
        region = self._region
        try:
            await self._run(
                control.register(self._session, region.name, region.key, region.byte_size)
            )
        except BaseException:
            region.close()
            raise
        region.unlink()
        return region

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            with contextlib.suppress(*(() if kind is None else (ClientError,))):
                await self._run(control.unregister(self._session, self._region.name))
        finally:
            self._region.close()
