"""`shoal.Server`: a server in the program that asks it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

import shoal
from shoal.errors import NotFound, Unavailable
from shoal.server import ModelsFailed
from tests.support import onnx_models
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import add_model, add_onnx


@shoal.model(batch=8)
def double(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return 2 * x


@shoal.model
def greet(name: str) -> str:
    return f"Hello {name}!"


@shoal.model
def count(n: int) -> Iterator[int]:
    yield from range(n)


def get(url):
    with urllib.request.urlopen(url, timeout=WAIT_SECS) as answer:
        return answer.status


@pytest.fixture(scope="module")
def server():
    with shoal.Server([double, greet, count]) as running:
        yield running


@dataclass
class Box:
    name: str
    size: float = 1.0


@shoal.model
def grow(box: Box, by: float = 2.0) -> dict:
    return {"size": box.size * by}


@shoal.model(batch=8)
def names(box: list[Box]) -> list[str]:
    return [each.name for each in box]


def test_objects_may_be_passed_as_they_are():
    with shoal.Server(grow, names) as server:
        for box in (Box("a", 2.0), {"name": "a", "size": 2}, b'{"name": "a", "size": 2}'):
            assert server.infer("grow", {"box": box})["output"].item() == b'{"size":4.0}'
        rows = server.infer("names", {"box": [Box("a"), {"name": "b"}]})["output"]
        assert rows.reshape(-1).tolist() == [b"a", b"b"]


# ---- in a notebook


def test_it_shows_its_models(server):
    server.infer("greet", {"name": ["you"]})
    assert repr(server) == f"<shoal.Server, ready, {server.url}>"
    shown = server._repr_html_()
    assert server.url in shown
    assert "greet" in shown
    assert "READY" in shown
    idle = shoal.Server(double)
    assert repr(idle) == "<shoal.Server, not running>"
    assert "not running" in idle._repr_html_()
    assert repr(shoal.AsyncServer(server)).startswith("<shoal.AsyncServer, ready")


# ---- start and stop


def test_it_serves_both_protocols_until_the_block_ends():
    before = set(threading.enumerate())
    with shoal.Server(double) as server:
        assert server.ready
        assert server.url == f"http://127.0.0.1:{server.http_port}"
        assert get(f"{server.url}/v2/health/ready") == 200
        assert get(server.metrics_url) == 200
        with http_client.InferenceServerClient(server.http_url) as client:
            assert client.is_model_ready("double")
        with grpc_client.InferenceServerClient(server.grpc_url) as client:
            assert client.is_model_ready("double")
        port = server.http_port
    assert not server.ready
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("shoal"):
            thread.join(WAIT_SECS)  # its last words may have been what the end waited for
            assert not thread.is_alive(), thread


def test_no_thread_is_left():
    """In a process of its own, so that only its threads are counted."""
    program = """
import threading, shoal
from collections.abc import AsyncIterator
@shoal.model
def greet(name: str) -> str: return name
@shoal.model
async def later(name: str) -> str: return name
@shoal.model
async def stream(name: str) -> AsyncIterator[str]: yield name
with shoal.Server([greet, later, stream]) as server:
    for name in ("greet", "later"):
        server.infer(name, {"name": "a"})
    list(server.stream("stream", {"name": "a"}))
for thread in set(threading.enumerate()) - {threading.main_thread()}:
    thread.join(60)  # its last words may have been what the end waited for
print(threading.enumerate() == [threading.main_thread()])
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "True\n", done.stderr


def test_start_and_stop_repeatedly():
    server = shoal.Server([greet])
    for _ in range(2):
        assert server.start() is server
        assert server.infer("greet", {"name": "Ada"})["output"].tolist() == [b"Hello Ada!"]
        with pytest.raises(shoal.InvalidArgument, match="already running"):
            server.start()
        assert server.stop()
    assert server.stop()
    with pytest.raises(Unavailable, match="is not running; call start"):
        _ = server.url


def test_where_a_loop_runs_already():
    async def cell():
        with shoal.Server(greet) as server:
            return server.infer("greet", {"name": "Ada"})["output"].tolist()

    assert asyncio.run(cell()) == [b"Hello Ada!"]


def test_two_servers_side_by_side():
    with shoal.Server(greet) as one, shoal.Server(greet, double) as two:
        assert one.http_port != two.http_port
        assert one.infer("greet", {"name": "a"})["output"].tolist() == [b"Hello a!"]
        with pytest.raises(NotFound):
            one.infer("double", {"x": [[1]]})
        assert two.infer("double", {"x": [[1]]})["output"].tolist() == [[2]]


def test_wait_ends_when_another_thread_stops_the_server():
    server = shoal.Server(greet).start()
    waiting = threading.Thread(target=server.wait)
    waiting.start()
    server.stop()
    waiting.join(WAIT_SECS)
    assert not waiting.is_alive()


def test_folders_files_and_functions(tmp_path):
    add_onnx(tmp_path / "models", "sum", onnx_models.add_sub("FP32"))
    (tmp_path / "app.py").write_text(
        "import shoal\n@shoal.model\ndef shout(text: str) -> str: return text.upper()\n"
    )
    with shoal.Server(tmp_path / "models", str(tmp_path / "app.py"), [greet]) as server:
        assert server.infer("shout", {"text": "a"})["output"].tolist() == [b"A"]
        row = np.ones((1, 16), np.float32)
        outputs = server.infer("sum", {"INPUT0": row, "INPUT1": row}, outputs=["OUTPUT0"])
        assert list(outputs) == ["OUTPUT0"]


# ---- what may go wrong


def test_a_port_that_is_taken(server):
    other = shoal.Server(greet, http_port=server.http_port)
    with pytest.raises(Unavailable, match=f"--http-port={server.http_port} is in use"):
        other.start()
    assert not other.ready


def test_a_folder_that_is_missing(tmp_path):
    with (
        pytest.raises(NotFound, match="missing' does not exist"),
        shoal.Server(tmp_path / "missing"),
    ):
        pass


def test_a_model_that_fails(tmp_path):
    add_model(tmp_path, "broken", None, {"1/model.onnx": b"no model"})
    with pytest.raises(ModelsFailed) as caught, shoal.Server(tmp_path):
        pass
    assert "failed to load all models: load failed for model 'broken'" in str(caught.value)


@pytest.mark.parametrize(
    ("models", "settings", "sentence"),
    [
        ([], {}, "there are no models to serve; pass a folder of models or functions"),
        ([print], {}, "print is not a model; write @shoal.model above it"),
        ([greet], {"htp_port": 1}, "unknown option htp_port=. Did you mean 'http_port'?"),
        ([greet], {"http_port": "8000"}, "http_port= takes int, found '8000'"),
        ([greet], {"http_port": True}, "http_port= takes int, found True"),
        (
            [greet],
            {"http_port": 70000},
            "http_port= takes a whole number from -1 to 65535; found '70",
        ),
        (
            [greet],
            {"model_control_mode": "expl"},
            "takes none, poll, explicit or lazy; found 'expl'",
        ),
        ([greet], {"load_model": ["a"]}, "--load-model=a needs --model-control-mode=explicit"),
        ([greet], {"options": shoal.Options(), "id": "x"}, "give either options= or id, not both"),
    ],
)
def test_mistakes(models, settings, sentence):
    with pytest.raises(shoal.InvalidArgument) as caught:
        shoal.Server(models, **settings).start()
    assert sentence in caught.value.message


def test_options_as_the_command_line_has_them(tmp_path):
    add_model(tmp_path, "echo", 'input { name: "a" data_type: TYPE_FP32 dims: [ 1 ] }', {})
    (tmp_path / "echo" / "config.pbtxt").write_text(
        'backend: "identity" input { name: "a" data_type: TYPE_FP32 dims: [ 1 ] }'
    )
    options = shoal.Options(http_port=0, grpc_port=0, metrics_port=0, allow_metrics=False)
    with shoal.Server(tmp_path, options=options) as server:
        assert server.url == f"http://127.0.0.1:{server.http_port}"
        assert server.infer("echo", {"a": 3})["a_output"].tolist() == [3]


def test_settings_that_are_lists(tmp_path):
    with shoal.Server(
        greet,
        backend_config=[("onnxruntime", "default-max-batch-size", "4")],
        model_control_mode="explicit",
        load_model=["greet"],
    ) as server:
        assert server.ready


# ---- asking


def test_values_become_tensors(server):
    assert server.infer("double", {"x": [[1, 2], [3, 4]]})["output"].tolist() == [[2, 4], [6, 8]]
    result = server.infer("double", {"x": np.ones((1, 3), np.float32)})["output"]
    result += 1  # it is the caller's own
    assert result.tolist() == [[3, 3, 3]]
    assert server.infer("greet", {"name": b"Bob"})["output"].tolist() == [b"Hello Bob!"]


@pytest.mark.parametrize(
    ("model", "inputs", "sentence"),
    [
        ("double", {"y": [[1]]}, "unexpected inference input 'y'"),
        ("double", {"x": [["a"]]}, "input 'x' takes FP32, found values that are not"),
        ("double", {"x": np.ones((1, 1))}, "data-type is 'FP64', but model 'double' expects"),
        ("greet", {"name": 3}, "input 'name' takes text, found an element of type int"),
        ("greet", {}, "expected 1 inputs but got 0"),
        ("count", {"n": 3}, "may send any number of responses; use stream()"),
    ],
)
def test_invalid_inferences(server, model, inputs, sentence):
    with pytest.raises(shoal.InvalidArgument) as caught:
        server.infer(model, inputs)
    assert sentence in caught.value.message


def test_a_stream(server):
    answers = [answer["output"].item() for answer in server.stream("count", {"n": 3})]
    assert answers == [0, 1, 2]


def test_a_stream_that_is_closed_early_is_cancelled():
    left = threading.Event()

    @shoal.model
    def forever(n: int) -> Iterator[int]:
        try:
            while True:
                yield n
        finally:
            left.set()

    with shoal.Server(forever) as server:
        stream = server.stream("forever", {"n": 1})
        assert next(stream)["output"].item() == 1
        stream.close()
        assert left.wait(WAIT_SECS)


def test_a_response_after_the_time_out():
    gate = threading.Event()

    @shoal.model
    def waits(n: int) -> int:
        gate.wait(WAIT_SECS)
        return n

    with shoal.Server(waits) as server:
        with pytest.raises(shoal.DeadlineExceeded, match=r"there was no response within 0.01 s"):
            server.infer("waits", {"n": 1}, timeout_secs=0.01)
        gate.set()


def test_models_that_load_on_demand(tmp_path):
    add_onnx(tmp_path, "sum", onnx_models.add_sub("FP32"))
    row = np.ones((1, 16), np.float32)
    with shoal.Server(tmp_path, model_control_mode="lazy") as server:
        outputs = server.infer("sum", {"INPUT0": row, "INPUT1": row})
        assert outputs["OUTPUT0"].tolist() == [[2] * 16]
