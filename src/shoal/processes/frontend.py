"""A front-end process: the ports of a server, with the engine in another process."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from dataclasses import astuple
from functools import partial
from typing import Any

from shoal import settings
from shoal.backends.registry import BackendRegistry
from shoal.core.inbox import LoopInbox
from shoal.core.readiness import Readiness
from shoal.engine.linked.buffers import SharedBufferPool
from shoal.engine.linked.client import LinkedEngine
from shoal.engine.linked.replicas import ReplicaLoader
from shoal.frontends import opening
from shoal.frontends.console.state import LinkedConsole
from shoal.frontends.shared_names import NO_FILE
from shoal.frontends.sockets import inherit
from shoal.instance import device
from shoal.instance.inline import LoopHandle
from shoal.link.counters import SharedCounters
from shoal.link.link import Link
from shoal.ports import Ports
from shoal.processes.child import Control, Start, run_child
from shoal.processes.names import Entry, LinkedNames
from shoal.processes.reports import Report
from shoal.reloads import Reloads
from shoal.repository import memory
from shoal.statistics.recent_errors import recent_errors
from shoal.tasks.workers import Workers

_NOTHING = Readiness(ready=False, problems=())  # only the engine knows


def main(connection: str) -> None:
    """Run the process; `shoal.link.bootstrap` calls it."""
    run_child(connection, _serve)


async def _serve(start: Start) -> None:
    options = start.options
    sockets, known_names, counting = start.more
    for place, numbers in sockets:
        inherit(place, [socket.socket(fileno=number) for number in numbers])
    loop = asyncio.get_running_loop()
    handle = LoopHandle(polls_for_lone_client=device.available_cores() > 1)
    handle.bind(loop)
    inbox = LoopInbox(loop, handle.after_reading, handle.after_batches)
    counters = SharedCounters(*counting)
    cores = max(1, device.available_cores() // counters.processes)  # those of one front end
    workers = Workers(max(2, cores))
    engine = LinkedEngine(
        server_id=options.id,
        has_gpus=bool(device.gpus()),
        workers=lambda: workers,
        log=start.log,
        report=lambda: _report(ports),
        load_replica=ReplicaLoader(
            settings.frontend_context(options, handle),
            BackendRegistry(directory=options.backend_directory),
            cores,
        ),
    )
    reloads = Reloads()
    names = LinkedNames([Entry(*entry) for entry in known_names])
    ports = Ports(
        options,
        engine,
        reloads=reloads,
        log=start.log,
        render_metrics=(lambda: engine.call("metrics")) if options.allow_metrics else None,
        console=LinkedConsole(partial(engine.call, "console")) if options.console else None,
        pool=SharedBufferPool(engine),
        names=names,
        counters=counters,
    )
    stopped: asyncio.Future[tuple[float, float]] = loop.create_future()

    def connect() -> None:
        engine.connect(Link(socket.socket(fileno=control.take_file())), inbox)

    def stop(secs: float, drain_secs: float) -> None:
        if not stopped.done():
            stopped.set_result((secs, drain_secs))

    def loaded(index: list[dict[str, str]], logs: bool) -> None:
        ports.models_loaded(index)
        if logs:
            ports.log_services()

    def registered(change: int, kind: str, name: str, value: Any, has_file: bool) -> None:
        file = control.take_file() if has_file else NO_FILE
        names.registered(change, Entry(kind, name, value, file))

    control = Control(
        start,
        {
            "link": connect,
            "reload": reloads.request,
            "loaded": loaded,
            "stop": stop,
            "registered": registered,
            "leaving": names.leaving,
            "unregistered": names.unregistered,
            "settled": names.settled,
        },
    )
    engine.on_lost = lambda: control.send("unlinked")
    names.send, names.send_file = control.send, control.send_file
    logging.getLogger(opening.__name__).setLevel(logging.WARNING)  # the supervisor has logged it
    memory.give_memory_back()  # what imports have left behind is up to a fifth of it
    await ports.listen(inbox)
    control.send("listening")
    secs, drain_secs = await stopped
    engine.begin_exit()
    await ports.announce_stop(drain_secs)
    deadline = loop.time() + secs
    clean = await ports.finish_requests(deadline, engine.in_flight)
    if not clean:
        await ports.give_up()
    reloads.close()
    handle.release()
    await ports.close()
    engine.close()
    workers.close()
    control.send("stopped", clean)
    os._exit(0)


def _report(ports: Ports) -> Report:
    """What this front end has counted; errors are those since the last report."""
    reading = ports.reading(_NOTHING)
    entries, counts = recent_errors.drain()
    return {
        "connections": dict(reading.connections),
        "refused": reading.connections_refused,
        "max_connections": reading.max_connections,
        "buffered_bytes": reading.buffered_bytes,
        "keys": [] if ports.access is None else [astuple(one) for one in ports.access.read()],
        "errors": [astuple(entry) for entry in entries],
        "error_counts": counts,
    }
