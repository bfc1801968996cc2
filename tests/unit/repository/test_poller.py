"""Following changes: only what has stopped changing, and failures again later."""

from __future__ import annotations

from pathlib import Path

from shoal.repository.poller import ChangeDetector, RepositoryPoller

HERE = Path("m")


def look(**prints):
    return {name: ((HERE, (("f", mark, 1),)),) for name, mark in prints.items()}


def test_nothing_new_is_nothing_to_do():
    changes = ChangeDetector(look(a=1), 10)
    assert changes.settled(look(a=1)) == ([], [])
    assert not changes.unsettled(look(a=1))


def test_a_change_counts_once_it_stands_still():
    changes = ChangeDetector(look(a=1), 10)
    assert changes.settled(look(a=2)) == ([], [])
    assert changes.unsettled(look(a=2))
    assert changes.settled(look(a=3)) == ([], [])  # still being copied
    assert changes.settled(look(a=3)) == (["a"], [])
    assert changes.settled(look(a=3)) == ([], [])
    assert not changes.unsettled(look(a=3))


def test_new_and_removed_models():
    changes = ChangeDetector(look(a=1), 10)
    changes.settled(look(b=1))
    assert changes.settled(look(b=1)) == (["b"], ["a"])


def test_a_folder_that_comes_back_was_not_gone():
    changes = ChangeDetector(look(a=1), 10)
    assert changes.settled(look()) == ([], [])
    assert changes.settled(look(a=1)) == ([], [])
    assert changes.settled(look(a=1)) == ([], [])


def test_failures_are_tried_again_with_growing_pauses():
    changes = ChangeDetector(look(a=1), 10)
    changes.failed("a", 0)
    assert changes.due(9) == []
    assert changes.due(10) == ["a"]
    changes.failed("a", 10)
    assert changes.due(29) == []
    assert changes.due(30) == ["a"]
    changes.loaded("a")
    assert changes.due(1000) == []


class ChangeListener:
    def __init__(self):
        self.calls = []
        self.failing = set()

    def folder_changed(self, name):
        self.calls.append(("follow", name))

    def folder_removed(self, name):
        self.calls.append(("forget", name))

    def has_failed(self, name):
        return name in self.failing


def test_the_poller_tells_its_follower(tmp_path):
    follower = ChangeListener()
    now = [0.0]
    poller = RepositoryPoller(follower, [tmp_path], 10, clock=lambda: now[0])
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.pbtxt").write_text("")
    assert poller.poll_once()
    assert follower.calls == []
    follower.failing.add("a")
    assert not poller.poll_once()
    assert follower.calls == [("follow", "a")]
    now[0] = 11
    poller.poll_once()
    assert follower.calls == [("follow", "a")] * 2
    (tmp_path / "a" / "config.pbtxt").unlink()
    (tmp_path / "a").rmdir()
    poller.poll_once()
    poller.poll_once()
    assert follower.calls[-1] == ("forget", "a")
