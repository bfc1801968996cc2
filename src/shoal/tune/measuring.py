"""Measures a config for real: loads the model with it and drives it with the load of `shoal perf`.

    Rig(point, clients, careful) --load--> server          Measurement
                 '--requests--> Fleet, Profiler ----------------'

A few requests come first: they warm the model up and show how long windows must be. A quick
measurement is three short windows; a careful one has longer ones and goes on until they agree.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from shoal.config import codec
from shoal.errors import ShoalError
from shoal.perf import preparation
from shoal.perf.fleet import Fleet
from shoal.perf.model_facts import ModelFacts
from shoal.perf.options import PerfOptions
from shoal.perf.profiler import LevelKind, LevelResult, MeasureOptions, Profiler
from shoal.perf.server_side import ServerSide, Snapshot
from shoal.perf.stability import WINDOWS, Rule
from shoal.perf.summary import Summary
from shoal.perf.worker import Job
from shoal.tune.configs import Subject
from shoal.tune.goal import Measurement
from shoal.tune.serving import ChildServer
from shoal.tune.space import Point

_CAREFUL_TIMES = 3  # as long
_CAREFUL_WINDOWS = 6
_CAREFUL_PERCENT = 10.0
_LATENCIES_PER_WINDOW = 4
_PILOT_REQUESTS = 2  # of each client


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is sent, and for how long."""

    rows: int = 1
    percentile: int = 99
    window_secs: float = 0.4
    request_count: int = 0  # measure exactly so many instead
    workers: int = 1
    protocol: str = "http"
    input_data: tuple[str, ...] = ()
    shape: tuple[str, ...] = ()


class Rig:
    """A server with one model and a load for it, for a `with` block; see `search.Measure`."""

    def __init__(self, server: ChildServer, subject: Subject, plan: LoadPlan) -> None:
        """`server` runs already."""
        self._server = server
        self._subject = subject
        self._plan = plan
        self._loaded: Point | None = None
        self._stack = contextlib.ExitStack()
        self._batches: dict[int, int] = {}  # executions by their rows, of one measurement
        decoupled = subject.whole.model_transaction_policy
        streaming = decoupled is not None and decoupled.decoupled
        protocol = "grpc" if streaming else plan.protocol
        self._options = PerfOptions(
            model_name=subject.whole.name,
            url=server.http_url if protocol == "http" else server.grpc_url,
            protocol=protocol,
            streaming=streaming,
            batch_size=plan.rows,
            input_data=plan.input_data,
            shape=plan.shape,
            percentile=plan.percentile,
        )

    def __enter__(self) -> Rig:  # noqa: PYI034 - Python 3.10 has no Self
        """Load the model as it is and make its requests. Raises ShoalError."""
        with contextlib.ExitStack() as stack:
            where = preparation.place(self._options)
            self._client = preparation.Server(where)
            stack.callback(self._client.close)
            self._load(self._subject.start(self._plan.rows))
            self._facts: ModelFacts = self._client.facts(self._options)
            found = preparation.load_data(self._options, self._facts)
            job = preparation.job(self._options, self._client, where, self._facts, found)
            self._job: Job = stack.enter_context(job)
            self._fleet = Fleet(self._job, self._plan.workers)
            stack.callback(self._stop_load)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def __call__(self, point: Point, clients: int, careful: bool) -> Measurement:
        """Measure a config. Raises ShoalError when it does not load or requests fail; another
        one can be measured after that."""
        if point != self._loaded:
            self._load(point)
        result = self._measured(clients, careful=careful)
        summary = result.summary
        tally = result.server.model if result.server is not None else None
        executions = tally.executions if tally is not None else 0
        return Measurement(
            point,
            clients,
            per_second=summary.per_second,
            latency_us=summary.latency_us(self._plan.percentile),
            average_us=summary.average_us,
            percentiles_us=dict(summary.percentiles_us),
            mean_batch=tally.inferences / executions if tally is not None and executions else 0.0,
            peak_batch=max(self._batches, default=0),
            queue_us=tally.part_us("queue") if tally is not None else 0.0,
            compute_us=tally.compute_us if tally is not None else 0.0,
            client_bound=result.client_bound,
            careful=careful,
        )

    def _load(self, point: Point) -> None:
        self._loaded = None  # whatever happens, not what was
        config = self._subject.measured(point, self._plan.rows)
        self._client.client.load(config.name, config=codec.to_dict(config))
        self._loaded = point

    def _measured(self, clients: int, *, careful: bool) -> LevelResult:
        plan = self._plan
        options = MeasureOptions(percentile=plan.percentile, batch=plan.rows, workers=plan.workers)
        try:
            pilot = replace(options, request_count=_PILOT_REQUESTS * clients)
            first = self._profiler(pilot).measure(clients)
            self._batches.clear()
            if plan.request_count:
                return self._profiler(
                    replace(options, request_count=max(plan.request_count, clients))
                ).measure(clients)
            window_secs = plan.window_secs * (_CAREFUL_TIMES if careful else 1)
            slow_secs = first.summary.average_us * _LATENCIES_PER_WINDOW / 1e6
            options = replace(
                options,
                interval_secs=max(window_secs, slow_secs),
                trials=_CAREFUL_WINDOWS if careful else WINDOWS,
                rule=Rule(_CAREFUL_PERCENT, with_latency=False),
            )
            return self._profiler(options).measure(clients)
        except ShoalError:
            self._stop_load()  # a load that failed does not go on
            self._fleet = Fleet(self._job, plan.workers)
            raise

    def _profiler(self, options: MeasureOptions) -> Profiler:
        return Profiler(
            self._fleet,
            options,
            LevelKind(),
            functools.partial(self._client.snapshot, self._facts),
            self._compared,
            _Silent(),
        )

    def _compared(self, before: Snapshot, after: Snapshot) -> ServerSide:
        for key, new in after.items():
            counts, old = _by_rows(new), _by_rows(before.get(key, {}))
            for rows, count in counts.items():
                if count > old.get(rows, 0):
                    self._batches[rows] = self._batches.get(rows, 0) + count - old.get(rows, 0)
        return self._client.compare(self._facts, before, after)

    def _stop_load(self) -> None:
        self._fleet.stop()


class _Silent:
    """Tells nobody: the search says what is going on."""

    def level_begins(self, value: float) -> None:
        """Nothing."""

    def warming_up(self) -> None:
        """Nothing."""

    def window_ended(self, number: int, summary: Summary) -> None:
        """Nothing."""

    def waiting(self, done: float) -> None:
        """Nothing."""

    def grew(self, workers: int) -> None:
        """Nothing."""

    def level_ended(self, result: LevelResult) -> None:
        """Nothing."""


def _by_rows(row: Mapping[str, Any]) -> dict[int, int]:
    """How often a server says that it ran so many rows at once."""
    return {
        int(entry["batch_size"]): int(entry.get("compute_infer", {}).get("count", 0))
        for entry in row.get("batch_stats", ())
    }
