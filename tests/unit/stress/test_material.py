"""What is asked."""

from __future__ import annotations

import json

import pytest

from shoal.ask.question import Question
from shoal.errors import InvalidArgument
from shoal.stress import material


@pytest.fixture
def file(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def test_some_come_along():
    found = material.read()
    assert len(found) == 12
    assert {question.text for question in found} == {material.TEXT}


def test_questions_about_a_text(file):
    found = material.read(file("t.txt", "It is red.\n"), file("q.txt", "\nWhat?\n Why? \n"))
    assert found == [Question("It is red.", "What?"), Question("It is red.", "Why?")]


def test_pairs(file):
    pairs = [{"text": "a", "question": "b"}, {"text": "c\nd", "question": "e", "id": 3}]
    path = file("pairs.jsonl", "\n".join(map(json.dumps, pairs)))
    assert material.read("", path) == [Question("a", "b"), Question("c\nd", "e")]


@pytest.mark.parametrize(
    ("text", "questions", "says"),
    [
        ("It is red.", None, "--text-file needs questions"),
        (None, "What?", "contains questions but no text"),
        ("It is red.", "\n\n", "there is no question in"),
        (None, '{"text": "a"}', "line 1 of .* does not have the form"),
        (None, '{"text": "a", "question": "b"}\n{', "line 2 of"),
        (None, b"\xff\xfe", "--questions: .* cannot be read: it is not UTF-8"),
    ],
)
def test_mistakes(file, text, questions, says):
    paths = [
        "" if given is None else file(name, given)
        for name, given in (("t.txt", text), ("q.txt", questions))
    ]
    with pytest.raises(InvalidArgument, match=says):
        material.read(*paths)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidArgument, match=r"--questions: .* cannot be read: No such file"):
        material.read("", str(tmp_path / "none"))


def test_each_client_asks_all_in_an_order_that_the_seed_decides():
    questions = material.read()
    first = material.shuffled(questions, 3, seed=1)
    assert first == material.shuffled(questions, 3, seed=1)
    assert first != material.shuffled(questions, 3, seed=2)
    assert first[0] != first[1]
    for order in first:
        assert sorted(order, key=repr) == sorted(questions, key=repr)
