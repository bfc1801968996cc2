"""The table, and what is said below it."""

from __future__ import annotations

import io
import math

import pytest

from shoal.perf.progress import ProgressLine
from shoal.stress import other_programs, table
from shoal.stress.cell import Cell, ServerSetup
from shoal.stress.findings import verdict
from shoal.stress.plan import StressPlan
from shoal.stress.progress import ProgressPrinter

WHOLE = {
    (1, False, 1): [18.0, 20.0],
    (1, False, 5): [95.0, 105.0],
    (1, True, 1): [19.0, 19.0],
    (1, True, 5): [36.0, 44.0, 40.0, 40.0],
    (2, False, 1): [19.0, 19.0],
    (2, False, 5): [60.0, 60.0, 60.0],
}


def told(outcome, stream=None):
    lines = []
    printer = ProgressPrinter(lines.append, ProgressLine(stream))
    for setup in outcome.setups():
        printer.measured(outcome, setup)
    return lines


def test_it_grows_by_setups(made):
    assert told(made(WHOLE)) == [
        "model 'faq' · TCP · 4 questions per client · 2 cores",
        "latency in ms: mean ± standard deviation; below it, answers a second",
        "",
        "sessions  batching       1 client      5 clients",
        "────────────────────────────────────────────────",
        "       1  off          19.0 ± 1.0        100 ± 5",
        "                            4.0/s          4.0/s",
        "          on           19.0 ± 0.0     40.0 ± 2.8",
        "                            4.0/s          8.0/s",
        "          faster            1.00x          2.50x",
        "",
        "       2  off          19.0 ± 0.0     60.0 ± 0.0",
        "                            4.0/s          6.0/s",
    ]


def test_four_columns_fit_into_eighty(made):
    clients = (1, 5, 20, 50)
    slow = {(1, batching, n): [99999.0, 11111.0] for batching in (False, True) for n in clients}
    assert max(map(len, told(made(slow, clients)))) < 80


def test_what_failed_and_what_is_missing(made):
    outcome = made(
        {(1, False, 1): [], (1, False, 5): [5.0, 6.0]},
        (1, 5, 20),
        c1={"failures": {"refused": 4}},
        c5={"failures": {"late": 2}, "partial": True},
    )
    assert told(outcome)[5:] == [
        "       1  off           no answer    5.50 ± 0.50              -",
        "                                          4.0/s*",
        "          failed           4 of 4         2 of 4",
    ]


def test_a_running_server_may_not_say_how_it_is_set_up(made):
    assert told(made({(None, None, 1): [1.0]}, (1,)))[5] == "       -  -           1.00 ± 0.00"


def test_nothing_measured_is_no_row(made):
    outcome = made({})
    lines = []
    ProgressPrinter(lines.append, ProgressLine(None)).measured(
        outcome, ServerSetup(1, batching=False)
    )
    assert lines == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1234, "0.12"), (9.99, "9.99"), (9.996, "10.0"), (99.94, "99.9"), (99.96, "100")],
)
def test_milliseconds(value, text):
    assert table.milliseconds(value) == text


def test_a_bar_on_a_terminal():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    printer = ProgressPrinter(print, ProgressLine(terminal))
    printer.starting(ServerSetup(2, batching=True))
    printer.asking(20, 300, 1200)
    assert terminal.getvalue().split("\r\x1b[2K")[1:] == [
        "  … 2 sessions, with batching · starting",
        "  … 2 sessions, with batching · 20 clients ███░░░░░░░░░ 300/1,200 questions",
    ]


# ---- sentences


def test_what_batching_and_sessions_do(made):
    assert verdict(made(WHOLE, c5={"mean_batch": 3.14})) == [
        "With 5 clients and 1 session, batching makes answers 2.5 times as fast (100 to 40.0 ms, 4 to 8 answers a second); the mean batch was 3.1 questions.",
        "With 1 client and 1 session, it changes little (19.0 to 19.0 ms).",
        "Without batching and with 5 clients, 2 sessions give 1.50 times as many answers a second as 1 (4 to 6).",
        "The clients were not the bottleneck: they were busy 0% of the time at most.",
    ]


def test_batching_that_costs(made):
    found = verdict(made({(1, False, 5): [10.0], (1, True, 5): [20.0]}))
    assert "batching makes answers 2.0 times as slow (10.0 to 20.0 ms" in found[0]


def test_failures_by_reason_the_most_frequent_first(made):
    failures = {"late": 1, "refused": 4, "lost": 3, "odd": 2}
    found = verdict(made({(1, False, 1): [], (1, False, 5): [5.0]}, c1={"failures": failures}))
    assert found[:5] == [
        "10 of 11 questions were not answered:",
        "  4 times: refused",
        "  3 times: lost",
        "  2 times: odd",
        "  and 1 other reason",
    ]


def test_clients_that_could_not_ask_faster(made):
    found = verdict(made(WHOLE, c5={"busy": 0.6, "starved": 0.3}))
    assert found[-1].startswith("The clients were the bottleneck in 3 of 6 cells")
    assert "used a CPU 60% of the time and waited for one 30% of it" in found[-1]


def test_a_busy_machine_is_mentioned(made):
    found = verdict(made(WHOLE, c1={"others": 0.04}, c5={"others": 0.31}))
    assert found[-1] == (
        "Other programs used 4% to 31% of this machine's CPUs during the run: measure again when "
        "the machine is idle."
    )
    assert verdict(made(WHOLE, c5={"others": 0.02}))[-1].startswith("The clients were not")


def test_the_share_of_others():
    assert other_programs.share(10.0, 10.0, 1.0) == 0
    assert other_programs.share(10.0, 9.9, 1.0) == 0  # a clock that ticks a hundred times a second
    assert other_programs.share(10.0, 1e9, 1.0) == 1
    assert other_programs.share(10.0, 11.0, 0.0) == 0
    assert other_programs.others_secs() >= 0


def test_what_was_interrupted(made):
    found = verdict(made({(1, False, 1): [5.0]}, c1={"partial": True}))
    assert found[-1] == "* interrupted before all questions were sent."


# ---- numbers


def test_a_cell():
    cell = Cell(ServerSetup(1, batching=True), 2, [4.0, 1.0, 3.0, 2.0], duration_secs=2.0)
    assert (cell.mean_ms, cell.per_second, cell.answered) == (2.5, 2.0, 4)
    assert cell.deviation_ms == pytest.approx(math.sqrt(1.25))
    assert [cell.percentile_ms(p) for p in (1, 50, 51, 99, 100)] == [1.0, 2.0, 3.0, 4.0, 4.0]
    cell.loaded_secs, cell.answered_under_load = 1.0, 3  # then one client had no more questions
    assert cell.per_second == 3.0
    empty = Cell(ServerSetup(1, batching=True), 2)
    assert empty.per_second == 0
    assert math.isnan(empty.mean_ms)
    assert math.isnan(empty.percentile_ms(50))


def test_cells_with_few_clients_ask_more_questions():
    plan = StressPlan([], clients=(1, 5, 50), least_requests=40, least_warmup=10)
    assert [plan.requests_of(clients) for clients in plan.clients] == [40, 10, 10]
    assert [plan.warmup_of(clients) for clients in plan.clients] == [10, 2, 1]
    assert plan.total(2) == 2 * (50 + 60 + 550)
