"""Exceptions of models as text."""

from __future__ import annotations

import importlib

import pytest

from shoal.backends.python import failure
from shoal.backends.python.api.errors import TritonError, TritonModelException


def caught(function, *arguments):
    with pytest.raises(BaseException) as raised:
        function(*arguments)
    return raised.value


def fails(error):
    raise error


def recurses():
    recurses()


def to_and_fro(depth=0):
    if depth % 2:
        return to_and_fro(depth + 1)
    return back(depth)


def back(depth):
    return to_and_fro(depth + 2)


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def test_what_and_where():
    text = failure.describe(caught(fails, ValueError("no weights")))
    assert text.startswith("ValueError: no weights\n\nAt:\n  ")
    assert "test_failure.py(" in text
    assert text.endswith("): caught\n")


def test_without_a_text_there_is_a_name():
    assert failure.describe(caught(fails, KeyboardInterrupt())).startswith("KeyboardInterrupt\n")


@pytest.mark.parametrize("function", [recurses, to_and_fro])
def test_a_recursion_without_end_is_cut_short(function):
    text = failure.describe(caught(function))
    assert text.startswith("RecursionError: ")
    assert "more calls ..." in text
    assert len(text.splitlines()) < 50


def test_a_text_without_end_is_cut_short():
    text = failure.describe(caught(fails, ValueError("x" * 1_000_000)))
    assert "xxx... (1000012 characters in all)" in text
    assert len(text) < 10_000


def test_an_exception_that_cannot_be_shown():
    text = failure.describe(caught(fails, Unspeakable()))
    assert text.startswith("Unspeakable, whose text cannot be had: its __str__ raises RuntimeError")


def test_what_no_encoding_has_is_written_out():
    assert "a\\ud800b" in failure.describe(caught(fails, ValueError("a\ud800b")))
    assert TritonError("a\ud800b é").message() == "a\\ud800b é"


def test_of_the_import_only_the_model_is_shown(tmp_path, monkeypatch):
    (tmp_path / "broken_model.py").write_text("import nothing_of_this_name")
    monkeypatch.syspath_prepend(tmp_path)
    text = failure.describe(caught(importlib.import_module, "broken_model"))
    assert "broken_model.py(1): <module>" in text
    assert "importlib" not in text


def test_our_own_exceptions_are_just_their_text():
    assert failure.describe(TritonModelException("it must be a list")) == "it must be a list"


def test_the_place_is_the_models_line_that_raised(tmp_path, monkeypatch):
    (tmp_path / "failing_model.py").write_text("\n\nraise ValueError\n")
    monkeypatch.syspath_prepend(tmp_path)
    error = caught(importlib.import_module, "failing_model")
    assert failure.place(error) == (str(tmp_path / "failing_model.py"), 3)


def test_the_place_of_an_exception_that_was_never_raised_is_here():
    assert failure.place(ValueError()) == (failure.__file__, 0)
