"""Questions and answers, as they travel."""

from __future__ import annotations

import json

import pytest

from shoal.ask.question import (
    Answer,
    Question,
    http_answer,
    http_message,
    tcp_answer,
    tcp_message,
)
from shoal.client.address import parse
from shoal.client.errors import InvalidInput, ProtocolError, ServerError

QUESTION = Question("Two lines,\nwith “quotes” and ünïcode.", "How many?")


def test_over_tcp_a_question_is_one_line_of_json():
    message = tcp_message("", QUESTION)
    assert message.count(b"\n") == 1
    assert message.endswith(b"\n")
    assert json.loads(message) == {"text": QUESTION.text, "question": QUESTION.question}


def test_over_tcp_a_model_may_be_named():
    assert json.loads(tcp_message("faq", QUESTION))["model"] == "faq"


def test_half_a_character_is_refused_with_a_sentence():
    with pytest.raises(InvalidInput, match="not valid Unicode"):
        tcp_message("", Question("\udc80", "?"))


def test_answers_over_tcp():
    assert tcp_answer("nächtlich".encode()) == Answer("nächtlich")
    assert tcp_answer(b"blue\r") == Answer("blue")
    assert not tcp_answer(b"Unknown").known
    with pytest.raises(ServerError, match=r"^the question is empty$"):
        tcp_answer(b"error: the question is empty")


@pytest.mark.parametrize(
    ("url", "model", "line"),
    [
        ("localhost:8000", "", b"POST /answer HTTP/1.1\r\nHost: localhost:8000\r\n"),
        (
            "http://box:80/models/",
            "a b",
            b"POST /models/v2/models/a%20b/answer HTTP/1.1\r\nHost: box:80\r\n",
        ),
    ],
)
def test_over_http_a_question_is_a_post(url, model, line):
    head, _, body = http_message(parse(url), model, QUESTION).partition(b"\r\n\r\n")
    assert head.startswith(line)
    assert f"Content-Length: {len(body)}".encode() in head
    assert json.loads(body) == {"text": QUESTION.text, "question": QUESTION.question}


def test_answers_over_http():
    document = {"model_name": "m", "answer": "two", "score": 1, "start": 3, "end": 6, "more": []}
    assert http_answer(document) == Answer("two", 1.0, 3, 6, "m")
    unknown = {"answer": "No idea", "score": 0.1, "start": None, "end": None}
    assert not http_answer(unknown).known
    with pytest.raises(ProtocolError, match="no answer"):
        http_answer({"outputs": []})


@pytest.mark.parametrize(
    ("answer", "span"),
    [
        (Answer("red", start=8, end=11), (8, 11)),
        (Answer("red"), None),  # twice: nobody knows which
        (Answer("blue"), (16, 20)),
        (Answer("green"), None),
        (Answer("Unknown"), None),
        (Answer("red", start=8, end=99), None),  # another text's
        (Answer(""), None),
    ],
)
def test_where_the_answer_stands(answer, span):
    assert answer.span("red and red and blue") == span


def test_over_tcp_a_line_break_in_the_answer_is_a_space():
    assert Answer("at night").span("rests\nat\nnight.") == (6, 14)


def test_a_text_that_says_unknown():
    assert Answer("Unknown", start=0, end=7).known
