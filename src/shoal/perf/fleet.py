"""The workers that share a load: one thread at first, processes beside it when that is too slow.

    Fleet --orders--> workers --cuts--> Harvest: one window's stamps of all of them

A window holds what was answered within it, whichever worker stamped it; what a worker hands over
beyond its end is kept for the next one. All of them read the same clock.
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
from shoal.perf.connection import LoadFailed
from shoal.perf.schedule import Schedule
from shoal.perf.worker import Count, CountOrder, Cut, CutOrder, DrainOrder, Job, Load, StopOrder

PIPES_CAN_BE_WAITED_FOR = os.name == "posix"  # like sockets; elsewhere sockets take their place
T = TypeVar("T")
_ANSWER_SECS = 60
_STOP_SECS = 10
_START_SECS = 0.002  # between saying when a schedule starts and that moment


@dataclass(frozen=True, slots=True)
class Level:
    """One load of the whole fleet: so many requests at a time, or by the clock."""

    concurrency: int = 0
    schedule: Schedule | None = None
    limit: int | None = None
    each: int | None = None  # requests of each slot


@dataclass(slots=True)
class Harvest:
    """What was answered from `begin_ns` to `end_ns`, and what that cost."""

    begin_ns: int
    end_ns: int
    starts: np.ndarray
    ends: np.ndarray
    sequence_ids: np.ndarray
    moments: dict[int, list[int]] = field(default_factory=dict)  # of all responses, by start
    sequence_ends: int = 0
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
        """How long it was."""
        return self.end_ns - self.begin_ns

    @property
    def busiest(self) -> float:
        """The part of the time that the busiest worker was at work."""
        return max(self.cpu_ns, default=0) / max(1, self.duration_ns)

    @property
    def starved(self) -> float:
        """The part of the time that the worst off worker waited for a processor."""
        return max(self.starved_ns, default=0) / max(1, self.duration_ns)


class _Member:
    """One worker, from outside."""

    def __init__(self, job: Job, *, process: bool) -> None:
        listener: Listener | None = None
        end: Any
        if PIPES_CAN_BE_WAITED_FOR:
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

    def tell(self, order: Any) -> None:
        """Send an order. Raises LoadFailed when the worker is gone."""
        try:
            self._pipe.send(order)
        except OSError:
            raise LoadFailed("a worker of the load ended on its own") from None

    def hear(self, kind: type[T]) -> T:
        """The response to a command. Raises LoadFailed when there is none.

        Responses of another kind are skipped: Ctrl-C may have interrupted the wait for them.
        """
        try:
            while self._pipe.poll(_ANSWER_SECS):
                response = self._pipe.recv()
                if isinstance(response, kind):
                    return response
            raise LoadFailed(f"a worker of the load did not answer within {_ANSWER_SECS:g} seconds")
        except (EOFError, OSError):
            raise LoadFailed("a worker of the load ended on its own") from None

    def stop(self) -> None:
        """Tell it to end and wait until it has."""
        with contextlib.suppress(OSError):  # it may have ended already
            self._pipe.send(StopOrder())
        self._started.join(_STOP_SECS)
        if self._started.is_alive() and not isinstance(self._started, threading.Thread):
            self._started.kill()
        self._pipe.close()


class Fleet:
    """All workers of a run. Not for several threads."""

    def __init__(self, job: Job, workers: int = 1) -> None:
        """`workers` to begin with: a single one is a thread of this process."""
        self._job = job
        self._members = [_Member(job, process=workers > 1) for _ in range(workers)]
        self._active = workers
        self._begin_ns = perf_counter_ns()
        self._early: list[Cut] = []  # what belongs to the window to come

    @property
    def workers(self) -> int:
        """How many share the load."""
        return self._active

    def resize(self, workers: int) -> None:
        """Share the next level among so many; those left over stay, idle. Call `drain` before."""
        while len(self._members) < workers:
            self._members.append(_Member(self._job, process=True))
        self._active = workers

    def start(self, level: Level) -> None:
        """Begin a level, or change over to it. Raises LoadFailed."""
        origin_ns = perf_counter_ns() + int(_START_SECS * 1e9)
        members = self._members[: self._active]
        shares = len(members)
        for share, member in enumerate(members):
            member.tell(
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
        self._begin_ns = perf_counter_ns()

    def count(self) -> tuple[int, bool]:
        """How many requests were answered since the last cut, and whether all is quiet.

        Raises LoadFailed with what went wrong.
        """
        members = self._members[: self._active]
        for member in members:
            member.tell(CountOrder())
        counts = [member.hear(Count) for member in members]
        _check([count.problem for count in counts])
        early = sum(len(cut.ends) for cut in self._early)
        return early + sum(count.finished for count in counts), all(c.idle for c in counts)

    def cut(self, end_ns: int | None = None) -> Harvest:
        """End the window that is open, now; the next one begins. Raises LoadFailed."""
        end_ns = end_ns or perf_counter_ns()
        members = self._members[: self._active]
        for member in members:
            member.tell(CutOrder())
        cuts = [member.hear(Cut) for member in members]
        _check([cut.problem for cut in cuts])
        harvest = self._gathered([*self._early, *cuts], self._begin_ns, end_ns)
        harvest.cpu_ns = tuple(cut.cpu_ns for cut in cuts)
        harvest.starved_ns = tuple(cut.starved_ns for cut in cuts)
        self._early = [_later(cuts, end_ns)]
        self._begin_ns = end_ns
        return harvest

    def drain(self) -> None:
        """Let the load run out; sequences are ended. Raises LoadFailed."""
        members = self._members[: self._active]
        for member in members:
            member.tell(DrainOrder())
        problems = [member.hear(Cut).problem for member in members]
        self._early = []
        _check(problems)

    def stop(self) -> None:
        """End all workers."""
        for member in self._members:
            member.stop()
        self._members.clear()

    def _gathered(self, cuts: Sequence[Cut], begin_ns: int, end_ns: int) -> Harvest:
        starts = np.concatenate([np.asarray(cut.starts, np.int64) for cut in cuts])
        ends = np.concatenate([np.asarray(cut.ends, np.int64) for cut in cuts])
        ids = np.concatenate([np.asarray(cut.sequence_ids, np.int64) for cut in cuts])
        within = ends <= end_ns
        responses = np.concatenate([np.asarray(cut.responses, np.int64) for cut in cuts])
        over = np.concatenate([np.asarray(cut.sequence_ends, np.int64) for cut in cuts])
        return Harvest(
            begin_ns,
            end_ns,
            starts[within],
            ends[within],
            ids[within] if len(ids) else ids,
            moments={start: each for cut in cuts for start, each in cut.moments.items()},
            sequence_ends=int((over <= end_ns).sum()),
            # Of the requests within alone: others may have been answered since.
            responses=int(responses[within].sum() if len(responses) else within.sum()),
            sent=sum(cut.sent for cut in cuts),
            delayed=sum(cut.delayed for cut in cuts),
            send_ns=sum(cut.send_ns for cut in cuts),
            receive_ns=sum(cut.receive_ns for cut in cuts),
            failures=sum((cut.failures for cut in cuts), Counter()),
        )


def _part(whole: int, share: int, shares: int) -> int:
    """One of the shares of a number; they add up to it."""
    return whole // shares + (share < whole % shares)


def _later(cuts: Sequence[Cut], end_ns: int) -> Cut:
    """What was stamped after the end of a window."""
    later = Cut()
    for cut in cuts:
        for index in np.flatnonzero(np.asarray(cut.ends, np.int64) > end_ns).tolist():
            start = cut.starts[index]
            later.starts.append(start)
            later.ends.append(cut.ends[index])
            if cut.sequence_ids:
                later.sequence_ids.append(cut.sequence_ids[index])
            if cut.responses:
                later.responses.append(cut.responses[index])
            if start in cut.moments:
                later.moments[start] = cut.moments[start]
        later.sequence_ends.extend(moment for moment in cut.sequence_ends if moment > end_ns)
    return later


def _check(problems: Sequence[str]) -> None:
    for problem in problems:
        if problem:
            raise LoadFailed(problem)


def pause(secs: float) -> None:
    """Wait while the load goes on."""
    time.sleep(secs)
