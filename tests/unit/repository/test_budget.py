"""Who has to go, as a table; and that those who have to, go."""

from __future__ import annotations

import threading

import pytest

from shoal.repository.budget import MemoryBudget, ResidentModel, format_bytes, next_to_go, used_last
from shoal.testing.server import wait_until


def model(key, at, *, size=10, busy=False, needed=False):
    return ResidentModel(key, size, at, busy=busy, needed=needed)


@pytest.mark.parametrize(
    ("residents", "spared", "goes"),
    [
        ([], "", None),
        ([model("a", 1)], "", "a"),
        ([model("a", 1)], "a", None),
        ([model("a", 2), model("b", 1), model("c", 3)], "", "b"),
        ([model("a", 1, busy=True), model("b", 2)], "", "b"),
        ([model("part", 1, needed=True), model("ensemble", 2)], "", "ensemble"),
        ([model("part", 1, needed=True), model("ensemble", 2, busy=True)], "", None),
        ([model("a", 1), model("b", 1)], "", "a"),  # of equals the one that was there first
    ],
)
def test_who_goes_next(residents, spared, goes):
    chosen = next_to_go(residents, spared)
    assert (chosen.key if chosen else None) == goes


@pytest.mark.parametrize(
    ("residents", "last"),
    [
        ([], ""),
        ([model("a", 2), model("b", 1)], "a"),
        ([model("ensemble", 5), model("part", 5, needed=True)], "ensemble"),
        ([model("part", 5, needed=True), model("ensemble", 5)], "ensemble"),
    ],
)
def test_who_was_used_last(residents, last):
    assert used_last(residents) == last


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (52 << 20, "52.0 MiB"),
        (3 << 40, "3.0 TiB"),
    ],
)
def test_sizes_for_people(count, text):
    assert format_bytes(count) == text


class Shelf:
    """RepositoryModels that hold what the test says, and go when they are told."""

    def __init__(self, *residents):
        self.residents = {resident.key: resident for resident in residents}
        self.gone = []
        self.changed = threading.Condition()

    def evict(self, key):
        with self.changed:
            del self.residents[key]
            self.gone.append(key)
            self.changed.notify_all()

    def wait_gone(self, *keys):
        with self.changed:
            assert self.changed.wait_for(lambda: self.gone == list(keys), 20), self.gone

    def budget(self, limit):
        return MemoryBudget(limit, lambda: list(self.residents.values()), self.evict)


@pytest.fixture
def started():
    """Starts budgets, and stops them at the end."""
    budgets = []

    def start(budget):
        budgets.append(budget)
        budget.start()
        return budget

    yield start
    for budget in budgets:
        budget.stop()


def test_room_is_made_before_a_load():
    shelf = Shelf(model("a", 1), model("b", 2), model("c", 3))
    budget = shelf.budget(30)
    budget.make_room("d", 0)
    assert shelf.gone == []
    budget.make_room("d", 11)
    assert shelf.gone == ["a", "b"]
    assert budget.evictions == 2


def test_a_newcomer_that_is_there_already_is_not_evicted_for_itself():
    shelf = Shelf(model("a", 1), model("b", 2))
    shelf.budget(10).make_room("a", 10)
    assert shelf.gone == ["b"]


def test_too_much_after_a_load(started):
    shelf = Shelf(model("a", 3), model("b", 1), model("c", 2))
    started(shelf.budget(25)).loads_changed()
    shelf.wait_gone("b")


def test_an_ensemble_goes_before_what_it_is_made_of(started):
    shelf = Shelf(model("part", 1, needed=True), model("ensemble", 1, size=0), model("new", 9))
    evict = shelf.evict

    def evict_both(key):
        if key == "ensemble":
            shelf.residents["part"] = model("part", 1)
        evict(key)

    shelf.evict = evict_both
    started(shelf.budget(15)).loads_changed()
    shelf.wait_gone("ensemble", "part")


def test_what_is_in_use_goes_later(started):
    shelf = Shelf(model("a", 1, busy=True), model("b", 2))
    budget = started(shelf.budget(15))
    budget.loads_changed()
    looked = threading.Event()
    residents = budget._residents
    budget._residents = lambda: (looked.set(), residents())[1]
    assert looked.wait(20)
    assert shelf.gone == []
    shelf.residents["a"] = model("a", 1)
    shelf.wait_gone("a")


def test_one_model_larger_than_the_budget_is_served_alone(started, caplog):
    shelf = Shelf(model("huge", 5, size=100), model("a", 1))
    budget = started(shelf.budget(50))
    budget.loads_changed()
    shelf.wait_gone("a")
    wait_until(lambda: "model 'huge' alone uses more than" in caplog.text)
    assert list(shelf.residents) == ["huge"]


def test_a_surprise_does_not_end_the_watch(started, caplog):
    shelf = Shelf(model("a", 1), model("b", 2))
    failures = [RuntimeError("no")]
    evict = shelf.evict

    def fail_once(key):
        if failures:
            raise failures.pop()
        evict(key)

    shelf.evict = fail_once
    started(shelf.budget(15)).loads_changed()
    shelf.wait_gone("a")
    assert "models could not be evicted to meet the memory budget" in caplog.text
