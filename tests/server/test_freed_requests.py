"""What a client has sent is freed with the response, not by a garbage collection some time later.

Collections count objects, not bytes: large requests in cycles would fill the memory before one.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import gzip
import io
import json
import queue
import socket
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from PIL import Image
from tritonclient.utils import InferenceServerException

import shoal
from shoal.cli.demo import repository as demo
from shoal.core.request import Request
from shoal.frontends.http.message import HttpRequest
from shoal.testing.server import running_server
from shoal.wire.json_objects import Message
from tests.support.client import Infer
from tests.support.ensembles import chain
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.keys import bearer, write_keys
from tests.support.repositories import add_fake, add_model
from tests.support.traces import trace_settings

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


@shoal.model(path="/size")
def size(photo: Image.Image) -> int:
    return photo.width


@pytest.fixture(scope="module", params=["plain", "keys", "traces"])
def running(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    repository = folder / "models"
    add_fake(repository, "fake")
    add_model(repository, "both", chain("fake", "fake", first="INPUT0", last="OUTPUT0"))
    options = {
        "plain": {},
        "keys": {"api_keys": write_keys(folder / "keys", app={})},
        "traces": {
            "trace_config": trace_settings(
                f"triton,file={folder / 'traces'}", "level=TIMESTAMPS", "rate=1"
            )
        },
    }[request.param]
    backends = FakeBackend().registry()
    functions = [shout, words, size]
    with running_server(repository, functions=functions, backends=backends, **options) as found:
        yield found


def left_behind(send, kinds=(HttpRequest, Request)):
    """The requests that only a collection would free, after three of them."""
    send()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(3):
            send()
        gc.collect()
        return [one for one in gc.garbage if isinstance(one, kinds)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


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

    def send():
        assert running.call("POST", path, body, bearer("app")).response().status == status

    assert left_behind(send) == []


def cut_photo():
    """A photo whose header is right and whose pixels are missing."""
    file = io.BytesIO()
    Image.effect_noise((200, 200), 50).save(file, "PNG")
    return file.getvalue()[:20_000]


def test_photos_of_functions(running):
    photo = {"photo": base64.b64encode(cut_photo()).decode()}

    def send():
        answer = running.call("POST", "/size", json.dumps(photo).encode(), bearer("app")).response()
        assert (answer.status, "truncated" in answer.error) == (400, True)

    assert left_behind(send) == []


def test_photos_of_tasks():
    with running_server(demo(), model_control_mode="explicit", load_model=("photos",)) as running:

        def send():
            answer = running.call("POST", "/classify", cut_photo()).response()
            assert (answer.status, "truncated" in answer.error) == (400, True)

        assert left_behind(send) == []


def test_questions_over_tcp():
    options = {"model_control_mode": "explicit", "load_model": ("questions",), "tcp_port": 0}
    with running_server(demo(), **options) as running:

        def send():
            address = ("127.0.0.1", running.server.tcp_port)
            with socket.create_connection(address, timeout=WAIT_SECS) as client:
                client.sendall(b'{"text": "A text without a question."}\n')
                assert client.recv(1000).startswith(b"error: ")

        assert left_behind(send, Message) == []


@pytest.mark.parametrize("coding", ["identity", "gzip"])
@pytest.mark.parametrize(("name", "status"), [("INPUT0", 200), ("INPUT1", 400)])
@pytest.mark.parametrize("model", ["fake", "both"])
def test_tensors(running, model, name, status, coding):
    body, headers = Infer().add(name, np.array([[7]], np.int32)).body()
    headers |= bearer("app")
    if coding == "gzip":
        body, headers = gzip.compress(body), headers | {"Content-Encoding": coding}

    def send():
        answer = running.call("POST", f"/v2/models/{model}/infer", body, headers).response()
        assert answer.status == status

    assert left_behind(send) == []


def input_called(name):
    tensor = grpcclient.InferInput(name, [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[7]], np.int32))
    return tensor


@pytest.mark.parametrize("name", ["INPUT0", "INPUT1"])
@pytest.mark.parametrize("model", ["fake", "both"])
def test_calls(running, model, name):
    tensor = input_called(name)
    with grpcclient.InferenceServerClient(running.grpc_address) as client:

        def send():
            with (
                contextlib.nullcontext()
                if name == "INPUT0"
                else pytest.raises(
                    InferenceServerException, match="unexpected inference input 'INPUT1'"
                )
            ):
                client.infer(model, [tensor], headers=bearer("app"))

        assert left_behind(send) == []


@pytest.mark.parametrize("name", ["INPUT0", "INPUT1"])
def test_streams(running, name):
    tensor = input_called(name)
    answers = queue.Queue()
    with grpcclient.InferenceServerClient(running.grpc_address) as client:
        client.start_stream(
            lambda result, error: answers.put((result, error)), headers=bearer("app")
        )

        def send():
            client.async_stream_infer("fake", [tensor])
            result, _ = answers.get(timeout=WAIT_SECS)
            assert (result is None) == (name == "INPUT1")

        assert left_behind(send) == []
        client.stop_stream()
