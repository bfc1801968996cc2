"""task.json: what is read, and the sentence for what is wrong in it."""

import json

import pytest

from shoal.errors import ConfigError
from shoal.tasks.settings import TaskSettings


def settings(folder, **values):
    (folder / "task.json").write_text(json.dumps(values))
    return TaskSettings.of(folder)


def test_without_a_file_everything_has_its_default(tmp_path):
    found = TaskSettings.of(tmp_path)
    assert found.integer("size", 224, lowest=1, highest=4096) == 224
    assert found.text("labels", "labels.txt") == "labels.txt"
    assert found.numbers("mean", (1.0, 2.0), count=2) == (1.0, 2.0)
    found.check_all_read()


def test_settings_are_read(tmp_path):
    found = settings(tmp_path, size=96, mean=0.5, std=[1, 2, 3], crop="none", fast=True, share=0.5)
    assert found.integer("size", 224, lowest=1, highest=4096) == 96
    assert found.numbers("mean", (0, 0, 0), count=3) == (0.5, 0.5, 0.5)
    assert found.numbers("std", (0, 0, 0), count=3) == (1.0, 2.0, 3.0)
    assert found.choice("crop", "center", ("center", "none")) == "none"
    assert found.flag("fast", default=False) is True
    assert found.number("share", 1.0, lowest=0, highest=1) == 0.5
    found.check_all_read()


@pytest.mark.parametrize(
    ("value", "read", "said"),
    [
        (0, lambda s: s.integer("x", 1, lowest=1, highest=9), "found 0. Write a whole number fro"),
        (True, lambda s: s.integer("x", 1, lowest=0, highest=9), "found True. Write a whole numb"),
        ("a", lambda s: s.number("x", 1, lowest=0, highest=9), "found 'a'. Write a number from 0"),
        (1, lambda s: s.text("x"), "found 1. Write a text in quotes"),
        (1, lambda s: s.flag("x", default=True), "found 1. Write true or false"),
        ("b", lambda s: s.choice("x", "a", ("a", "c")), "found 'b'. Write one of a, c"),
        (["a"], lambda s: s.choice("x", "a", ("a", "c")), "found \\['a'\\]. Write one of a, c"),
        ([1, 2], lambda s: s.numbers("x", (), count=3), "found \\[1, 2\\]. Write 3 numbers, or on"),
        (["a"], lambda s: s.numbers("x", (), count=1), "found \\['a'\\]. Write 1 numbers"),
        ("no.json", lambda s: s.file("x", ""), "there is no file 'no.json'"),
        ("../secret", lambda s: s.file("x", ""), "is outside the model's folder"),
    ],
)
def test_what_is_wrong_is_told_with_the_way_out(tmp_path, value, read, said):
    with pytest.raises(ConfigError, match=f"^task.json: x: .*{said}"):
        read(settings(tmp_path, x=value))


def test_a_setting_that_nobody_knows_is_told(tmp_path):
    found = settings(tmp_path, size=3, szie=4)
    found.integer("size", 1, lowest=1, highest=9)
    with pytest.raises(ConfigError, match=r"task.json: szie: no such setting.*mean 'size'"):
        found.check_all_read()


@pytest.mark.parametrize("text", ["", "[1]", "{", '"text"', "\xff"])
def test_what_is_not_a_json_object_is_told(tmp_path, text):
    (tmp_path / "task.json").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"^task\.json: "):
        TaskSettings.of(tmp_path)


def test_a_file_in_the_folder_is_found(tmp_path):
    (tmp_path / "vocab.txt").write_text("a")
    assert settings(tmp_path).file("vocabulary", "vocab.txt").read_text() == "a"
