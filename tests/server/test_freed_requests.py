"""What a client has sent is freed with the response, not by a garbage collection some time later.

Collections count objects, not bytes: large requests in cycles would fill the memory before one.
"""

from __future__ import annotations

import gc
import gzip
import json
import queue
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

import shoal
from shoal.core.request import Request
from shoal.frontends.http.message import HttpRequest
from shoal.testing.server import running_server
from tests.support.client import Infer
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.repositories import add_fake

pytestmark = pytest.mark.one_process
TEXT = "herring " * 10_000  # read on a thread


@shoal.model(path="/shout")
def shout(text: str) -> str:
    if text == "fail":
        raise ValueError("no")
    return text.upper()


@shoal.model(path="/words")
def words(text: str) -> Iterator[str]:
    yield from text.split(maxsplit=3)
    if text == "fail":
        raise ValueError("no")


@shoal.model(path="/form")
def form(text: str, number: int) -> int:
    return number


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    add_fake(repository, "fake")
    backends = FakeBackend().registry()
    with running_server(repository, functions=[shout, words, form], backends=backends) as found:
        yield found


def left_behind(send):
    """The requests that only a collection would free, after three of them."""
    send()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(3):
            send()
        gc.collect()
        return [one for one in gc.garbage if isinstance(one, (HttpRequest, Request))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def number(name="INPUT0"):
    return Infer().add(name, np.array([[7]], np.int32))


@pytest.mark.parametrize(
    ("path", "document", "status"),
    [
        ("/shout", {"text": TEXT}, 200),
        ("/shout", {"text": "fail"}, 500),
        ("/shout", {"txt": TEXT}, 400),
        ("/shout", {"txt": "short"}, 400),
        ("/words", {"text": TEXT}, 200),
        ("/words", {"text": "fail"}, 200),
        ("/v2/models/shout/generate", {"text": TEXT}, 200),
        ("/v2/models/words/generate", {"text": TEXT}, 400),
        ("/v2/models/words/generate_stream", {"text": TEXT}, 200),
        ("/v2/models/fake/generate", {"INPUT0": [[7]]}, 200),
        ("/v2/models/fake/generate", {"INPUT1": [[7]]}, 400),
        ("/v2/models/fake/generate_stream", {"INPUT0": [[7]]}, 200),
        ("/v2/models/fake/generate_stream", {"INPUT1": [[7]]}, 400),
    ],
)
def test_plain_json(running, path, document, status):
    body = json.dumps(document).encode()
    assert running.call("POST", path, body).response().status == status
    assert left_behind(lambda: running.call("POST", path, body).response()) == []


@pytest.mark.parametrize("coding", ["identity", "gzip"])
@pytest.mark.parametrize(("name", "status"), [("INPUT0", 200), ("INPUT1", 400)])
def test_tensors(running, name, status, coding):
    body, headers = number(name).body()
    if coding == "gzip":
        body, headers = gzip.compress(body), {**headers, "Content-Encoding": coding}

    def send():
        answer = running.call("POST", "/v2/models/fake/infer", body, headers).response()
        assert answer.status == status

    assert left_behind(send) == []


@pytest.mark.parametrize("name", ["INPUT0", "INPUT1"])
def test_streams(running, name):
    tensor = grpcclient.InferInput(name, [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[7]], np.int32))
    answers = queue.Queue()
    with grpcclient.InferenceServerClient(running.grpc_address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))

        def send():
            client.async_stream_infer("fake", [tensor])
            result, _ = answers.get(timeout=WAIT_SECS)
            assert (result is None) == (name == "INPUT1")

        assert left_behind(send) == []
        client.stop_stream()
