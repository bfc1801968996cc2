"""The operations of tasks, without a server: what is sent, and what is made of the answer."""

import json

import numpy as np
import pytest

from shoal.client import InvalidInput, ProtocolError
from shoal.client import tasks as operations
from shoal.client.address import parse
from shoal.client.codec import RawResponse
from shoal.client.http_codec import HttpCodec
from shoal.client.result import Label
from shoal.client.steps import ClientSession
from shoal.wire import multipart


@pytest.fixture
def session():
    return ClientSession(HttpCodec(parse("localhost:8000"), {}), 5.0, retries=0)


def run(steps, answer):
    """Head and body of the one request, and the result once `answer` has come."""
    exchange = next(steps)
    head, _, body = b"".join(exchange.request.parts).partition(b"\r\n\r\n")
    with pytest.raises(StopIteration) as ended:
        steps.send(RawResponse(200, {}, json.dumps(answer).encode()))
    return head.decode(), body, ended.value.value


def parts(head, body):
    kind = next(line for line in head.splitlines() if line.startswith("Content-Type: "))
    found = multipart.parts(body, multipart.boundary_of(kind.removeprefix("Content-Type: ")))
    return [(part.name, part.file_name, bytes(part.content)) for part in found]


def test_photos_are_sent_as_a_form_and_labels_come_back(session, tmp_path):
    (tmp_path / 'c"at.jpg').write_bytes(b"\xff\xd8 one")
    steps = operations.classify(session, tmp_path / 'c"at.jpg', b"two", top=2)
    answer = {"images": [{"labels": [{"label": "cat", "score": 0.5, "index": 7}]}, {"labels": []}]}
    head, body, result = run(steps, answer)
    assert head.startswith("POST /classify HTTP/1.1")
    assert parts(head, body) == [
        ("top", None, b"2"),
        ("image", "c'at.jpg", b"\xff\xd8 one"),
        ("image", "photo", b"two"),
    ]
    assert result == [[Label(0.5, 7, "cat")], []]


def test_a_model_and_its_version_may_be_named(session):
    steps = operations.caption(session, b"x", options={"max_tokens": 5}, model="bl/ip", version=3)
    head, body, result = run(steps, {"captions": [{"caption": "a cat"}]})
    assert head.startswith("POST /v2/models/bl%2Fip/versions/3/caption HTTP/1.1")
    assert parts(head, body)[0] == ("max_tokens", None, b"5")
    assert result == ["a cat"]


def test_questions_are_json(session):
    steps = operations.answer(session, "A text.", "What?", model="questions")
    head, body, result = run(steps, {"answer": "A text", "start": 0, "end": 6})
    assert head.startswith("POST /v2/models/questions/answer HTTP/1.1")
    assert json.loads(body) == {"text": "A text.", "question": "What?"}
    assert result["answer"] == "A text"


@pytest.mark.parametrize(("texts", "sent"), [("one", ["one"]), (("one", "two"), ["one", "two"])])
def test_embeddings_are_an_array(session, texts, sent):
    answer = {"embeddings": [[0.25, 0.5]] * len(sent)}
    _, body, result = run(operations.embed(session, texts), answer)
    assert json.loads(body) == {"texts": sent}
    assert result.dtype == np.float32
    assert result.tolist() == answer["embeddings"]


def test_no_photo_at_all_is_told(session):
    with pytest.raises(InvalidInput, match="no photo was given"):
        next(operations.classify(session))


def test_a_photo_that_is_not_there_is_told(session):
    with pytest.raises(InvalidInput, match=r"nowhere\.jpg' cannot be read: No such file"):
        next(operations.classify(session, "nowhere.jpg"))


def test_an_answer_of_another_kind_is_told(session):
    steps = operations.embed(session, ["a"])
    next(steps)
    with pytest.raises(ProtocolError, match="has no 'embeddings'"):
        steps.send(RawResponse(200, {}, b"{}"))


def test_it_needs_http():
    class Other:
        pass

    with pytest.raises(InvalidInput, match="answer needs HTTP: use a client of the server's HTTP"):
        next(operations.answer(ClientSession(Other(), None, 0), "a", "b"))
