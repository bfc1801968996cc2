"""The choice of loop or threads over batches of real runs, replayed.

`python -m benchmarks.changing_load --record` has recorded them on two cores that others used, too:
`_on_threads` with the model forced to its threads, `_busy` beside three processes that only burn
CPU time. The load changes about every two seconds.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

from shoal.instance.execution_placement import QUICK_NS, ExecutionMode, ExecutionPlacement
from tests.support.fakes import FakeClock

FOLDER = Path(__file__).parent / "traces"
TRACES = sorted(file.stem for file in FOLDER.glob("*.json"))
RETURN_WITHIN_US = 500_000


class Batch(NamedTuple):
    """A line of a trace."""

    at_us: int
    rows: int
    bytes: int
    own_us: int
    elapsed_us: int
    queued_rows: int
    rows_alone: int  # of each execution on the loop; 0 where it would run the batch as a whole


class Phase(NamedTuple):
    """What one load led to."""

    load: str
    expected: str
    settled_us: int | None  # from the first batch until the model was where it belongs, to stay
    changes: int


def batches_of(trace):
    assert tuple(trace["columns"]) == Batch._fields
    return [Batch(*line) for line in trace["batches"]]


def replayed(trace):
    """Where the model was after each batch: (phase, time, mode)."""
    clock = FakeClock()
    placement = ExecutionPlacement(max_rows=64, clock=clock)
    starts = [phase["at_us"] for phase in trace["phases"]]
    for batch in batches_of(trace):
        clock.now_ns = batch.at_us * 1000
        execute(placement, batch)
        number = sum(start <= batch.at_us for start in starts) - 1
        yield number, batch.at_us, placement.mode.value


def execute(placement, batch):
    """Have the batch run where the model is now, whichever place it was recorded in."""
    own_ns, elapsed_ns = batch.own_us * 1000, batch.elapsed_us * 1000
    if placement.mode is ExecutionMode.THREADS:
        placement.observe_on_thread(
            batch.rows, own_ns, waiting_rows=batch.queued_rows, rows_alone=batch.rows_alone
        )
        return
    executions = batch.rows // batch.rows_alone if batch.rows_alone else 1
    waited_ns = elapsed_ns - own_ns  # for a processor: in one of the executions
    for _ in range(executions):
        each_ns = own_ns // executions
        placement.observe(batch.rows // executions, each_ns, each_ns + waited_ns)
        waited_ns = 0


def phases_of(trace):
    moments = list(replayed(trace))
    before = ExecutionMode.THREADS.value
    for number, group in groupby(moments, key=lambda moment: moment[0]):
        described = trace["phases"][number]
        expected = described["expected"]
        times, modes = zip(*[(at_us, mode) for _, at_us, mode in group], strict=True)
        changes = sum(one != other for one, other in zip([before, *modes], modes, strict=False))
        before = modes[-1]
        settled_us = None
        if modes[-1] == expected:
            wrong = [place for place, mode in enumerate(modes) if mode != expected]
            settled_us = times[wrong[-1] + 1] - times[0] if wrong else 0
        yield Phase(described["load"], expected, settled_us, changes)


@pytest.mark.parametrize("name", TRACES)
def test_the_choice_follows_the_load_within_half_a_second(name):
    trace = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    phases = list(phases_of(trace))
    assert len(phases) == len(trace["phases"])
    expected_before = "threads"
    for phase in phases:
        assert phase.settled_us is not None, phase
        assert phase.settled_us <= RETURN_WITHIN_US, phase
        assert phase.changes == (phase.expected != expected_before), phase
        expected_before = phase.expected


@pytest.mark.parametrize("name", TRACES)
def test_under_each_load_alone_it_finds_the_right_place(name):
    """As if the server had been started under it."""
    trace = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    starts = [phase["at_us"] for phase in trace["phases"]]
    for phase, start_us, end_us in zip(
        trace["phases"], starts, [*starts[1:], float("inf")], strict=True
    ):
        lines = [line for line in trace["batches"] if start_us + 200_000 < line[0] < end_us]
        (alone,) = phases_of({**trace, "phases": [phase], "batches": lines})
        assert alone.settled_us is not None, alone
        assert alone.settled_us <= RETURN_WITHIN_US, alone
        assert alone.changes == (alone.expected == "loop"), alone


def test_traces_of_all_kinds_are_there():
    assert {"tiny", "tiny_on_threads", "tiny_busy", "large", "large_on_threads", "network"} <= set(
        TRACES
    )


def test_the_busy_machine_shows_in_its_trace():
    """By the clock, executions of the tiny model would often have been too slow."""
    trace = json.loads((FOLDER / "tiny_busy.json").read_text(encoding="utf-8"))
    slow = [batch for batch in batches_of(trace) if batch.elapsed_us * 1000 > QUICK_NS]
    assert len(slow) > 20
    assert max(batch.elapsed_us for batch in slow) > 5_000
