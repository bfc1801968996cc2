"""What several processes count, added up in one of them, is what one process would have counted."""

from __future__ import annotations

import marshal
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.reply import DISCARD
from shoal.core.request import Request
from shoal.statistics import transfer
from shoal.statistics.model import FailureReason, ModelStatistics, Moments

WALL_NS = 1_700_000_000_000_000_000
EVENTS = st.lists(
    st.tuples(
        st.integers(0, 1),  # which process
        st.integers(1, 5),  # requests, 5: one that fails
        st.integers(0, 60_000_000_000),  # when
        st.integers(0, 3_000_000_000),  # how long each stage takes
        st.booleans(),  # whether the process reports then
    ),
    max_size=30,
)


def made(now):
    return ModelStatistics(
        "m",
        1,
        summaries=True,
        first_response_edges_ms=(1, 10),
        clock=lambda: now[0],
        wall_clock=lambda: WALL_NS + now[0],
    )


def count(statistics, requests, start_ns, took_ns):
    request = Request("m", {}, DISCARD)
    request.start_ns, request.queued_ns, request.rows = start_ns, start_ns + took_ns // 2, 2
    if requests == 5:
        statistics.failed(request, FailureReason.BACKEND, start_ns + took_ns)
        return
    compute_ns = start_ns + took_ns
    moments = Moments(compute_ns, compute_ns + 1, compute_ns + 2, compute_ns + 3 + took_ns)
    statistics.executed([request] * requests, 2 * requests, moments)


@settings(max_examples=40)
@given(EVENTS)
def test_the_sum_is_what_one_process_would_count(events):
    now = [0]
    alone, engine, *processes = (made(now) for _ in range(4))

    def report(process):
        taken = transfer.take(process)
        if taken is not None:
            transfer.add(engine, marshal.loads(marshal.dumps(taken)))

    for which, requests, at_ns, took_ns, reports in sorted(events, key=lambda event: event[2]):
        now[0] = at_ns + 3 * took_ns
        count(alone, requests, at_ns, took_ns)
        count(processes[which], requests, at_ns, took_ns)
        if reports:
            report(processes[which])
    for process in processes:
        report(process)
        assert transfer.take(process) is None
    ours, all_in_one = engine.read(), alone.read()
    if not ours.success_count:  # the time of the last success travels with the next one
        all_in_one = replace(all_in_one, last_inference_ms=ours.last_inference_ms)
    assert ours == all_in_one


def test_executions_of_single_requests_are_taken_at_once():
    """They are counted several at a time, which no reader may notice."""
    statistics, engine = ModelStatistics("m", 1), ModelStatistics("m", 1)
    count(statistics, 1, 10, 4)
    transfer.add(engine, transfer.take(statistics))
    assert engine.read().success_count == 1
    assert engine.last_used_ns > 14
    assert statistics.read().success_count == 0
