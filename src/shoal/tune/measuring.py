"""Measures a config: loads the model with it and sends the load of `shoal perf`.

    MeasurementSetup(point, clients, careful) --load--> server          Measurement
                 '--requests--> WorkerPool, Profiler ----------------'

A few requests come first: they warm up the model and determine the length of windows. A quick
measurement takes three short windows; a careful one takes longer ones until they are stable.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal.config import codec
from shoal.errors import ShoalError
from shoal.perf import preparation
from shoal.perf.messages import LoadJob
from shoal.perf.model_facts import ModelFacts
from shoal.perf.options import PerfOptions
from shoal.perf.profiler import (
    LevelKind,
    LevelResult,
    MeasureOptions,
    ProfileListener,
    Profiler,
)
from shoal.perf.server_side import ServerSide, Snapshot
from shoal.perf.stability import WINDOWS, Rule
from shoal.perf.worker_pool import WorkerPool
from shoal.tune.configs import Subject
from shoal.tune.goal import Measurement
from shoal.tune.serving import ChildServer
from shoal.tune.space import ConfigPoint

_CAREFUL_TIMES = 3  # as long
_CAREFUL_WINDOWS = 6
_CAREFUL_PERCENT = 10.0
_LATENCIES_PER_WINDOW = 4
_PILOT_REQUESTS = 2  # of each client


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The requests to send, and for how long."""

    rows: int = 1
    percentile: int = 99
    window_secs: float = 0.4
    request_count: int = 0  # measure exactly this many instead
    workers: int = 1
    protocol: str = "http"
    input_data: tuple[str, ...] = ()
    shape: tuple[str, ...] = ()


class MeasurementSetup:
    """A server with one model and a load for it, as a context manager; see `search.Measure`."""

    def __init__(self, server: ChildServer, subject: Subject, plan: LoadPlan) -> None:
        """`server` is running already."""
        self._server = server
        self._subject = subject
        self._plan = plan
        self._loaded: ConfigPoint | None = None
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

    def __enter__(self) -> MeasurementSetup:  # noqa: PYI034 - Python 3.10 has no Self
        """Load the model with its own config and encode its requests. Raises ShoalError."""
        with contextlib.ExitStack() as stack:
            where = preparation.endpoint(self._options)
            self._client = preparation.MeasuredServer(where)
            stack.callback(self._client.close)
            self._load(self._subject.start(self._plan.rows))
            self._facts: ModelFacts = self._client.facts(self._options)
            found = preparation.load_data(self._options, self._facts)
            job = preparation.job(self._options, self._client, where, self._facts, found)
            self._job: LoadJob = stack.enter_context(job)
            self._pool = WorkerPool(self._job, self._plan.workers)
            stack.callback(self._stop_load)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(self, point: ConfigPoint, clients: int, careful: bool) -> Measurement:
        """Measure a config. Raises ShoalError when it does not load or requests fail; other
        configs can be measured afterwards."""
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

    def _load(self, point: ConfigPoint) -> None:
        self._loaded = None  # unknown if loading fails
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
            self._stop_load()  # a failed load cannot continue
            self._pool = WorkerPool(self._job, plan.workers)
            raise

    def _profiler(self, options: MeasureOptions) -> Profiler:
        return Profiler(
            self._pool,
            options,
            LevelKind(),
            functools.partial(self._client.snapshot, self._facts),
            self._compared,
            ProfileListener(),
        )

    def _compared(self, before: Snapshot, after: Snapshot) -> ServerSide:
        for key, new in after.items():
            counts, old = _by_rows(new), _by_rows(before.get(key, {}))
            for rows, count in counts.items():
                if count > old.get(rows, 0):
                    self._batches[rows] = self._batches.get(rows, 0) + count - old.get(rows, 0)
        return self._client.compare(self._facts, before, after)

    def _stop_load(self) -> None:
        self._pool.stop()


def _by_rows(row: Mapping[str, Any]) -> dict[int, int]:
    """Executions by batch size, from the server's statistics."""
    return {
        int(entry["batch_size"]): int(entry.get("compute_infer", {}).get("count", 0))
        for entry in row.get("batch_stats", ())
    }
