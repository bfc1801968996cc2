import base64
import threading

import pytest

from shoal.errors import Internal, Unavailable

LOAD = "/v2/repository/models/m/load"
UNLOAD = "/v2/repository/models/m/unload"
INDEX = "/v2/repository/index"


@pytest.mark.parametrize(
    ("body", "ready_only"),
    [(b"", False), ({}, False), ({"ready": False}, False), ({"ready": True}, True)],
)
@pytest.mark.parametrize("path", [INDEX, "/v2/repository/some/index"])
def test_index(front, path, body, ready_only):
    answer = front.ask("POST", path, body)
    assert answer.status == 200
    assert answer.json == [{"name": "m", "version": "1", "state": "READY"}]
    assert front.engine.calls == [("index", ready_only)]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"ready": 1}, "Invalid value for 'ready': expected a boolean"),
        ({"ready": "true"}, "Invalid value for 'ready': expected a boolean"),
        ([], "the request body must be a JSON object"),
        (b"{", "failed to parse the request JSON buffer: "),
        (
            b'{"ready":' + b"[" * 250_000 + b"]" * 250_000 + b"}",
            "Invalid value for 'ready': expected a boolean. JSON nesting depth exceeds",
        ),
    ],
)
def test_index_refusals(front, body, text):
    answer = front.ask("POST", INDEX, body)
    assert answer.status == 400
    assert answer.error.startswith(text)
    assert front.engine.calls == []


@pytest.mark.parametrize(
    ("body", "config", "files"),
    [
        (b"", None, {}),
        ({}, None, {}),
        ({"parameters": {}}, None, {}),
        ({"parameters": {"config": '{"max_batch_size":4}'}}, '{"max_batch_size":4}', {}),
        (
            {
                "parameters": {
                    "file:1/model.onnx": base64.b64encode(b"\0onnx").decode(),
                    "file:labels.txt": "Y2F0\nCmRvZw==",
                    "config": "{}",
                }
            },
            "{}",
            {"1/model.onnx": b"\0onnx", "labels.txt": b"cat\ndog"},
        ),
    ],
)
def test_load(front, body, config, files):
    answer = front.ask("POST", LOAD, body)
    assert (answer.status, answer.body) == (200, b"")
    assert front.engine.calls == [("load", "m", config, files)]


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ([], "Unable to parse 'parameters': attempt to get members for non-object"),
        (
            {"config": {}},
            "attempt to access JSON non-string as string: load parameter 'config' must be a string",
        ),
        ({"file:1/m": 1, "config": "{}"}, "attempt to access JSON non-string as string: load"),
        ({"x": "1"}, "unrecognized load parameter 'x', expected 'config' or 'file:<version>/"),
        ({"file:1/m": "YQ=="}, "the load parameters hold files but no 'config': "),
        ({"file:1/m": "YQ", "config": "{}"}, "load parameter 'file:1/m' is not valid base64: "),
        ({"file:1/m": "Y?==", "config": "{}"}, "load parameter 'file:1/m' is not valid base64: "),
        ({"file:1/m": "é", "config": "{}"}, "load parameter 'file:1/m' is not valid base64: "),
        ({"file:../m": "", "config": "{}"}, "load parameter 'file:../m' does not name a file"),
        ({"file:1/../../m": "", "config": "{}"}, "load parameter 'file:1/../../m' does not name"),
        ({"file:/etc/passwd": "", "config": "{}"}, "load parameter 'file:/etc/passwd' does not"),
        ({"file:a\\b": "", "config": "{}"}, "load parameter 'file:a\\\\b' does not name a file"),
        ({"file:a\0": "", "config": "{}"}, "load parameter 'file:a\\x00' does not name a file"),
        ({"file:": "", "config": "{}"}, "load parameter 'file:' does not name a file"),
    ],
)
def test_load_refusals(front, parameters, text):
    answer = front.ask("POST", LOAD, {"parameters": parameters})
    assert answer.status == 400
    assert answer.error.startswith(text)
    assert front.engine.calls == []


@pytest.mark.parametrize("path", [LOAD, UNLOAD, INDEX])
def test_bodies_have_a_limit(front, path):
    front.set(max_input_bytes=20)
    answer = front.ask("POST", path, b" " * 21)
    assert answer.status == 400
    assert answer.error.startswith(
        "request JSON size of 21 bytes exceeds the maximum allowed input size of 20 bytes."
    )


@pytest.mark.parametrize("action", ["load", "unload"])
def test_a_repository_cannot_be_chosen(front, action):
    answer = front.ask("POST", f"/v2/repository/some/models/m/{action}")
    assert answer.status == 501
    assert answer.error == "'repository_name' specification is not supported"


@pytest.mark.parametrize(
    ("body", "dependents"),
    [
        (b"", False),
        ({}, False),
        ({"parameters": {}}, False),
        ({"parameters": {"unload_dependents": False}}, False),
        ({"parameters": {"unload_dependents": True, "other": 1}}, True),
    ],
)
def test_unload(front, body, dependents):
    answer = front.ask("POST", UNLOAD, body)
    assert (answer.status, answer.body) == (200, b"")
    assert front.engine.calls == [("unload", "m", dependents)]


def test_unload_refusal(front):
    answer = front.ask("POST", UNLOAD, {"parameters": {"unload_dependents": "yes"}})
    assert answer.status == 400
    assert answer.error == (
        "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean"
    )


@pytest.mark.parametrize("path", [LOAD, UNLOAD, INDEX])
def test_the_engine_is_called_off_the_loop(front, path):
    front.ask("POST", path)
    assert front.engine.threads[0] is not threading.current_thread()


@pytest.mark.parametrize(
    ("failure", "status"), [(Unavailable("not now"), 503), (Internal("it broke"), 500)]
)
@pytest.mark.parametrize("path", [LOAD, UNLOAD, INDEX])
def test_what_the_engine_says_is_the_answer(front, path, failure, status):
    front.engine.failure = failure
    answer = front.ask("POST", path)
    assert (answer.status, answer.error) == (status, failure.message)


def test_a_fault_of_ours_is_a_500(front, caplog):
    front.engine.failure = OSError("disk on fire")
    answer = front.ask("POST", LOAD)
    assert answer.status == 500
    assert "disk on fire" in answer.error
    assert "disk on fire" in caplog.text


def test_the_body_may_be_a_view(front):
    answer = front.ask("POST", INDEX, memoryview(b'{"ready":true}'))
    assert answer.status == 200
    assert front.engine.calls == [("index", True)]
