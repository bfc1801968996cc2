"""The workers that share a load: one thread at first, more processes when that is too slow.

    WorkerPool --commands--> workers --reports--> LevelMeasurement: the timestamps of one window

A window holds the requests that were answered within it, by whichever worker; what a worker reports
beyond its end belongs to the next window. All workers read the same clock.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Listener
from time import perf_counter_ns
from typing import Any, TypeVar

import numpy as np

from shoal.perf import worker
from shoal.perf.connection import LoadError
from shoal.perf.messages import (
    Count,
    CountCommand,
    DrainCommand,
    Load,
    LoadJob,
    ReportCommand,
    StopCommand,
    WorkerReport,
)
from shoal.perf.schedule import Schedule

PIPES_ARE_POLLABLE = os.name == "posix"  # like sockets; elsewhere sockets are used
T = TypeVar("T")
_ANSWER_SECS = 60
_STOP_SECS = 10
_START_SECS = 0.002  # from the command to the start of a schedule


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """The load of the whole pool: a number of requests in flight, or a schedule."""

    concurrency: int = 0
    schedule: Schedule | None = None
    limit: int | None = None
    each: int | None = None  # requests of each slot


@dataclass(slots=True)
class LevelMeasurement:
    """The requests answered from `begin_ns` to `end_ns`, and the CPU time they took."""

    begin_ns: int
    end_ns: int
    starts: np.ndarray
    ends: np.ndarray
    sequence_ids: np.ndarray
    moments: dict[int, list[int]] = field(default_factory=dict)  # of all responses, by start
    sequence_ends: int = 0
    first_sequence_end_ns: int | None = None
    responses: int = 0
    sent: int = 0
    delayed: int = 0
    send_ns: int = 0
    receive_ns: int = 0
    cpu_ns: tuple[int, ...] = ()  # by worker
    starved_ns: tuple[int, ...] = ()
    failures: Counter[str] = field(default_factory=Counter)  # by reason, where they are counted

    @property
    def duration_ns(self) -> int:
        """The length of the window."""
        return self.end_ns - self.begin_ns

    @property
    def busiest(self) -> float:
        """The CPU time of the busiest worker as a share of the window."""
        return max(self.cpu_ns, default=0) / max(1, self.duration_ns)

    @property
    def starved(self) -> float:
        """The longest wait of a worker for a CPU as a share of the window."""
        return max(self.starved_ns, default=0) / max(1, self.duration_ns)


class _WorkerHandle:
    """One worker, as the pool sees it."""

    def __init__(self, job: LoadJob, *, process: bool) -> None:
        listener: Listener | None = None
        end: Any
        if PIPES_ARE_POLLABLE:
            self._pipe, end = multiprocessing.Pipe()
        else:
            secret = secrets.token_bytes(16)
            listener = Listener(("127.0.0.1", 0), authkey=secret)
            end = (listener.address, secret)
        body = worker.run_process if process else worker.run
        make: Any = multiprocessing.get_context("spawn").Process if process else threading.Thread
        self._started: Any = make(target=body, args=(job, end), name="shoal-perf", daemon=True)
        self._started.start()
        if listener is not None:
            self._pipe = listener.accept()
            listener.close()
        elif process:
            end.close()

    def send(self, command: Any) -> None:
        """Send a command. Raises LoadError when the worker has ended."""
        try:
            self._pipe.send(command)
        except OSError:
            raise LoadError("a worker of the load ended unexpectedly") from None

    def receive(self, kind: type[T]) -> T:
        """The response to a command. Raises LoadError when there is none.

        Responses of another kind are skipped: Ctrl-C may have interrupted the wait for them.
        """
        try:
            while self._pipe.poll(_ANSWER_SECS):
                response = self._pipe.recv()
                if isinstance(response, kind):
                    return response
            raise LoadError(f"a worker of the load did not answer within {_ANSWER_SECS:g} seconds")
        except (EOFError, OSError):
            raise LoadError("a worker of the load ended unexpectedly") from None

    def stop(self) -> None:
        """End it and wait until it has ended."""
        with contextlib.suppress(OSError):  # it may have ended already
            self._pipe.send(StopCommand())
        self._started.join(_STOP_SECS)
        if self._started.is_alive() and not isinstance(self._started, threading.Thread):
            self._started.kill()
        self._pipe.close()


class WorkerPool:
    """All workers of a run. Not for several threads."""

    def __init__(self, job: LoadJob, workers: int = 1) -> None:
        """`workers` at first; a single one is a thread of this process."""
        self._job = job
        self._members = [_WorkerHandle(job, process=workers > 1) for _ in range(workers)]
        self._active = workers
        self._begin_ns = perf_counter_ns()
        self._early: list[WorkerReport] = []  # what belongs to the next window

    @property
    def workers(self) -> int:
        """How many workers share the load."""
        return self._active

    def resize(self, workers: int) -> None:
        """Share the next level among this many workers; others stay idle. Call `drain` before."""
        while len(self._members) < workers:
            self._members.append(_WorkerHandle(self._job, process=True))
        self._active = workers

    def start(self, level: LoadLevel) -> None:
        """Begin a level, or change to it. Raises LoadError."""
        self._begin_ns = perf_counter_ns()  # before a worker can have a response
        origin_ns = self._begin_ns + int(_START_SECS * 1e9)
        members = self._members[: self._active]
        shares = len(members)
        for share, member in enumerate(members):
            member.send(
                Load(
                    concurrency=_part(level.concurrency, share, shares),
                    schedule=level.schedule and level.schedule.part(share, shares),
                    origin_ns=origin_ns,
                    limit=None if level.limit is None else _part(level.limit, share, shares),
                    each=level.each,
                    share=share,
                    shares=shares,
                )
            )

    def count(self) -> tuple[int, bool]:
        """How many requests were finished since the last window, and whether none is in flight.

        Raises LoadError with what went wrong.
        """
        members = self._members[: self._active]
        for member in members:
            member.send(CountCommand())
        counts = [member.receive(Count) for member in members]
        _check([count.problem for count in counts])
        early = sum(len(report.ends) for report in self._early)
        return early + sum(count.finished for count in counts), all(c.idle for c in counts)

    def end_window(self, end_ns: int | None = None) -> LevelMeasurement:
        """End the current window; the next one begins. Raises LoadError."""
        end_ns = end_ns or perf_counter_ns()
        members = self._members[: self._active]
        for member in members:
            member.send(ReportCommand())
        reports = [member.receive(WorkerReport) for member in members]
        _check([report.problem for report in reports])
        measurement = self._collected([*self._early, *reports], self._begin_ns, end_ns)
        measurement.cpu_ns = tuple(report.cpu_ns for report in reports)
        measurement.starved_ns = tuple(report.starved_ns for report in reports)
        self._early = [_later(reports, end_ns)]
        self._begin_ns = end_ns
        return measurement

    def drain(self) -> None:
        """Let requests in flight finish; sequences are ended. Raises LoadError."""
        members = self._members[: self._active]
        for member in members:
            member.send(DrainCommand())
        problems = [member.receive(WorkerReport).problem for member in members]
        self._early = []
        _check(problems)

    def stop(self) -> None:
        """End all workers."""
        for member in self._members:
            member.stop()
        self._members.clear()

    def _collected(
        self, reports: Sequence[WorkerReport], begin_ns: int, end_ns: int
    ) -> LevelMeasurement:
        starts = np.concatenate([np.asarray(report.starts, np.int64) for report in reports])
        ends = np.concatenate([np.asarray(report.ends, np.int64) for report in reports])
        ids = np.concatenate([np.asarray(report.sequence_ids, np.int64) for report in reports])
        within = ends <= end_ns
        responses = np.concatenate([np.asarray(report.responses, np.int64) for report in reports])
        over = np.concatenate([np.asarray(report.sequence_ends, np.int64) for report in reports])
        return LevelMeasurement(
            begin_ns,
            end_ns,
            starts[within],
            ends[within],
            ids[within] if len(ids) else ids,
            moments={start: each for report in reports for start, each in report.moments.items()},
            sequence_ends=int((over <= end_ns).sum()),
            first_sequence_end_ns=int(over.min()) if len(over) else None,
            # Only of requests within the window: others may have been answered since.
            responses=int(responses[within].sum() if len(responses) else within.sum()),
            sent=sum(report.sent for report in reports),
            delayed=sum(report.delayed for report in reports),
            send_ns=sum(report.send_ns for report in reports),
            receive_ns=sum(report.receive_ns for report in reports),
            failures=sum((report.failures for report in reports), Counter()),
        )


def _part(whole: int, share: int, shares: int) -> int:
    """One share of a number; the shares add up to it."""
    return whole // shares + (share < whole % shares)


def _later(reports: Sequence[WorkerReport], end_ns: int) -> WorkerReport:
    """What was finished after the end of a window."""
    later = WorkerReport()
    for report in reports:
        for index in np.flatnonzero(np.asarray(report.ends, np.int64) > end_ns).tolist():
            start = report.starts[index]
            later.starts.append(start)
            later.ends.append(report.ends[index])
            if report.sequence_ids:
                later.sequence_ids.append(report.sequence_ids[index])
            if report.responses:
                later.responses.append(report.responses[index])
            if start in report.moments:
                later.moments[start] = report.moments[start]
        later.sequence_ends.extend(moment for moment in report.sequence_ends if moment > end_ns)
    return later


def _check(problems: Sequence[str]) -> None:
    for problem in problems:
        if problem:
            raise LoadError(problem)


def pause(secs: float) -> None:
    """Wait while the load continues."""
    time.sleep(secs)
