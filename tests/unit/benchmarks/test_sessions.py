"""The table of sessions by clients, and where it falls."""

from __future__ import annotations

from benchmarks.sessions import decreases, table


def cell(sessions, batching, clients, per_second, others=0.0):
    return {
        "sessions": sessions,
        "batching": batching,
        "clients": clients,
        "per_second": per_second,
        "others": others,
    }


CELLS = [
    cell(1, False, 1, 40.0),
    cell(1, False, 5, 41.0),
    cell(2, False, 1, 39.0),
    cell(2, False, 5, 20.0, others=0.3),
    cell(2, True, 5, 50.0),
]


def test_the_table_marks_cells_that_others_disturbed():
    assert table(CELLS) == [
        "| sessions, batching | 1 clients | 5 clients |",
        "|---|---:|---:|",
        "| 1, off | 40.0 | 41.0 |",
        "| 2, off | 39.0 | 20.0* |",
        "| 2, on | - | 50.0 |",
        "",
        "\\* other programs used more than 10% of the CPUs meanwhile.",
    ]


def test_the_largest_decrease_in_each_direction():
    clients, sessions, batching = decreases(CELLS)
    assert clients.startswith("- With more clients it falls: at least 0.51 times")
    assert "(1 session, batching off, 5 clients, then 2 sessions, batching off, 5 clients)" in (
        sessions
    )
    assert batching.startswith("- With batching it rises or stays level: at least 2.50 times")
