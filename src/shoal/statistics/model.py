"""One model version's statistics: requests carry their timestamps and are counted once, at the end.

    start --> queued --> compute start --> input end --> output start --> compute end --> end
      |          '------ queue ------'-- input --'--- infer ---'--- output ---'            |
      '------------------------------------ success ---------------------------------------'

Counting costs an entry of the ledger per batch, or one lock and a few sums where its requests
arrived at different moments. No code on a request's path knows about Prometheus: a scrape reads a
copy. The numbers follow Triton's rules: a batch's compute times count in full for every request in
it, and only successful requests are counted in `queue` and `compute_*`, so the counts of `success`,
`queue` and the three `compute_*` are equal. A request that the response cache answered counts in
`success`, `queue` and `cache_hit` only.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from shoal.core.request import Request
from shoal.errors import (
    BackendFailure,
    Cancelled,
    DeadlineExceeded,
    QueueRejected,
    ShoalError,
)
from shoal.statistics.cache import CacheCounts
from shoal.statistics.histogram import Histogram, HistogramReading
from shoal.statistics.ledger import Account, ExecutionLedger
from shoal.statistics.summary import DurationSummary, SummaryReading
from shoal.statistics.task import TaskStatistics

_MOST_ACCOUNTS = 64  # of one model in the ledger; other sizes of executions are counted at once
_US, _MS, _S = 1_000, 1_000_000, 1_000_000_000

# A request to a small model takes some 100 µs, one to a large model seconds: three buckets per
# decade keep a percentile read from them within a factor of 2.5 over that whole range.
DURATION_EDGES_NS: tuple[int, ...] = (
    *(50 * _US, 100 * _US, 250 * _US, 500 * _US),
    *(1 * _MS, 2_500 * _US, 5 * _MS, 10 * _MS, 25 * _MS, 50 * _MS, 100 * _MS, 250 * _MS, 500 * _MS),
    *(1 * _S, 2_500 * _MS, 5 * _S, 10 * _S, 30 * _S),
)
ledger = ExecutionLedger(DURATION_EDGES_NS)
BATCH_SIZE_EDGES: tuple[int, ...] = tuple(2**power for power in range(11))  # 1 … 1024 rows
FIRST_RESPONSE_FAMILY = "nv_inference_first_response_histogram_ms"
FIRST_RESPONSE_EDGES_MS: tuple[float, ...] = (100, 500, 2000, 5000)  # Triton's


class CountedRequest(Protocol):
    """What is counted of a request that was served."""

    @property
    def start_ns(self) -> int:
        """When it arrived."""

    @property
    def queued_ns(self) -> int:
        """When it was queued; 0 if it never waited."""

    @property
    def rows(self) -> int:
        """Its rows."""


class Moments(NamedTuple):
    """When one executed batch reached each stage, in monotonic nanoseconds, rising."""

    compute_start_ns: int
    input_end_ns: int
    output_start_ns: int
    compute_end_ns: int


class InstanceHealth(NamedTuple):
    """What has become of executions that took longer than the model's limit."""

    timeouts: int
    abandoned_threads: int  # that have not returned
    unhealthy_instances: int


class FailureReason(enum.Enum):
    """Why a request failed: the values of the `reason` label."""

    REJECTED = "REJECTED"  # by a queue policy
    CANCELED = "CANCELED"  # by its client
    BACKEND = "BACKEND"  # the model raised, or did not return in time
    OTHER = "OTHER"

    @classmethod
    def of(cls, error: ShoalError) -> FailureReason:
        """The reason that `error` counts under."""
        if isinstance(error, QueueRejected):
            return cls.REJECTED
        if isinstance(error, Cancelled):
            return cls.CANCELED
        if isinstance(error, (BackendFailure, DeadlineExceeded)):
            return cls.BACKEND
        return cls.OTHER


@dataclass(frozen=True, slots=True)
class BatchReading:
    """All executions of one batch size together."""

    count: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int


Distribution = TypeVar("Distribution")  # one that is counted, or a copy of it


@dataclass(frozen=True, slots=True)
class ModelHistograms(Generic[Distribution]):
    """Distributions over successful requests; `batch_size` over successful executions."""

    request_duration_ns: Distribution
    queue_duration_ns: Distribution
    compute_duration_ns: Distribution  # a batch's time counts once for each of its requests
    batch_size: Distribution  # in rows


@dataclass(frozen=True, slots=True)
class ModelSummaries(Generic[Distribution]):
    """Quantiles over successful requests; a batch's times count once for each of them."""

    request_ns: Distribution
    queue_ns: Distribution
    compute_input_ns: Distribution
    compute_infer_ns: Distribution
    compute_output_ns: Distribution
    cache_hit_ns: Distribution
    cache_miss_ns: Distribution


@dataclass(frozen=True, slots=True)
class ModelReading:
    """Everything counted for one model version, as it was at one moment."""

    last_inference_ms: int  # since the epoch; 0: never
    inference_count: int  # rows of the successful requests
    execution_count: int
    success_count: int
    success_ns: int
    queue_ns: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int
    failures: Mapping[FailureReason, int]  # every reason is there
    fail_ns: int
    batches: Mapping[int, BatchReading]  # by rows per execution, rising
    histograms: ModelHistograms[HistogramReading] | None
    summaries: ModelSummaries[SummaryReading] | None = None
    first_response_ms: HistogramReading | None = None
    cache: CacheCounts | None = None  # None: its responses are not cached


@dataclass(frozen=True, slots=True)
class StatisticsOptions:
    """What is counted in addition: it costs time for every request."""

    summaries: bool = False
    first_response: bool = False


class ModelStatistics:
    """Counts for one loaded version of one model, from zero at each load.

    Any thread may call any method.
    """

    # Together in memory, because each execution reads them; everything else is in the dictionary.
    __slots__ = (
        "__dict__",
        "_clock",
        "_last_account",
        "_lock",
        "_wall_clock",
    )

    def __init__(
        self,
        name: str,
        version: int,
        *,
        histograms: bool = True,
        summaries: bool = False,
        first_response_edges_ms: Sequence[float] = (),
        labels: Mapping[str, str] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        wall_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """`labels` join `model` and `version` on this model's metrics (tags, a namespace).

        `summaries` keeps quantiles of the last minute; with `first_response_edges_ms` there is a
        histogram of the time to a request's first response.
        """
        self.name = name
        self.version = version
        self.labels = dict(labels or {})
        self.load_duration_secs = 0.0  # set by `ready`
        self.loaded_ms = 0  # since the epoch; see `ready`
        self.loaded_ns = 0  # by the monotonic clock
        self.memory_bytes: Callable[[], int] = lambda: 0  # about, with GPUs; set by the model
        # The part of it on each GPU, as far as it is known.
        self.gpu_memory: Callable[[], Mapping[int, int]] = dict
        self.pending: Callable[[], int] = lambda: 0  # requests waiting; set by the model
        # Until what waits and runs now is finished; None: not known yet. Set by the model.
        self.time_to_drain_ns: Callable[[], float | None] = lambda: None
        self.on_loop: Callable[[], bool] = lambda: False  # where it runs; set by the model
        self.instances: Callable[[], int | None] = lambda: None  # set by a model that has them
        # Restarts of processes of its instances; set where instances run in processes.
        self.process_restarts: Callable[[], int | None] = lambda: None
        # Elements of padded inputs, and how many of them were padding; set where there are any.
        self.padded: Callable[[], tuple[int, int]] | None = None
        # Requests that were refused because of the target latency, and the expected latency; None
        # if it has none.
        self.admission: Callable[[], tuple[int, float] | None] = lambda: None
        self.health: Callable[[], InstanceHealth] | None = None  # of a model with a time limit
        self.task: TaskStatistics | None = None  # counts of its task; set by a model with one
        self.cached = False  # whether its responses are cached; set by the cache
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()  # guards everything below
        self._last_inference_ns = 0  # since the epoch
        self._last_end_ns = 0  # the same by the monotonic clock, which no one sets
        self._inference_count = 0
        self._success_count = 0
        self._success_ns = 0
        self._queue_ns = 0
        self._compute_input_ns = 0
        self._compute_infer_ns = 0
        self._compute_output_ns = 0
        self._failures = dict.fromkeys(FailureReason, 0)
        self._fail_ns = 0
        self._cache = CacheCounts()
        # rows -> [executions, input ns, infer ns, output ns]
        self._batches: dict[int, list[int]] = {}
        self._histograms = _new_histograms() if histograms else None
        self._summaries = _new_summaries() if summaries else None
        self._first_response: Histogram | None = None
        if first_response_edges_ms:
            # In whole milliseconds, as Triton counts them.
            self._first_response = Histogram(sorted(first_response_edges_ms))
        # Executions whose requests arrived together are counted in the ledger, and here before
        # anything is read: with many models, what is counted is in no cache of the processor.
        self._uses_ledger = self._summaries is None and self._first_response is None
        self._accounts: dict[tuple[int, int], Account] = {}  # by rows and number of requests
        self._last_account: tuple[int, int, int | None] = (-1, 0, None)  # the key and its number

    def executed(
        self,
        requests: Sequence[CountedRequest],
        rows: int,
        moments: tuple[int, int, int, int],
        *,
        end_ns: int | None = None,
        answered_before: bool = False,
    ) -> None:
        """Count one execution that served all of `requests`, at the moment they are answered.

        `rows` is the batch size of the execution, `moments` are those of `Moments`, which takes
        longer to make than a tuple. A request whose `queued_ns` is 0 never waited.
        Requests of the batch that failed on their own are left out here and go to `failed`; with
        no request left, nothing is counted. `end_ns` is now by default: the steps of an ensemble
        run in parallel, so that the sum of their compute times may exceed the elapsed time.
        `answered_before` where `first_response` was called for each request.
        """
        count = len(requests)
        if not count:
            return
        if end_ns is None:
            end_ns = max(self._clock(), moments[3])
        started = [request.start_ns for request in requests]
        queued = [request.queued_ns for request in requests]
        inferences = sum([request.rows for request in requests])
        start_ns, queued_ns = started[0], queued[0]
        if (
            inferences == rows
            and started.count(start_ns) == count
            and queued.count(queued_ns) == count
        ):
            account = self.account(rows, count)
            if account is not None:
                ledger.add(account, start_ns, queued_ns, moments, end_ns)
                return
        # Sorting is cheap (they come nearly in order) and lets the histograms count by bisection.
        started.sort()
        queued.sort()
        compute_start_ns = moments[0]
        if not queued[0] or queued[-1] > compute_start_ns:  # some never waited
            queued = sorted([min(at or compute_start_ns, compute_start_ns) for at in queued])
        self._count(
            started, queued, inferences, rows, moments, end_ns, answered_before=answered_before
        )

    def executed_one_by_one(
        self, requests: Sequence[Request], moments: Sequence[tuple[int, int, int, int]]
    ) -> None:
        """Count an execution for each of `requests`, which are answered together."""
        end_ns = self._clock()
        for request, own in zip(requests, moments, strict=True):
            account = self.account(request.rows)
            if account is not None:
                ledger.add(account, request.start_ns, request.queued_ns, own, end_ns)
            else:
                self.executed((request,), request.rows, own, end_ns=end_ns)

    def executed_block(
        self, started: list[int], queued_ns: int, request_rows: int, rows: int, moments: Moments
    ) -> None:
        """As `executed`, for requests that are alike: they began at `started`, in rising order,
        have `request_rows` rows each and were all queued at one moment."""
        count = len(started)
        end_ns = max(self._clock(), moments.compute_end_ns)
        self._count(started, [queued_ns] * count, count * request_rows, rows, moments, end_ns)

    def _count(
        self,
        started: list[int],
        queued: list[int],
        inferences: int,
        rows: int,
        moments: tuple[int, int, int, int],
        end_ns: int,
        *,
        answered_before: bool = False,
    ) -> None:
        """Count one execution, whose requests began and were queued at these moments, rising."""
        last_inference_ns = self._wall_clock()
        count = len(started)
        compute_start_ns, input_end_ns, output_start_ns, compute_end_ns = moments
        input_ns = input_end_ns - compute_start_ns
        infer_ns = output_start_ns - input_end_ns
        output_ns = compute_end_ns - output_start_ns
        success_ns = count * end_ns - sum(started)
        queue_ns = count * compute_start_ns - sum(queued)
        histograms = self._histograms
        with self._lock:
            self._last_inference_ns = max(self._last_inference_ns, last_inference_ns)
            self._last_end_ns = end_ns
            self._inference_count += inferences
            self._success_count += count
            self._success_ns += success_ns
            self._queue_ns += queue_ns
            self._compute_input_ns += input_ns * count
            self._compute_infer_ns += infer_ns * count
            self._compute_output_ns += output_ns * count
            batch = self._batches.get(rows)
            if batch is None:
                batch = self._batches[rows] = [0, 0, 0, 0]
            batch[0] += 1
            batch[1] += input_ns
            batch[2] += infer_ns
            batch[3] += output_ns
            if histograms is not None:
                histograms.request_duration_ns.add_spans(started, end_ns, success_ns)
                histograms.queue_duration_ns.add_spans(queued, compute_start_ns, queue_ns)
                histograms.compute_duration_ns.add(compute_end_ns - compute_start_ns, count)
                histograms.batch_size.add(rows)
            if self._first_response is not None and not answered_before:
                self._first_response.add_all([(end_ns - start) // _MS for start in started])
            summaries = self._summaries
            if summaries is not None:
                summaries.request_ns.add_spans(started, end_ns, end_ns)
                summaries.queue_ns.add_spans(queued, compute_start_ns, end_ns)
                summaries.compute_input_ns.add(input_ns, end_ns, count)
                summaries.compute_infer_ns.add(infer_ns, end_ns, count)
                summaries.compute_output_ns.add(output_ns, end_ns, count)

    def account(self, rows: int, count: int = 1) -> int | None:
        """Where the `ledger` counts executions of `rows` rows for `count` requests that arrived and
        were queued together; None if `executed` has to."""
        last_rows, last_count, number = self._last_account
        if last_rows != rows or last_count != count:
            key = rows, count
            with self._lock:
                account = self._accounts.get(key)
                if account is None and self._uses_ledger and len(self._accounts) < _MOST_ACCOUNTS:
                    account = self._accounts[key] = ledger.open()
            number = None if account is None else account.number
            self._last_account = (rows, count, number)
        return number

    def _count_ledger(self) -> None:
        """Count the executions that are in the ledger. The lock is held."""
        if not self._accounts:
            return
        taken = ledger.take(self._accounts.values())
        for (rows, count), sums in zip(self._accounts, taken, strict=True):
            if sums is None:
                continue
            executions, success_ns, queue_ns, input_ns, infer_ns, output_ns, end_ns = sums[:7]
            self._last_end_ns = max(self._last_end_ns, end_ns)
            last_inference_ns = self._wall_clock() - (self._clock() - end_ns)
            self._last_inference_ns = max(self._last_inference_ns, last_inference_ns)
            self._inference_count += rows * executions
            self._success_count += count * executions
            self._success_ns += count * success_ns
            self._queue_ns += count * queue_ns
            self._compute_input_ns += count * input_ns
            self._compute_infer_ns += count * infer_ns
            self._compute_output_ns += count * output_ns
            batch = self._batches.setdefault(rows, [0, 0, 0, 0])
            for place, more in enumerate((executions, input_ns, infer_ns, output_ns)):
                batch[place] += more
            histograms = self._histograms
            if histograms is not None:
                compute_ns = input_ns + infer_ns + output_ns
                histograms.request_duration_ns.add_taken(sums.request_buckets, success_ns, count)
                histograms.queue_duration_ns.add_taken(sums.queue_buckets, queue_ns, count)
                histograms.compute_duration_ns.add_taken(sums.compute_buckets, compute_ns, count)
                histograms.batch_size.add(rows, executions)

    def first_response(self, request: Request) -> None:
        """A request that is not answered with its batch gets its first response."""
        if self._first_response is not None:
            now_ns = self._clock()
            with self._lock:
                self._first_response.add((now_ns - request.start_ns) // _MS)

    def cache_hit(self, request: Request, lookup_start_ns: int, lookup_ns: int) -> None:
        """Count a request that is answered from the response cache now."""
        end_ns = self._clock()
        last_inference_ns = self._wall_clock()
        started, queued = [request.start_ns], [min(request.queued_ns, lookup_start_ns)]
        success_ns = end_ns - request.start_ns
        queue_ns = lookup_start_ns - queued[0]
        with self._lock:
            self._last_inference_ns = max(self._last_inference_ns, last_inference_ns)
            self._last_end_ns = end_ns
            self._success_count += 1
            self._success_ns += success_ns
            self._queue_ns += queue_ns
            self._cache.hit_count += 1
            self._cache.hit_ns += lookup_ns
            if self._histograms is not None:
                self._histograms.request_duration_ns.add_spans(started, end_ns, success_ns)
                self._histograms.queue_duration_ns.add_spans(queued, lookup_start_ns, queue_ns)
            if self._first_response is not None:
                self._first_response.add(success_ns // _MS)
            if self._summaries is not None:
                self._summaries.queue_ns.add(queue_ns, end_ns)
                self._summaries.cache_hit_ns.add(lookup_ns, end_ns)

    def cache_missed(self, miss_ns: int, insertion_ns: int = 0) -> None:
        """Count a miss, and the time of its lookup and insertion.

        `insertion_ns` is the part of it that delayed the response, which is counted already.
        """
        with self._lock:
            self._success_ns += insertion_ns
            self._cache.miss_count += 1
            self._cache.miss_ns += miss_ns
            if self._summaries is not None:
                self._summaries.cache_miss_ns.add(miss_ns, self._clock())

    def cache_stored(self, insertion_ns: int) -> None:
        """Add the time of an insertion after the miss was counted and the response was sent."""
        with self._lock:
            self._cache.miss_ns += insertion_ns

    def failed(self, request: Request, reason: FailureReason, now_ns: int) -> None:
        """Count a request that was answered with an error at `now_ns`; one with members was only an
        attempt."""
        if request.members > 1:
            return
        with self._lock:
            self._failures[reason] += 1
            self._fail_ns += now_ns - request.start_ns

    def batch_failed(
        self,
        requests: Sequence[Request],
        rows: int,  # noqa: ARG002  the worker calls this and `executed` alike
        moments: Moments,
    ) -> None:
        """Count an execution in which the model raised: every request of it failed.

        As with Triton's backends, it is no execution: `execution_count`, the batch statistics and
        the histograms stay as they are. A request with members was only an attempt.
        """
        requests = [request for request in requests if request.members == 1]
        end_ns = max(self._clock(), moments.compute_end_ns)
        fail_ns = len(requests) * end_ns - sum([request.start_ns for request in requests])
        with self._lock:
            self._failures[FailureReason.BACKEND] += len(requests)
            self._fail_ns += fail_ns

    @property
    def last_inference_ms(self) -> int:
        """When a request was last served, since the epoch; 0: never."""
        with self._lock:
            self._count_ledger()
            return self._last_inference_ns // _MS

    @property
    def last_used_ns(self) -> int:
        """When a request was last served, or else when the model was loaded, by the monotonic
        clock."""
        with self._lock:
            self._count_ledger()
            return self._last_end_ns or self.loaded_ns

    def ready(self, load_duration_secs: float) -> None:
        """The model has been loaded in `load_duration_secs`."""
        self.load_duration_secs = load_duration_secs
        self.loaded_ms = self._wall_clock() // _MS
        self.loaded_ns = self._clock()

    def read(self) -> ModelReading:
        """A copy of all counts, consistent with one another."""
        with self._lock:
            self._count_ledger()
            return ModelReading(
                last_inference_ms=self._last_inference_ns // _MS,
                inference_count=self._inference_count,
                execution_count=sum(batch[0] for batch in self._batches.values()),
                success_count=self._success_count,
                success_ns=self._success_ns,
                queue_ns=self._queue_ns,
                compute_input_ns=self._compute_input_ns,
                compute_infer_ns=self._compute_infer_ns,
                compute_output_ns=self._compute_output_ns,
                failures=self._failures.copy(),
                fail_ns=self._fail_ns,
                batches=self._read_batches(),
                histograms=_read_histograms(self._histograms) if self._histograms else None,
                summaries=_read_summaries(self._summaries, self._clock())
                if self._summaries
                else None,
                first_response_ms=self._first_response.read() if self._first_response else None,
                cache=replace(self._cache) if self.cached else None,
            )

    def read_executions(self) -> tuple[Mapping[int, BatchReading], float]:
        """The part of `read` that tells what executions cost: `batches`, and the mean number of
        rows of a request."""
        with self._lock:
            self._count_ledger()
            requests = self._success_count - self._cache.hit_count
            return self._read_batches(), self._inference_count / max(1, requests)

    def _read_batches(self) -> dict[int, BatchReading]:
        return {rows: BatchReading(*sums) for rows, sums in sorted(self._batches.items())}

    def snapshot(self) -> dict[str, Any]:
        """This version's element of `model_stats`, as the statistics endpoint returns it."""
        reading = self.read()
        cache = reading.cache or CacheCounts()
        computed = reading.success_count - cache.hit_count
        return {
            "name": self.name,
            "version": str(self.version),
            "last_inference": reading.last_inference_ms,
            "inference_count": reading.inference_count,
            "execution_count": reading.execution_count,
            "inference_stats": {
                "success": _duration(reading.success_count, reading.success_ns),
                "fail": _duration(sum(reading.failures.values()), reading.fail_ns),
                "queue": _duration(reading.success_count, reading.queue_ns),
                "compute_input": _duration(computed, reading.compute_input_ns),
                "compute_infer": _duration(computed, reading.compute_infer_ns),
                "compute_output": _duration(computed, reading.compute_output_ns),
                # Clients read these two whether or not there is a response cache.
                "cache_hit": _duration(cache.hit_count, cache.hit_ns),
                "cache_miss": _duration(cache.miss_count, cache.miss_ns),
            },
            "response_stats": {},
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_input": _duration(batch.count, batch.compute_input_ns),
                    "compute_infer": _duration(batch.count, batch.compute_infer_ns),
                    "compute_output": _duration(batch.count, batch.compute_output_ns),
                }
                for rows, batch in reading.batches.items()
            ],
            "memory_usage": _memory(self.memory_bytes(), self.gpu_memory()),
        }


def _new_histograms() -> ModelHistograms[Histogram]:
    edges = (DURATION_EDGES_NS, DURATION_EDGES_NS, DURATION_EDGES_NS, BATCH_SIZE_EDGES)
    return ModelHistograms(*map(Histogram, edges))


def _new_summaries() -> ModelSummaries[DurationSummary]:
    return ModelSummaries(*[DurationSummary() for _ in fields(ModelSummaries)])


def _read_histograms(live: ModelHistograms[Histogram]) -> ModelHistograms[HistogramReading]:
    return ModelHistograms(*[getattr(live, field.name).read() for field in fields(live)])


def _read_summaries(
    live: ModelSummaries[DurationSummary], now_ns: int
) -> ModelSummaries[SummaryReading]:
    return ModelSummaries(*[getattr(live, field.name).read(now_ns) for field in fields(live)])


def _memory(held_bytes: int, on_gpus: Mapping[int, int]) -> list[dict[str, Any]]:
    entries = [("CPU", 0, held_bytes - sum(on_gpus.values()))]
    entries += [("GPU", number, size) for number, size in sorted(on_gpus.items())]
    return [
        {"type": kind, "id": number, "byte_size": size} for kind, number, size in entries if size
    ]


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}
