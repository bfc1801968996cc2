"""What a repository looks like when it is lost, and that nothing is concluded from it."""

from __future__ import annotations

import os
import shutil
import threading

import pytest

from shoal.repository import folders, layout
from shoal.repository.folders import RepositoryFolders, looks_unmounted
from shoal.repository.layout import Listing
from tests.support.fakes import WAIT_SECS

HERE, THERE = (1, 100), (2, 2)


def listing(identity, *names, broken=()):
    return Listing(identity, dict.fromkeys(names, layout.Path("x")), dict.fromkeys(broken, "why"))


@pytest.mark.parametrize(
    ("before", "now", "unmounted"),
    [
        (None, listing(HERE), False),  # nothing is known yet
        (listing(HERE), listing(THERE), False),  # nothing was there
        (listing(HERE, "a"), listing(HERE), False),  # the models were deleted
        (listing(HERE, "a", "b"), listing(HERE, "b"), False),
        (listing(HERE, "a"), listing(THERE, "a"), False),  # mounted anew
        (listing(HERE, "a"), listing(THERE, "b"), False),  # a link to another release
        (listing(HERE, "a"), listing(THERE), True),  # the mount point
        (listing(HERE, "a"), listing(THERE, broken=["a"]), False),  # each link is looked at
    ],
)
def test_looks_unmounted(before, now, unmounted):
    assert looks_unmounted(before, now) is unmounted


def add(repository, name, version="1"):
    file = repository / name / version / "model.onnx"
    file.parent.mkdir(parents=True)
    file.write_text("model")
    return repository / name


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "models"
    add(folder, "a")
    add(folder, "b")
    return folder


@pytest.fixture
def watched(repository):
    watched = RepositoryFolders([repository])
    assert set(watched.contents()) == {"a", "b"}
    return watched


def problem(watched):
    ((found,),) = watched.problems().values()
    assert found.repository
    return found.text


def no_problem(watched):
    return all(not found for found in watched.problems().values())


def test_all_is_well(watched, repository):
    assert watched.problems() == {str(repository): []}
    assert watched.find() == {"a": [repository / "a"], "b": [repository / "b"]}


def test_a_folder_that_is_missing(watched, repository, tmp_path, caplog):
    before = watched.contents()
    repository.rename(tmp_path / "away")
    for _ in range(3):
        assert watched.contents() == before
    assert watched.find() == {}
    assert (
        problem(watched)
        == f"the model repository '{repository}' cannot be read: No such file or directory"
    )
    assert watched.why_missing("a") == problem(watched)
    assert watched.why_kept("a", repository / "a") == problem(watched)
    assert watched.why_kept("a", tmp_path / "elsewhere" / "a") == ""
    assert len(caplog.records) == 1  # once, however often it was read
    (tmp_path / "away").rename(repository)
    assert watched.contents() == before
    assert no_problem(watched)


def test_a_mount_that_has_gone(watched, repository, tmp_path):
    """The path is there, and is the empty folder that the mount had hidden."""
    before = watched.contents()
    repository.rename(tmp_path / "away")
    repository.mkdir()
    assert watched.contents() == before
    assert "is empty and not the folder that it was" in problem(watched)
    assert watched.find() == {}
    add(repository, "c")  # it is in use
    assert set(watched.contents()) == {"c"}
    assert no_problem(watched)


def test_deleted_models_are_gone(watched, repository):
    shutil.rmtree(repository / "a")
    assert set(watched.contents()) == {"b"}
    shutil.rmtree(repository / "b")
    assert watched.contents() == {}
    assert no_problem(watched)


def test_a_repository_that_is_a_link(tmp_path):
    """As in Kubernetes: an update is a link that is swapped; one that leads nowhere is a problem."""
    for name in ("first", "second"):
        add(tmp_path / name, "a")
    add(tmp_path / "second", "b")
    link = tmp_path / "models"
    link.symlink_to(tmp_path / "first")
    watched = RepositoryFolders([link])
    assert set(watched.contents()) == {"a"}
    (tmp_path / "swap").symlink_to(tmp_path / "second")
    (tmp_path / "swap").rename(link)
    assert set(watched.contents()) == {"a", "b"}
    assert no_problem(watched)
    shutil.rmtree(tmp_path / "second")
    assert set(watched.contents()) == {"a", "b"}
    assert "No such file or directory" in problem(watched)


@pytest.mark.parametrize("what", ["a", "a/1", "a/1/model.onnx", "a/config.pbtxt"])
def test_links_that_lead_nowhere_any_more(repository, tmp_path, what):
    """Of a model's folder, of a version, of a file, of a config."""
    (repository / "a" / "config.pbtxt").write_text("")
    target = tmp_path / "elsewhere"
    (repository / what).rename(target)
    (repository / what).symlink_to(target)
    watched = RepositoryFolders([repository])
    before = watched.contents()
    away = target.rename(tmp_path / "away")
    (repository / "b" / "1" / "model.onnx").write_text("another")  # the others are followed
    now = watched.contents()
    assert now["a"] == before["a"]
    assert now["b"] != before["b"]
    assert "the folder of model 'a'" in problem(watched)
    assert watched.why_kept("a", repository / "a") == problem(watched)
    assert watched.why_kept("b", repository / "b") == ""
    if what == "a":
        assert "a link that leads nowhere" in watched.why_missing("a")
    away.rename(target)
    assert watched.contents()["a"] == before["a"]
    assert no_problem(watched)


def test_links_that_never_led_anywhere_are_no_news(repository):
    (repository / "c").symlink_to(repository / "missing")
    (repository / "a" / "1" / "notes").symlink_to(repository / "missing")
    watched = RepositoryFolders([repository])
    assert set(watched.contents()) == {"a", "b"}
    before = watched.contents()
    (repository / "a" / "1" / "model.onnx").write_text("another")
    assert watched.contents()["a"] != before["a"]
    assert no_problem(watched)


def test_a_folder_that_may_not_be_read(watched, repository, monkeypatch):
    """Permissions do not hold for root, so the refusal is made up."""
    before = watched.contents()
    scandir = os.scandir

    def refuse(path):
        if os.fspath(path) == os.fspath(repository / "a" / "1"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert watched.contents() == before
    assert "'1': Permission denied" in problem(watched)
    monkeypatch.undo()
    assert watched.contents() == before
    assert no_problem(watched)


def test_a_mount_that_goes_while_its_folders_are_read(watched, repository, tmp_path, monkeypatch):
    before = watched.contents()
    fingerprint = layout.fingerprint

    def lose(folder):
        if repository.exists():
            repository.rename(tmp_path / "away")
        return fingerprint(folder)

    monkeypatch.setattr(layout, "fingerprint", lose)
    assert watched.contents() == before


def test_one_of_two_repositories(repository, tmp_path):
    other = tmp_path / "others"
    add(other, "b")
    add(other, "c")
    watched = RepositoryFolders([repository, other])
    before = watched.contents()
    assert len(before["b"]) == 2
    other.rename(tmp_path / "away")
    assert watched.contents() == before
    assert set(watched.find()) == {"a", "b"}
    assert [bool(found) for found in watched.problems().values()] == [False, True]


def test_keys_in_namespaces(repository):
    watched = RepositoryFolders([repository], namespaced=True)
    key = f"{repository}/a"
    assert watched.find()[key] == [repository / "a"]
    watched.contents()
    assert watched.had(key)
    assert not watched.had("a")


def test_a_mount_that_does_not_respond(repository, monkeypatch):
    """One thread hangs; all others go on, and the problem is known."""
    now = [0.0]
    watched = RepositoryFolders([repository], clock=lambda: now[0])
    before = watched.contents()
    begun, may_end = threading.Event(), threading.Event()
    list_models = layout.list_models

    def hang(path):
        begun.set()
        assert may_end.wait(WAIT_SECS)
        return list_models(path)

    monkeypatch.setattr(layout, "list_models", hang)
    thread = threading.Thread(target=watched.find)
    thread.start()
    assert begun.wait(WAIT_SECS)
    assert not watched.not_responding()
    now[0] += folders._SILENT_SECS
    assert watched.not_responding()
    assert "it does not respond" in problem(watched)
    assert watched.find() == {}  # without waiting
    assert watched.contents() == before
    may_end.set()
    thread.join()
    assert not watched.not_responding()
    assert watched.contents() == before
    assert no_problem(watched)
