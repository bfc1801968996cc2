from __future__ import annotations

import threading
from itertools import pairwise

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import (
    BackendFailure,
    Cancelled,
    Internal,
    InvalidArgument,
    QueueRejected,
    Unavailable,
)
from shoal.statistics.model import (
    BATCH_SIZE_EDGES,
    DURATION_EDGES_NS,
    FailureReason,
    ModelStatistics,
    Moments,
)
from shoal.testing import WAIT_SECS

COMPUTE = ("compute_input", "compute_infer", "compute_output")


def statistics(now_ns: int = 0, epoch_ns: int = 5_000_000, **options) -> ModelStatistics:
    return ModelStatistics("m", 3, clock=lambda: now_ns, wall_clock=lambda: epoch_ns, **options)


def test_a_new_model_has_every_key_and_counts_nothing():
    nothing = {"count": 0, "ns": 0}
    assert ModelStatistics("m", 3).snapshot() == {
        "name": "m",
        "version": "3",
        "last_inference": 0,
        "inference_count": 0,
        "execution_count": 0,
        "inference_stats": {
            "success": nothing,
            "fail": nothing,
            "queue": nothing,
            "compute_input": nothing,
            "compute_infer": nothing,
            "compute_output": nothing,
            "cache_hit": nothing,
            "cache_miss": nothing,
        },
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }


def test_memory_on_gpus_is_a_part_of_all():
    counted = ModelStatistics("m", 1)
    counted.memory_bytes = lambda: 100
    assert counted.snapshot()["memory_usage"] == [{"type": "CPU", "id": 0, "byte_size": 100}]
    counted.gpu_memory = lambda: {1: 60, 0: 30}
    assert counted.snapshot()["memory_usage"] == [
        {"type": "CPU", "id": 0, "byte_size": 10},
        {"type": "GPU", "id": 0, "byte_size": 30},
        {"type": "GPU", "id": 1, "byte_size": 60},
    ]


def test_one_batch_of_two_requests(make_request):
    counted = statistics(now_ns=1000)
    requests = [make_request(100, 110, rows=2), make_request(200, 250, rows=3)]
    counted.executed(requests, 5, Moments(300, 310, 380, 400))
    assert counted.snapshot() == {
        "name": "m",
        "version": "3",
        "last_inference": 5,
        "inference_count": 5,
        "execution_count": 1,
        "inference_stats": {
            "success": {"count": 2, "ns": 900 + 800},
            "fail": {"count": 0, "ns": 0},
            "queue": {"count": 2, "ns": 190 + 50},
            # the batch's own times, in full for each of its two requests
            "compute_input": {"count": 2, "ns": 2 * 10},
            "compute_infer": {"count": 2, "ns": 2 * 70},
            "compute_output": {"count": 2, "ns": 2 * 20},
            "cache_hit": {"count": 0, "ns": 0},
            "cache_miss": {"count": 0, "ns": 0},
        },
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": 5,
                "compute_input": {"count": 1, "ns": 10},
                "compute_infer": {"count": 1, "ns": 70},
                "compute_output": {"count": 1, "ns": 20},
            }
        ],
        "memory_usage": [],
    }


def test_batch_statistics_rise_by_size_whatever_came_first(make_request):
    counted = statistics()
    for rows in (8, 1, 4, 1):
        counted.executed([make_request(0, 1, rows)], rows, Moments(2, 3, 4, 6))
    batches = counted.snapshot()["batch_stats"]
    assert [batch["batch_size"] for batch in batches] == [1, 4, 8]
    assert batches[0]["compute_output"] == {"count": 2, "ns": 4}
    assert counted.snapshot()["execution_count"] == 4


def test_a_request_that_never_waited_adds_no_queue_time(make_request):
    counted = statistics(now_ns=10**15)
    moments = Moments(10**15 - 300, 10**15 - 200, 10**15 - 100, 10**15)
    counted.executed([make_request(10**15 - 400, 0)], 1, moments)
    counted.executed(
        [make_request(10**15 - 400, 0), make_request(10**15 - 400, 10**15 - 350)], 2, moments
    )
    assert counted.snapshot()["inference_stats"]["queue"] == {"count": 3, "ns": 50}
    histograms = counted.read().histograms
    assert histograms is not None
    assert histograms.queue_duration_ns.cumulative[0] == 3


def test_success_lasts_at_least_until_the_end_of_compute(make_request):
    counted = statistics(now_ns=0)  # a clock read too early
    counted.executed([make_request(100, 100)], 1, Moments(200, 200, 300, 400))
    assert counted.snapshot()["inference_stats"]["success"]["ns"] == 300


@pytest.mark.parametrize("count", [1, 15, 16, 17, 40])
def test_lone_requests_count_as_others_do(make_request, count):
    """They are counted several at a time, which summaries do not allow."""
    kept, at_once = statistics(now_ns=10_000), statistics(now_ns=10_000, summaries=True)
    for number in range(count):
        request = make_request(100 + number, 0 if number % 5 == 0 else 150, rows=1 + number % 2)
        moments = Moments(200 + number, 300, 3_000 * number, 4_000 * number)
        for counted in (kept, at_once):
            counted.executed([request], 1 + number % 3, moments)
    assert kept.snapshot() == at_once.snapshot()
    assert kept.read().histograms == at_once.read().histograms
    assert kept.read().success_count == count


def test_requests_of_an_ensemble_that_were_joined_end_now(make_request):
    """Its steps run in parallel: the sum of what they took may end later."""
    requests, moments = [make_request(100, 0), make_request(300, 0)], Moments(400, 500, 900, 1_600)
    for options in ({}, {"summaries": True}):
        counted = statistics(now_ns=1_000, **options)
        counted.executed_one_by_one(requests, [moments] * 2)
        assert counted.snapshot()["inference_stats"]["success"] == {"count": 2, "ns": 900 + 700}


def test_an_execution_whose_requests_all_failed_on_their_own_counts_nothing():
    counted = statistics()
    before = counted.snapshot()
    counted.executed([], 4, Moments(1, 2, 3, 4))
    assert counted.snapshot() == before


def test_two_models_that_are_used_within_a_millisecond_are_told_apart(make_request):
    first, second = statistics(now_ns=5_000_001), statistics(now_ns=5_000_002)
    for counted in (first, second):
        counted.executed([make_request(0, 1)], 1, Moments(1, 2, 3, 4))
    assert first.last_used_ns < second.last_used_ns


@pytest.mark.parametrize("count", [1, 2], ids=["lone", "batch"])
def test_which_model_was_used_last_does_not_depend_on_the_wall_clock(make_request, count):
    moments = Moments(1, 2, 3, 4)
    before, after = statistics(1000, epoch_ns=9_000_000), statistics(2000, epoch_ns=5_000_000)
    for counted in (before, after):  # meanwhile the clock was set back
        counted.ready(0.5)
        assert counted.last_used_ns == counted.loaded_ns
        counted.executed([make_request(0, 1)] * count, count, moments)
    assert after.last_inference_ms < before.last_inference_ms
    assert after.last_used_ns > before.last_used_ns


def test_the_last_inference_never_moves_back(make_request):
    epoch_ms = iter([9, 7])
    counted = ModelStatistics(
        "m", 1, clock=lambda: 4, wall_clock=lambda: next(epoch_ms) * 1_000_000
    )
    for _ in range(2):
        counted.executed([make_request(0, 1)], 1, Moments(1, 2, 3, 4))
        assert counted.last_inference_ms == 9


def test_a_lone_request_was_served_when_it_ended_however_late_that_is_read(make_request):
    now_ns = [4_000_000]
    counted = ModelStatistics(
        "m", 1, clock=lambda: now_ns[0], wall_clock=lambda: 70_000_000 + now_ns[0]
    )
    counted.executed([make_request(0, 1)], 1, Moments(1, 2, 3, 4_000_000))
    now_ns[0] = 9_000_000
    assert counted.last_inference_ms == 74
    assert counted.last_used_ns == 4_000_000


def test_threads_count_lone_requests_without_losing_any(make_request):
    counted, threads, each = ModelStatistics("m", 1), 4, 2_000
    done = threading.Event()

    def count():
        for number in range(each):
            moments = Moments(number, number, number, number)
            counted.executed([make_request(number, number)], 1, moments, end_ns=number)

    def read():
        while not done.is_set():
            counted.read()

    workers = [threading.Thread(target=count) for _ in range(threads)]
    reader = threading.Thread(target=read)
    for thread in (*workers, reader):
        thread.start()
    for thread in workers:
        thread.join(WAIT_SECS)
    done.set()
    reader.join(WAIT_SECS)
    reading = counted.read()
    assert reading.success_count == reading.execution_count == threads * each
    assert reading.histograms.request_duration_ns.count == threads * each


def test_failures_count_by_reason_and_leave_the_rest_alone(make_request):
    counted = statistics()
    counted.failed(make_request(100, 0), FailureReason.REJECTED, 150)
    counted.failed(make_request(100, 0), FailureReason.REJECTED, 160)
    counted.failed(make_request(100, 0), FailureReason.CANCELED, 101)
    snapshot = counted.snapshot()
    assert snapshot["inference_stats"]["fail"] == {"count": 3, "ns": 111}
    assert snapshot["inference_stats"]["success"] == {"count": 0, "ns": 0}
    assert snapshot["inference_count"] == snapshot["execution_count"] == 0
    assert counted.read().failures == {
        FailureReason.REJECTED: 2,
        FailureReason.CANCELED: 1,
        FailureReason.BACKEND: 0,
        FailureReason.OTHER: 0,
    }


def test_a_failed_batch_is_no_execution(make_request):
    counted = statistics(now_ns=1000)
    requests = [make_request(100, 110), make_request(200, 210)]
    counted.batch_failed(requests, 2, Moments(300, 310, 310, 310))
    snapshot = counted.snapshot()
    assert snapshot["inference_stats"]["fail"] == {"count": 2, "ns": 900 + 800}
    assert snapshot["inference_stats"]["queue"]["count"] == 0
    assert snapshot["execution_count"] == 0
    assert snapshot["batch_stats"] == []
    assert counted.read().failures[FailureReason.BACKEND] == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (QueueRejected("full"), FailureReason.REJECTED),
        (Cancelled("gone"), FailureReason.CANCELED),
        (BackendFailure("raised"), FailureReason.BACKEND),
        (Unavailable("unloading"), FailureReason.OTHER),
        (Internal("ours"), FailureReason.OTHER),
        (InvalidArgument("wrong"), FailureReason.OTHER),
    ],
)
def test_errors_have_a_reason(error, reason):
    assert FailureReason.of(error) is reason


def test_histograms_cover_requests_and_executions(make_request):
    ms = 1_000_000
    counted = statistics(now_ns=100 * ms)
    requests = [make_request(99 * ms, 99 * ms), make_request(0, 10 * ms)]
    counted.executed(requests, 3, Moments(99 * ms, 99 * ms, 99 * ms, 99 * ms + 40_000))
    histograms = counted.read().histograms
    assert histograms is not None

    def below(reading, edge):
        return reading.cumulative[reading.edges.index(edge)]

    assert below(histograms.request_duration_ns, ms) == 1
    assert below(histograms.request_duration_ns, 100 * ms) == 2
    assert histograms.request_duration_ns.total == 101 * ms
    assert below(histograms.queue_duration_ns, 50_000) == 1
    assert below(histograms.queue_duration_ns, 50 * ms) == 1
    assert below(histograms.queue_duration_ns, 100 * ms) == 2
    assert below(histograms.compute_duration_ns, 50_000) == 2  # in full, for each request
    assert histograms.compute_duration_ns.total == 80_000
    assert below(histograms.batch_size, 2) == 0
    assert below(histograms.batch_size, 4) == 1
    assert histograms.batch_size.total == 3


def test_histograms_can_be_left_out(make_request):
    counted = statistics(histograms=False)
    counted.executed([make_request(0, 1)], 1, Moments(1, 2, 3, 4))
    assert counted.read().histograms is None
    assert counted.snapshot()["execution_count"] == 1


def test_edges_span_what_models_take():
    assert DURATION_EDGES_NS[0] == 50_000
    assert DURATION_EDGES_NS[-1] == 30_000_000_000
    assert list(DURATION_EDGES_NS) == sorted(set(DURATION_EDGES_NS))
    assert all(larger == 2 * edge for edge, larger in pairwise(BATCH_SIZE_EDGES))


steps = st.integers(0, 40_000_000_000)


@st.composite
def executions(draw):
    """One batch: per request (before queueing, in queue, rows), then the batch's own steps."""
    requests = draw(st.lists(st.tuples(steps, steps, st.integers(1, 8)), min_size=1, max_size=9))
    return requests, draw(st.tuples(steps, steps, steps, steps))


@given(batches=st.lists(executions(), max_size=6))
def test_sums_agree_with_the_plain_definition(make_request, batches):
    now_ns = 0
    counted = ModelStatistics("m", 1, clock=lambda: now_ns)
    success_ns = queue_ns = rows_total = 0
    compute_ns = [0, 0, 0]
    for members, (input_ns, infer_ns, output_ns, answer_ns) in batches:
        start = 10**12
        rows = sum(member[2] for member in members)
        requests = [
            make_request(start - queue - before, start - queue, size)
            for before, queue, size in members
        ]
        input_end = start + input_ns
        moments = Moments(start, input_end, input_end + infer_ns, input_end + infer_ns + output_ns)
        now_ns = moments.compute_end_ns + answer_ns
        counted.executed(requests, rows, moments)
        success_ns += sum(now_ns - request.start_ns for request in requests)
        queue_ns += sum(start - request.queued_ns for request in requests)
        rows_total += rows
        for index, ns in enumerate((input_ns, infer_ns, output_ns)):
            compute_ns[index] += ns * len(requests)
    snapshot = counted.snapshot()
    inference = snapshot["inference_stats"]
    count = sum(len(members) for members, _ in batches)
    assert inference["success"] == {"count": count, "ns": success_ns}
    assert inference["queue"] == {"count": count, "ns": queue_ns}
    assert [inference[key] for key in COMPUTE] == [{"count": count, "ns": n} for n in compute_ns]
    assert inference["success"]["ns"] >= inference["queue"]["ns"] + sum(compute_ns)
    assert snapshot["inference_count"] == rows_total
    assert snapshot["execution_count"] == len(batches)
    for key in COMPUTE:
        assert sum(batch[key]["count"] for batch in snapshot["batch_stats"]) == len(batches)
    assert orjson.loads(orjson.dumps(snapshot)) == snapshot
    histograms = counted.read().histograms
    assert histograms is not None
    for reading in (
        histograms.request_duration_ns,
        histograms.queue_duration_ns,
        histograms.compute_duration_ns,
    ):
        assert reading.count == count
    assert histograms.request_duration_ns.total == success_ns
    assert histograms.queue_duration_ns.total == queue_ns
    assert histograms.compute_duration_ns.total == sum(compute_ns)
    assert (histograms.batch_size.count, histograms.batch_size.total) == (len(batches), rows_total)


@settings(max_examples=10)
@given(sizes=st.lists(st.integers(1, 16), min_size=2, max_size=4))
def test_threads_lose_no_count_and_every_reading_is_whole(make_request, sizes):
    """Each thread counts batches of its own size while another reads all the time."""
    rounds = 50
    counted = ModelStatistics("m", 1, clock=lambda: 1000)
    gate = threading.Barrier(len(sizes) + 1)
    done = threading.Event()
    torn: list[object] = []

    def work(size: int) -> None:
        requests = [make_request(0, 100) for _ in range(size)]
        gate.wait()
        for _ in range(rounds):
            counted.executed(requests, size, Moments(200, 210, 230, 260))
            counted.failed(requests[0], FailureReason.OTHER, 5)
            counted.batch_failed(requests, size, Moments(200, 210, 210, 210))

    def read() -> None:
        gate.wait()
        while not done.is_set():
            snapshot = counted.snapshot()
            inference = snapshot["inference_stats"]
            counts = {inference[key]["count"] for key in ("success", "queue", *COMPUTE)}
            if len(counts) != 1 or inference["success"]["ns"] != 1000 * max(counts):
                torn.append(snapshot)

    reader = threading.Thread(target=read)
    workers = [threading.Thread(target=work, args=(size,)) for size in sizes]
    for thread in (reader, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    reader.join()

    total = rounds * sum(sizes)
    snapshot = counted.snapshot()
    inference = snapshot["inference_stats"]
    assert not torn
    assert inference["success"] == {"count": total, "ns": 1000 * total}
    assert inference["queue"] == {"count": total, "ns": 100 * total}
    assert [inference[key]["ns"] for key in COMPUTE] == [10 * total, 20 * total, 30 * total]
    failures = rounds * len(sizes) + total
    assert inference["fail"] == {"count": failures, "ns": 5 * rounds * len(sizes) + 1000 * total}
    assert snapshot["execution_count"] == rounds * len(sizes)
    assert snapshot["inference_count"] == total
    assert [batch["batch_size"] for batch in snapshot["batch_stats"]] == sorted(set(sizes))
