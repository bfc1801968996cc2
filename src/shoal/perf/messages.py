"""What a load generator and its workers send each other.

generator --LoadJob, when it starts; then Load and commands--> worker
          <--Count, WorkerReport--
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from shoal.perf.connection import Endpoint, SlotConnection
from shoal.perf.http_connection import HttpLoadConnection
from shoal.perf.requests import Replay
from shoal.perf.schedule import Schedule
from shoal.perf.sequences import SequencePlan


@dataclass(frozen=True, slots=True)
class LoadJob:
    """What a worker sends, and where; it does not change during a run."""

    endpoint: Endpoint
    streams: list[list[Replay]]  # requests by stream of data and step
    sequences: SequencePlan | None = None
    slots_for_sequences: int = 4  # of a load by schedule
    streaming: bool = False
    decoupled: bool = False
    metadata: tuple[tuple[str, str], ...] = ()  # of gRPC calls
    compression: str = ""
    keep_details: bool = False  # of every request, for the export
    connection: type[SlotConnection] = HttpLoadConnection  # for protocols other than gRPC
    # Failed requests are counted and the load continues. Not for gRPC.
    tolerant: bool = False
    timeout_secs: float = 0.0  # after which a request has failed; only where failures are counted


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one worker: a number of requests in flight, or a schedule."""

    concurrency: int = 0
    schedule: Schedule | None = None
    origin_ns: int = 0  # when the schedule starts
    limit: int | None = None  # requests in all
    each: int | None = None  # requests of each slot, which form one sequence
    share: int = 0
    shares: int = 1


class ReportCommand(NamedTuple):
    """Send a report."""


class CountCommand(NamedTuple):
    """Send the number of requests finished since the last report."""


class DrainCommand(NamedTuple):
    """Send no more requests, end the sequences, and report when none is in flight."""


class StopCommand(NamedTuple):
    """End the worker."""


@dataclass(slots=True)
class WorkerReport:
    """What happened since the last report."""

    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    sequence_ends: array[int] = field(default_factory=lambda: array("q"))  # moments
    sequence_ids: array[int] = field(default_factory=lambda: array("q"))  # only for the export
    moments: dict[int, list[int]] = field(default_factory=dict)  # by start; as above
    responses: array[int] = field(default_factory=lambda: array("q"))  # per request; decoupled only
    sent: int = 0
    delayed: int = 0
    send_ns: int = 0
    receive_ns: int = 0
    cpu_ns: int = 0
    starved_ns: int = 0  # ready to run, but no CPU was free
    failures: Counter[str] = field(default_factory=Counter)  # by reason, where they are counted
    problem: str = ""  # why the load ended


class Count(NamedTuple):
    """The progress of a worker."""

    finished: int
    idle: bool  # no request is in flight
    problem: str
