"""The engine process: repository, models and queues; its clients are the front ends."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any

import psutil

from shoal import settings
from shoal.engine.linked.service import EngineService
from shoal.errors import ShoalError
from shoal.link import failure
from shoal.link.link import Link
from shoal.processes import journal
from shoal.processes.child import Control, Start, run_child
from shoal.processes.journal import Journal
from shoal.processes.reports import FrontendReports
from shoal.reloads import Reloads
from shoal.serving import Serving
from shoal.statistics.machine import attempt

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
    calls: asyncio.Queue[journal.Call] = asyncio.Queue()
    journaled = Journal(engine, lambda *call: control.send("controlled", *call))
    reports = FrontendReports(engine.readiness, options.max_buffered_bytes)
    keys = reports.keys if options.requires_keys else None
    metrics = serving.metrics(reports.server, keys, reports.processes)
    console = settings.console(engine, options, reports.machine, _started_ms())

    def render() -> bytes:
        reports.refresh()
        return metrics.render()

    def collect(errors_after: int) -> dict[str, Any]:
        assert console is not None  # front ends do not ask for one that is switched off
        reports.refresh()
        return console.collect(errors_after)

    service = EngineService(
        engine,
        serving.loop,
        control=journaled,
        methods={"metrics": render, "console": collect},
        max_unread_bytes=options.max_buffered_bytes,
    )
    serving.repository.on_change(service.model_changed)

    def connect(name: str, pid: int) -> None:
        frontend = service.connect(Link(socket.socket(fileno=control.take_file())))
        reports.follow(service, frontend, name, pid)

    def stop(secs: float) -> None:
        if not stopped.done():
            stopped.set_result(secs)

    control = Control(
        start,
        {
            "link": connect,
            "repeat": calls.put_nowait,
            "begin_exit": engine.begin_exit,
            "reload": reloads.request,
            "stop": stop,
        },
    )
    reloads.add("the log file", log.reopen)
    loading = asyncio.ensure_future(_load(serving, control, calls, start.more))
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


async def _load(
    serving: Serving, control: Control, calls: asyncio.Queue[journal.Call], count: int
) -> None:
    """Load the models of the start, and those that clients had loaded when another engine ended."""
    try:
        settings.check_repositories(serving.options)
        index = await serving.load()
        repeated = [await calls.get() for _ in range(count)]
        await asyncio.to_thread(Journal.replay, serving.engine, repeated)
    except ShoalError as error:
        control.send("loaded", failure.pack(error), list(getattr(error, "reasons", ())), [])
    except Exception as error:
        logger.exception("the server failed to start")
        control.send("loaded", failure.pack(error), [], [])
    else:
        ready = serving.engine.ready()
        logger.info("the server is %s", "ready" if ready else "up, but not ready")
        control.send("loaded", None, [], index)


def _started_ms() -> int:
    """When the supervisor was started, in milliseconds since the epoch."""
    started = attempt(lambda: psutil.Process(os.getppid()).create_time())
    return int((started or 0) * 1000)
