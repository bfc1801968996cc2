"""What front ends count, brought together in the engine process: one truth for metrics and console.

    scrape, console --> refresh: every front end reports --> connections, keys, errors, processes

A front end that does not answer counts with its last report, one that has ended with what it had
counted by then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from shoal.core.readiness import Readiness
from shoal.engine.linked.frontend import Frontend
from shoal.engine.linked.service import EngineService
from shoal.statistics.keys import KeyCounts
from shoal.statistics.machine import Machine, MachineReading, ProcessFigures
from shoal.statistics.process import ServerProcesses
from shoal.statistics.recent_errors import ErrorEntry, recent_errors
from shoal.statistics.server import ServerReading

Report = dict[str, Any]  # see `frontend`


class FrontendReports:
    """The reports of all front ends. `take` belongs to the loop's thread; others to any."""

    def __init__(self, readiness: Callable[[], Readiness], max_buffered_bytes: int) -> None:
        self._readiness = readiness
        self._max_buffered_bytes = max_buffered_bytes
        self._service: EngineService | None = None
        self._pids = {"supervisor": os.getppid(), "engine": os.getpid()}
        self._names: dict[Frontend, str] = {}
        self._last: dict[Frontend, Report] = {}
        self._ended_refused = 0
        self._ended_keys: dict[str, KeyCounts] = {}
        self.processes = ServerProcesses(lambda: dict(self._pids))  # for the metrics
        self._processes = ServerProcesses(lambda: dict(self._pids))  # for the console
        self._machine = Machine()

    def follow(self, service: EngineService, frontend: Frontend, name: str, pid: int) -> None:
        """Use the reports of a front end from now on. On the loop's thread."""
        self._service = service
        self._pids[name] = pid
        self._names[frontend] = name
        frontend.on_report = partial(self._take, frontend)
        frontend.on_end = partial(self._end, frontend)

    def _take(self, frontend: Frontend, report: Report) -> None:
        self._last[frontend] = report
        entries = [ErrorEntry(*entry) for entry in report["errors"]]
        recent_errors.merge(entries, report["error_counts"])

    def _end(self, frontend: Frontend) -> None:
        name = self._names.pop(frontend)
        if name not in self._names.values():  # the one in its place may be connected already
            del self._pids[name]
        last = self._last.pop(frontend, None)
        if last is not None:
            self._ended_refused += last["refused"]
            for values in last["keys"]:
                counted = KeyCounts(*values)
                counted.in_flight = 0
                _add(self._ended_keys, counted)

    def refresh(self) -> None:
        """Have all front ends report. Blocks for a moment."""
        if self._service is not None:
            self._service.ask_for_reports()

    def server(self) -> ServerReading:
        """The server as a whole, from the last reports."""
        readiness = self._readiness()
        reports = self._reports()
        connections: dict[str, int] = {}
        for last in reports.values():
            for protocol, count in last["connections"].items():
                connections[protocol] = connections.get(protocol, 0) + count
        return ServerReading(
            ready=readiness.ready,
            warnings=sum(not problem.blocks for problem in readiness.problems),
            connections=connections,
            connections_refused=self._ended_refused + sum(r["refused"] for r in reports.values()),
            max_connections=max([r["max_connections"] for r in reports.values()], default=0),
            buffered_bytes=sum(r["buffered_bytes"] for r in reports.values()),
            max_buffered_bytes=self._max_buffered_bytes,
            by_process=_connections(reports),
        )

    def _reports(self) -> dict[str, Report]:
        """The last report of each front end that is connected, by its name."""
        names = dict(self._names)
        return {
            names[frontend]: last
            for frontend, last in list(self._last.items())
            if frontend in names
        }

    def keys(self) -> list[KeyCounts]:
        """The use of keys, from the last reports."""
        total: dict[str, KeyCounts] = {}
        for counted in list(self._ended_keys.values()):
            _add(total, counted)
        for last in list(self._last.values()):
            for values in last["keys"]:
                _add(total, KeyCounts(*values))
        return list(total.values())

    def machine(self) -> MachineReading:
        """The machine, and what all processes of the server use of it."""
        pids = dict(self._pids)
        readings = self._processes.read()
        process = self._processes.total(readings)
        connections = _connections(self._reports())
        return replace(
            self._machine.read(),
            process_resident_bytes=process.resident_bytes,
            process_cpu_secs=process.cpu_secs,
            processes=tuple(
                [
                    ProcessFigures(
                        name, pids[name], one.cpu_secs, one.resident_bytes, connections.get(name)
                    )
                    for name, one in readings.items()
                    if name in pids
                ]
            ),
        )


def _connections(reports: Mapping[str, Report]) -> dict[str, int]:
    """The open connections of each front end."""
    return {name: sum(last["connections"].values()) for name, last in reports.items()}


def _add(total: dict[str, KeyCounts], counted: KeyCounts) -> None:
    """Add the counts of a key to those of the same name."""
    known = total.setdefault(counted.name, KeyCounts(counted.name))
    known.requests += counted.requests
    known.received_bytes += counted.received_bytes
    known.sent_bytes += counted.sent_bytes
    known.in_flight += counted.in_flight
    for reason, count in counted.refused.items():
        known.refused[reason] = known.refused.get(reason, 0) + count
