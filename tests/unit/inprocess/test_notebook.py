"""A server in a notebook: the table of its models, and the progress of their loading."""

import threading

import pytest

from shoal.inprocess import notebook
from tests.support.fakes import WAIT_SECS

MARKUP = "<img src=x onerror=alert(1)>"
INDEX = [
    {"name": "fish", "version": "1", "state": "READY", "reason": ""},
    {"name": MARKUP, "version": "2", "state": "UNAVAILABLE", "reason": f"no {MARKUP}"},
    {"name": "later"},
]
STATISTICS = [
    {
        "name": "fish",
        "version": "1",
        "inference_stats": {"success": {"count": 2000, "ns": 3_000_000_000}, "fail": {"count": 3}},
    }
]


def test_rows():
    assert list(notebook.model_rows(INDEX, STATISTICS)) == [
        ["fish", "1", "READY", "2,000", "3", "1.50 ms"],
        [MARKUP, "2", f"UNAVAILABLE: no {MARKUP}", "", "", ""],
        ["later", "", "not loaded", "", "", ""],
    ]


def test_texts_are_escaped():
    rows = notebook.model_rows(INDEX, STATISTICS)
    made = notebook.table(f"Shoal {MARKUP}", ["http://127.0.0.1:8000"], rows)
    assert "<img" not in made
    assert made.count("<tr>") == 4
    assert 'href="http://127.0.0.1:8000"' in made


def test_a_server_without_models_has_no_table():
    assert "<table" not in notebook.table("Shoal", (), ())


class Bar:
    total = n = 0
    closed = False

    def __init__(self):
        self.counts = []
        self.moved = threading.Condition()

    def set_postfix_str(self, words, *, refresh):
        self.words = words

    def refresh(self):
        with self.moved:
            self.counts.append((self.n, self.total, self.words))
            self.moved.notify_all()

    def close(self):
        self.closed = True


def test_progress_follows_the_index(monkeypatch):
    bar, states = Bar(), ["LOADING", "LOADING"]
    monkeypatch.setattr(notebook, "_FIRST_LOOK_SECS", 0)
    monkeypatch.setattr(notebook, "_bar_type", lambda: lambda **_: bar)

    def index():
        return [{"name": f"m{at}", "state": state} for at, state in enumerate(states)]

    with notebook.loading_progress(index):
        for at, expected in ((0, (1, 2, "m1")), (1, (2, 2, ""))):
            states[at] = "READY"
            with bar.moved:
                assert bar.moved.wait_for(lambda: bar.counts[-1:] == [expected], WAIT_SECS)  # noqa: B023
        assert not bar.closed
    assert bar.closed


def test_an_index_that_fails_harms_nothing(monkeypatch):
    bar = Bar()
    monkeypatch.setattr(notebook, "_FIRST_LOOK_SECS", 0)
    monkeypatch.setattr(notebook, "_bar_type", lambda: lambda **_: bar)
    with notebook.loading_progress(lambda: 1 / 0):
        pass
    assert bar.closed


def test_a_quick_load_shows_nothing(monkeypatch):
    monkeypatch.setattr(notebook, "_FIRST_LOOK_SECS", WAIT_SECS)
    monkeypatch.setattr(notebook, "_bar_type", lambda: pytest.fail)
    with notebook.loading_progress(lambda: INDEX):
        pass


def test_nothing_is_shown_where_nobody_looks(capsys):
    with notebook.loading_progress(lambda: INDEX):
        pass
    assert capsys.readouterr().err == ""
