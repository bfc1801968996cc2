"""One engine and two front ends in one process, each at its own end of a socket pair."""

from __future__ import annotations

import asyncio
import socket

import pytest

from shoal.backends.registry import BackendRegistry
from shoal.config.options.trace import TraceOptions
from shoal.core.inbox import LoopInbox
from shoal.engine.linked.client import LinkedEngine
from shoal.engine.linked.service import EngineService
from shoal.engine.local import LocalEngine
from shoal.instance.inline import LoopHandle
from shoal.link.link import Link
from shoal.logs import Log
from shoal.repository.loader import RepositorySettings
from shoal.repository.preparation import PreparationSettings
from shoal.repository.repository import ModelRepository
from shoal.statistics.tracer import Tracer
from shoal.tasks.workers import Workers
from shoal.testing import WAIT_SECS
from tests.support.fakes import FakeBackend, HeldLoads
from tests.support.repositories import add_fake


class LinkedWorld:
    """Coroutines of a test run on its loop, with `run`."""

    def __init__(self, folder, control_mode="explicit", load_replica=None):
        """`load_replica` is called for each front end; see `LinkedEngine`."""
        self.load_replica = load_replica or (lambda _world: None)
        self.loop = asyncio.new_event_loop()
        self.backend = HeldLoads() if control_mode == "lazy" else FakeBackend()
        self.workers = Workers(1)
        self.trace_file = folder / "trace.json"
        self.models = folder / "models"
        add_fake(self.models, "held", dims="16")
        handle = self.handle = LoopHandle()
        handle.bind(self.loop)
        self.inbox = LoopInbox(self.loop, handle.after_reading, handle.after_batches)
        self.repository = ModelRepository(
            RepositorySettings(
                paths=[self.models],
                control_mode=control_mode,
                load_models=["*"] if control_mode == "explicit" else [],
                preparation=PreparationSettings(
                    loop=handle,
                    execution="threads",
                    task_workers=lambda: self.workers,
                    backends=BackendRegistry({"fake": lambda: self.backend}),
                ),
            )
        )
        tracer = Tracer(TraceOptions(file=str(self.trace_file), rate=1))
        self.engine = LocalEngine(self.repository, tracer=tracer, log=Log())
        self.frontends: list[LinkedEngine] = []
        self.run(self._start())

    async def _start(self):
        assert await asyncio.to_thread(self.repository.start) == {}
        self.engine.started()
        self.service = EngineService(self.engine, self.handle)
        self.repository.on_change(self.service.model_changed)
        for _ in range(2):
            ours, theirs = socket.socketpair()
            self.service.connect(Link(ours))
            frontend = LinkedEngine(
                server_id="triton",
                has_gpus=False,
                workers=lambda: self.workers,
                log=Log(),
                load_replica=self.load_replica(self),
            )
            frontend.connect(Link(theirs), self.inbox)
            self.frontends.append(frontend)

    def run(self, coroutine):
        """The result of a coroutine, which must end within the time of a test."""
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, WAIT_SECS))

    def blocking(self, work, *arguments):
        """Call what blocks on a thread, while the loop runs."""
        return self.run(asyncio.to_thread(work, *arguments))

    async def until(self, condition):
        """Let the loop run until a condition holds, which only the loop can change."""
        while not condition():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)

    def close(self):
        """End everything."""
        self.backend.gate.set()
        self.run(self._stop())
        self.loop.close()

    async def _stop(self):
        for frontend in self.frontends:
            frontend.close()
        self.service.close()
        await asyncio.to_thread(self.repository.stop)
        self.engine.tracer.close()
        self.workers.close()
        await self.loop.shutdown_default_executor()


@pytest.fixture
def world(tmp_path):
    made = LinkedWorld(tmp_path)
    yield made
    made.close()


@pytest.fixture
def lazy_world(tmp_path):
    """Its models are loaded by their first requests."""
    made = LinkedWorld(tmp_path, "lazy")
    yield made
    made.close()
