"""Following changes: only what has stopped changing, and failures again later."""

from __future__ import annotations

import threading
from pathlib import Path

from shoal.repository import folders, layout
from shoal.repository import poller as polling
from shoal.repository.folders import RepositoryFolders
from shoal.repository.poller import ChangeDetector, RepositoryPoller
from tests.support.fakes import WAIT_SECS

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
    def as_fetched(self, names, _secs):
        return names

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
    poller = RepositoryPoller(follower, RepositoryFolders([tmp_path]), 10, clock=lambda: now[0])
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


def test_a_lost_repository_is_no_change(tmp_path):
    follower = ChangeListener()
    models = tmp_path / "models"
    (models / "a").mkdir(parents=True)
    (models / "a" / "config.pbtxt").write_text("")
    watched = RepositoryFolders([models])
    poller = RepositoryPoller(follower, watched, 10)
    poller.poll_once()
    poller.poll_once()
    assert follower.calls == [("follow", "a")]
    models.rename(tmp_path / "away")
    for _ in range(3):
        assert not poller.poll_once()
    models.mkdir()  # an empty mount point
    for _ in range(3):
        assert not poller.poll_once()
    models.rmdir()
    (tmp_path / "away").rename(models)
    for _ in range(3):
        assert not poller.poll_once()
    assert follower.calls == [("follow", "a")]
    (models / "a" / "config.pbtxt").write_text("max_batch_size: 4")
    poller.poll_once()
    poller.poll_once()
    assert follower.calls == [("follow", "a")] * 2


def test_a_read_that_hangs_stops_neither_polls_nor_the_exit(tmp_path, monkeypatch):
    begun, may_end, reads = threading.Event(), threading.Event(), []
    monkeypatch.setattr(polling, "_LOOK_SECS", 0.01)
    monkeypatch.setattr(folders, "_SILENT_SECS", 0.0)

    def hang(path):
        reads.append(path)
        begun.set()
        assert may_end.wait(WAIT_SECS)
        return layout.Listing((0, 0), {}, {})

    monkeypatch.setattr(layout, "list_models", hang)
    watched = RepositoryFolders([tmp_path])
    poller = RepositoryPoller(ChangeListener(), watched, 0.1)
    try:
        assert not poller.poll_once()
        assert begun.wait(WAIT_SECS)
        assert not poller.poll_once()  # waits for the same read
        assert len(reads) == 1
        assert "does not respond" in watched.problems()[str(tmp_path)][0].text
        monkeypatch.setattr(folders, "_SILENT_SECS", 1000.0)
        poller.start({})
        poller.stop()  # returns though the read does not
    finally:
        may_end.set()


def test_only_watching_loads_nothing(tmp_path):
    follower = ChangeListener()
    watched = RepositoryFolders([tmp_path])
    poller = RepositoryPoller(follower, watched, 1000)
    poller.watch()
    (tmp_path / "a").mkdir()
    assert not poller.poll_once()
    assert not poller.poll_once()
    assert follower.calls == []
    poller.stop()
