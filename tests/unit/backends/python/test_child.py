"""The model's side of the pipe, with a pipe and a flusher played by the test."""

from __future__ import annotations

import threading

import pytest

from shoal.backends.python.process.child import Child


class Pipe:
    """Hands out what the test wrote, and notes what has gone out and what is held back."""

    def __init__(self, *arrivals):
        self.arrivals = list(arrivals)
        self.held = []
        self.sent = []

    def receive(self):
        return self.arrivals.pop(0)

    def send(self, kind, *body, more=False):
        self.held.append(kind)
        if not more:
            self.flush()

    def flush(self):
        self.sent += self.held
        self.held.clear()


class Flusher(threading.Event):
    """One that is just done whenever somebody looks whether it is at work."""

    def __init__(self, pipe):
        super().__init__()
        self.pipe = pipe
        self.set()

    def is_set(self):
        busy = super().is_set()
        self.clear()
        self.pipe.flush()
        return busy


class Instance:
    """A model that has nothing to do."""

    def execute(self, requests):
        pass


@pytest.fixture
def child(monkeypatch):
    # Answers are held back as if the last ones had gone out this very moment.
    monkeypatch.setattr("shoal.backends.python.process.child._LONGEST_HOLD_NS", 10**18)
    return Child(Pipe())


def test_the_first_word_may_come_in_pieces(monkeypatch):
    completed = []
    monkeypatch.setattr(Child, "_complete", lambda _, *asked: completed.append(asked))
    Child(Pipe([], [], [("complete", ("model.py", ".", "{}"))])).run()
    assert completed == [("model.py", ".", "{}")]


def test_answers_go_out_at_once_when_nothing_follows(child):
    child._execute(Instance(), 1, [])
    assert child._link.sent == ["done"]


def test_what_is_held_back_for_the_next_is_not_missed_by_the_flusher(child):
    child._holding = Flusher(child._link)
    child._work.put((2, []))
    child._execute(Instance(), 1, [])
    assert child._link.sent == ["done"]
    assert child._link.held == []
