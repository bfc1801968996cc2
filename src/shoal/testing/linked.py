"""Servers whose frontends reach the engine through a link, for runs of tests in that mode.

    SHOAL_SERVERS=linked      in one process: its tests may still look inside
    SHOAL_SERVERS=processes   two front ends, an engine and a supervisor, as --frontend-processes=2

In the first mode the frontends have a `LinkedEngine`, as in a front-end process; its link ends at
an `EngineService` of the same event loop. A call that blocks the loop waits for itself, and fails.
"""

from __future__ import annotations

import socket
import unittest
from collections.abc import Sequence
from typing import Any

from shoal import settings
from shoal.backends.registry import BackendRegistry
from shoal.config.options import Options
from shoal.core.inbox import LoopInbox
from shoal.engine.linked.client import LinkedEngine
from shoal.engine.linked.service import EngineService
from shoal.instance import device
from shoal.link.link import Link
from shoal.logs import Log
from shoal.ports import Ports
from shoal.processes.supervisor import Supervisor
from shoal.server import Server
from shoal.tasks.workers import Workers


class ServerOfProcesses:
    """A server of several processes, as tests use a `Server`. Those that need more are skipped."""

    def __init__(
        self,
        options: Options,
        *,
        functions: Sequence[Any] = (),
        backends: BackendRegistry | None = None,
        log: Log | None = None,
    ) -> None:
        """See `Server`."""
        if functions or backends or log:
            raise unittest.SkipTest("has models, a backend or a log in its own process")
        if options.grpc_transport == "grpcio":
            raise unittest.SkipTest("--grpc-transport=grpcio is for one process")
        self.options = options
        self._supervisor: Supervisor | None = None

    def __getattr__(self, name: str) -> Any:
        """Ports; nothing else can be seen from here."""
        if name.endswith("_port") and self._supervisor is not None:
            return max(0, getattr(self._supervisor.options, name))  # below 0: not opened
        raise unittest.SkipTest(f"looks at {name}, which is in another process")

    @property
    def engine_pid(self) -> int:
        """The process that has the models."""
        assert self._supervisor is not None
        return self._supervisor.engine_pid

    async def start(self) -> None:
        """See `Server`."""
        self._supervisor = Supervisor(self.options, 2)
        await self._supervisor.start()

    async def stop(self) -> bool:
        """See `Server`."""
        return self._supervisor is None or await self._supervisor.stop()


class LinkedServer(Server):
    """A `Server` with a link between its ports and its models."""

    def __init__(
        self,
        options: Options,
        *,
        functions: Sequence[Any] = (),
        backends: BackendRegistry | None = None,
        log: Log | None = None,
    ) -> None:
        """See `Server`."""
        super().__init__(options, functions=functions, backends=backends, log=log)
        self._workers = Workers(device.available_cores())
        self._service: EngineService | None = None
        self.linked = LinkedEngine(
            server_id=options.id,
            has_gpus=bool(device.gpus()),
            workers=lambda: self._workers,
            log=log,
        )
        self.ports = Ports(
            options,
            self.linked,
            reloads=self.reloads,
            log=log,
            render_metrics=self._render_metrics if options.allow_metrics else None,
            console=settings.console(self.engine, options),
        )
        engine_begins_exit = self.engine.begin_exit

        def begin_exit() -> None:  # the supervisor tells both
            self.linked.begin_exit()
            engine_begins_exit()

        self.engine.begin_exit = begin_exit  # type: ignore[method-assign]
        access = self.ports.access
        self.metrics = self._serving.metrics(
            self.ports.read, access.read if access is not None else None
        )

    def _new_inbox(self) -> LoopInbox:
        inbox = super()._new_inbox()
        self._service = EngineService(self.engine, self._serving.loop)
        self.repository.on_change(self._service.model_changed)
        ours, theirs = socket.socketpair()
        self._service.connect(Link(ours))
        self.linked.connect(Link(theirs), inbox)
        return inbox

    async def stop(self) -> bool:
        """See `Server`."""
        clean = await super().stop()
        if self._service is not None:
            self._service.close()
        self.linked.close()
        self._workers.close()
        return clean
