"""`shoal.AsyncServer`: a server inside an asyncio program.

async with shoal.AsyncServer("models") as server:
    await server.infer("double", {"x": [[1, 2, 3]]})

The server has its own loop and threads, so its work does not block the caller's loop. Methods that
read files or wait for models run on threads.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from shoal.config.options import Options
from shoal.engine.local import LocalEngine
from shoal.inprocess import control, inference
from shoal.inprocess.addresses import Addresses
from shoal.inprocess.methods import awaiting, awaiting_infer, awaiting_stream
from shoal.inprocess.server import Server
from shoal.server import Server as LoopServer


class AsyncServer(Addresses):
    """The methods of `Server` as coroutines, for any number of tasks and loops."""

    def __init__(self, *models: Any, options: Options | None = None, **settings: Any) -> None:
        """Arguments as those of `Server`; or a `Server`, which this one then uses."""
        only = models[0] if len(models) == 1 else None
        self.server = (
            only if isinstance(only, Server) else Server(*models, options=options, **settings)
        )

    # ---- start and stop

    async def start(self) -> AsyncServer:
        """Listen and load; returns itself when the models are ready. Raises as `Server.start`."""
        await asyncio.to_thread(self.server.start)
        return self

    async def stop(self) -> bool:
        """Finish the requests in flight, unload and close; see `Server.stop`."""
        return await asyncio.to_thread(self.server.stop)

    async def __aenter__(self) -> AsyncServer:  # noqa: PYI034 - Python 3.10 has no Self
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def __repr__(self) -> str:
        """As `Server`."""
        return repr(self.server).replace("Server", "AsyncServer", 1)

    def _repr_html_(self) -> str:
        """As `Server`."""
        return self.server._repr_html_()

    # ---- inference: a task that is cancelled cancels its request

    infer = awaiting_infer(inference.prepare)
    stream = awaiting_stream(inference.prepare)

    # ---- status

    @property
    def live(self) -> bool:
        """Whether it runs."""
        return self.server.live

    @property
    def ready(self) -> bool:
        """Whether it runs and all its models are ready."""
        return self.server.ready

    problems = awaiting(control.problems)
    model_ready = awaiting(control.model_ready)
    server_metadata = awaiting(control.server_metadata)
    metadata = awaiting(control.metadata)
    config = awaiting(control.config)
    statistics = awaiting(control.statistics)
    explain = awaiting(control.explain)

    async def metrics(self) -> str:
        """The metrics of the server and its models, as Prometheus scrapes them."""
        return await asyncio.to_thread(self.server.metrics)

    # ---- the repositories

    index = awaiting(control.index)
    load = awaiting(control.load)
    unload = awaiting(control.unload)
    register_repository = awaiting(control.register_repository)
    unregister_repository = awaiting(control.unregister_repository)
    poll_repositories = awaiting(control.poll_repositories)

    # ---- settings

    trace_settings = awaiting(control.trace_settings)
    log_settings = awaiting(control.log_settings)

    @property
    def engine(self) -> LocalEngine:
        """The engine of the running server."""
        return self.server.engine

    def _running(self) -> LoopServer:
        return self.server._running()
