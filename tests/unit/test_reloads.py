"""What is read again on request, and when its files change."""

import logging
import queue
import threading

import pytest

from shoal import reloads as reloads_module
from shoal.errors import InvalidArgument
from shoal.reloads import Reloads
from tests.support.fakes import WAIT_SECS


@pytest.fixture
def reloads(monkeypatch):
    monkeypatch.setattr(reloads_module, "POLL_SECS", 0.005)
    made = Reloads()
    yield made
    made.close()
    if made._thread is not None:
        made._thread.join(WAIT_SECS)
        assert not made._thread.is_alive()


def replace(path, text):
    """Put a new file in the place of `path`, as programs that renew certificates do."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def test_a_request_runs_every_action(reloads):
    ran = queue.Queue()
    reloads.add("one", lambda: ran.put("one"))
    reloads.add("two", lambda: ran.put("two"))
    assert reloads._thread is None  # nothing to watch: no thread yet
    reloads.request()
    assert [ran.get(timeout=WAIT_SECS), ran.get(timeout=WAIT_SECS)] == ["one", "two"]
    reloads.request()
    assert ran.get(timeout=WAIT_SECS) == "one"


def test_a_changed_file_runs_its_action_only(reloads, tmp_path):
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_text("1")
    other.write_text("1")
    ran = queue.Queue()
    reloads.add("a", lambda: ran.put(("a", file.read_text())), [str(file)])
    reloads.add("b", lambda: ran.put(("b", other.read_text())), [str(other)])
    reloads.add("c", lambda: ran.put(("c", "")))
    replace(file, "2")
    assert ran.get(timeout=WAIT_SECS) == ("a", "2")
    replace(other, "3")
    assert ran.get(timeout=WAIT_SECS) == ("b", "3")
    assert ran.empty()


def test_a_link_that_names_another_file(reloads, tmp_path):
    """Mounted secrets of Kubernetes are replaced in this way."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "key").write_text("key")
    link = tmp_path / "current"
    link.symlink_to("old")
    ran = threading.Event()
    reloads.add("a key", ran.set, [str(link / "key")])
    (tmp_path / "fresh").symlink_to("new")
    (tmp_path / "fresh").replace(link)
    assert ran.wait(WAIT_SECS)


def test_files_that_still_change_are_left_alone(tmp_path):
    file = tmp_path / "a"
    file.write_text("1")
    action = reloads_module._Action("a", lambda: None, (str(file),))
    assert not action.settled_change()
    replace(file, "22")
    assert not action.settled_change()  # changed since the last poll
    replace(file, "333")
    assert not action.settled_change()
    assert action.settled_change()
    reloads_module._perform(action)
    assert not action.settled_change()
    file.unlink()
    assert not action.settled_change()
    assert action.settled_change()  # its absence is a change, too: the action reports it


def test_an_action_that_fails_stops_no_other(reloads, caplog):
    ran = threading.Event()

    def refuse():
        raise InvalidArgument("--key=x cannot be read")

    def break_down():
        raise RuntimeError("a mistake")

    reloads.add("the key", refuse)
    reloads.add("the cat", break_down)
    reloads.add("the rest", ran.set)
    with caplog.at_level(logging.INFO, "shoal.reloads"):
        reloads.request()
        assert ran.wait(WAIT_SECS)
    texts = [record.getMessage() for record in caplog.records]
    assert texts[:2] == [
        "the key was not reloaded, and stays as it was: --key=x cannot be read",
        "the cat was not reloaded",
    ]
    assert caplog.records[0].exc_info is None
    assert caplog.records[1].exc_info is not None


def test_nothing_runs_after_the_end():
    reloads = Reloads()
    reloads.close()
    reloads.add("a", lambda: None, ["/nowhere"])
    reloads.request()
    assert reloads._thread is None
