"""The engine process: repository, models and queues; its clients are the front ends."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any

from shoal import settings
from shoal.engine.linked.service import EngineService
from shoal.errors import ShoalError
from shoal.link import failure
from shoal.link.link import Link
from shoal.processes.child import Control, Start, run_child
from shoal.processes.journal import Journal
from shoal.reloads import Reloads
from shoal.serving import Serving
from shoal.statistics.server import ServerReading

logger = logging.getLogger(__name__)


def main(connection: str) -> None:
    """Run the process; `shoal.link.bootstrap` calls it."""
    run_child(connection, _serve)


async def _serve(start: Start) -> None:
    options, log = start.options, start.log
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[float] = loop.create_future()
    serving = Serving(options, log=log)
    serving.loop.bind(loop)
    engine = serving.engine
    reloads = Reloads()
    journaled = Journal(engine, lambda *call: control.send("controlled", *call))
    metrics = serving.metrics(lambda: _reading(serving), None)
    service = EngineService(
        engine,
        serving.loop,
        control=journaled,
        methods={"metrics": metrics.render},
    )
    serving.repository.on_change(service.model_changed)

    def connect() -> None:
        service.connect(Link(socket.socket(fileno=control.take_file())))

    def stop(secs: float) -> None:
        if not stopped.done():
            stopped.set_result(secs)

    control = Control(
        start,
        {
            "link": connect,
            "begin_exit": engine.begin_exit,
            "reload": reloads.request,
            "stop": stop,
        },
    )
    reloads.add("the log file", log.reopen)
    loading = asyncio.ensure_future(_load(serving, control, start.more))
    secs = await stopped
    clean = await serving.unload(loop.time() + secs)
    loading.cancel()
    reloads.close()
    service.close()
    await serving.close(clean=clean)
    control.send("stopped", clean)
    if serving.left_behind:
        log.close()
        os._exit(0 if clean else 1)


async def _load(serving: Serving, control: Control, journal: Any) -> None:
    """Load the models of the start, and those that clients had loaded when another engine ended."""
    try:
        settings.check_repositories(serving.options.model_repository)
        await serving.load()
        await asyncio.to_thread(Journal.replay, serving.engine, journal)
    except ShoalError as error:
        control.send("loaded", failure.pack(error), list(getattr(error, "reasons", ())))
    except Exception as error:
        logger.exception("the server failed to start")
        control.send("loaded", failure.pack(error), [])
    else:
        control.send("loaded", None, [])


def _reading(serving: Serving) -> ServerReading:
    readiness = serving.engine.readiness()
    return ServerReading(
        ready=readiness.ready,
        warnings=sum(not problem.blocks for problem in readiness.problems),
        connections={},
        connections_refused=0,
        max_connections=0,
        buffered_bytes=0,
        max_buffered_bytes=0,
    )
