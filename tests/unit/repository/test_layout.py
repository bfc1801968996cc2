"""Folders: models, versions, fingerprints, names, and which versions are served."""

from __future__ import annotations

import logging
import os

import pytest

from shoal.config.model import ModelVersionPolicy as Policy
from shoal.errors import InvalidArgument
from shoal.repository import layout


def test_models_are_folders_and_hidden_ones_are_not(tmp_path):
    for name in ("a", "b", ".git"):
        (tmp_path / name).mkdir()
    (tmp_path / "README").touch()
    assert list(layout.find_models([tmp_path])) == ["a", "b"]


def test_a_name_that_is_not_utf_8_can_be_shown_and_not_loaded(tmp_path):
    folder = tmp_path / os.fsdecode(b"\xffm")
    folder.mkdir()
    assert layout.find_models([tmp_path]) == {"\\xffm": [folder]}
    with pytest.raises(InvalidArgument, match="invalid model name"):
        layout.check_name("\\xffm")


def test_names_in_two_repositories_have_two_folders(tmp_path):
    for repository in ("one", "two"):
        (tmp_path / repository / "m").mkdir(parents=True)
    found = layout.find_models([tmp_path / "one", tmp_path / "two"])
    assert [path.parent.name for path in found["m"]] == ["one", "two"]


def test_a_vanished_repository_has_no_models(tmp_path, caplog):
    assert layout.find_models([tmp_path / "gone"]) == {}
    assert "gone" in caplog.text


def test_version_folders_are_numbers(tmp_path, caplog):
    for name in (
        "1",
        "10",
        "03",
        "v2",
        "-4",
        "warmup",
        "configs",
        "initial_state",
        "1.0",
        "²",
        "9" * 19,
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "7").touch()  # a file
    with caplog.at_level(logging.WARNING):
        assert sorted(layout.version_folders(tmp_path)) == [1, 10]
    assert "'03' is not a version" in caplog.text
    assert "warmup" not in caplog.text


@pytest.mark.parametrize("name", [".", "..", " .. ", "a/b", "a\\b", "a\0b", "../etc"])
def test_names_that_reach_outside_are_refused(name):
    with pytest.raises(InvalidArgument) as refused:
        layout.check_name(name)
    assert refused.value.message == (
        f"invalid model name '{name}', model name must not contain path traversal characters"
    )


@pytest.mark.parametrize("name", ["", " ", "\t \n"])
def test_empty_names_are_refused(name):
    with pytest.raises(InvalidArgument, match=r"^Model name cannot be empty\."):
        layout.check_name(name)


def test_a_fingerprint_sees_changes(tmp_path):
    file = tmp_path / "1" / "model.onnx"
    file.parent.mkdir()
    file.write_bytes(b"a")
    before = layout.fingerprint(tmp_path)
    assert layout.fingerprint(tmp_path) == before
    file.write_bytes(b"ab")
    after = layout.fingerprint(tmp_path)
    assert after != before
    (tmp_path / "labels.txt").touch()
    assert layout.fingerprint(tmp_path) != after
    assert [row[0] for row in layout.fingerprint(tmp_path, skip_folders=True)] == ["labels.txt"]


def test_config_name_picks_a_custom_config(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "gpu.pbtxt").touch()
    assert layout.config_file(tmp_path, "gpu").name == "gpu.pbtxt"
    assert layout.config_file(tmp_path, "other").name == "config.pbtxt"
    assert layout.config_file(tmp_path).name == "config.pbtxt"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (None, [7]),
        (Policy(), [7]),
        (Policy(latest=Policy.Latest(1)), [7]),
        (Policy(latest=Policy.Latest(2)), [5, 7]),
        (Policy(latest=Policy.Latest(9)), [1, 5, 7]),
        (Policy(latest=Policy.Latest(0)), [7]),
        (Policy(all=Policy.All()), [1, 5, 7]),
        (Policy(specific=Policy.Specific((5, 1))), [1, 5]),
        (Policy(specific=Policy.Specific((4, 5))), [5]),
        (Policy(specific=Policy.Specific((4,))), []),
    ],
)
def test_version_policies(policy, expected):
    assert layout.select_versions(policy, [7, 1, 5], "m") == expected
