"""Tasks on a real server: their routes, statistics and errors, and what a reload does to calls."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading

import numpy as np
import pytest

from shoal.backends.registry import BackendRegistry
from shoal.errors import InvalidArgument
from shoal.tasks import registry
from shoal.tasks.base import Task
from shoal.tasks.context import TaskContext
from shoal.testing.server import running_server
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.repositories import add_fake, add_model, parameter

PATH = "/v2/models/sums/double"
TASK = parameter("task", "doubling")


class Doubling(Task):
    """Numbers in, numbers out; the model adds nothing, so the task does the work."""

    name = "doubling"
    operation = "double"
    streams = True
    held = threading.Event()  # set by a call that waits
    go = threading.Event()  # lets it go on
    left = threading.Event()  # set when one was cancelled

    def __init__(self, context):
        super().__init__(context)
        self._factor = context.settings.integer("factor", 2, lowest=1, highest=9)
        self._read = context.stage("preprocess", self._read_many, most=8)
        self._write = context.stage("postprocess", lambda rows: [r.tolist() for r in rows])

    def _read_many(self, texts):
        return [self._numbers(text) for text in texts]

    def _numbers(self, text):
        try:
            return np.array([[int(word)] for word in text.split()], np.int32)
        except ValueError as error:
            return InvalidArgument(f"not a number: {error}")

    async def perform(self, asked):
        text = asked.text("numbers", longest=1000)
        if text == "wait":
            await self._wait()
            text = "1"
        rows = await self._read(text)
        answers = await self.context.infer({"INPUT0": rows * self._factor})
        return {
            "model": self.context.model_name,
            "version": self.context.model_version,
            "doubled": await self._write(answers["OUTPUT0"][:, 0]),
        }

    async def _wait(self):
        self.held.set()
        try:
            await asyncio.to_thread(self.go.wait, WAIT_SECS)
        except asyncio.CancelledError:
            self.left.set()
            raise

    async def stream(self, asked):
        for word in asked.text("numbers", longest=1000).split():
            rows = await self._read(word)
            async for answer in self.context.infer_stream({"INPUT0": rows * self._factor}):
                yield {"doubled": int(answer["OUTPUT0"][0, 0])}


@pytest.fixture(autouse=True)
def doubling(monkeypatch):
    known = {**registry.BUILT_IN, "doubling": ("double", f"{__name__}:Doubling")}
    monkeypatch.setattr(registry, "BUILT_IN", known)
    load = registry._load
    monkeypatch.setattr(registry, "_load", lambda n: Doubling if n == "doubling" else load(n))
    registry.operations.cache_clear()
    for event in (Doubling.held, Doubling.go, Doubling.left):
        event.clear()
    yield
    registry.operations.cache_clear()


def serving(repository, **options):
    backends = BackendRegistry({"fake": FakeBackend})
    return running_server(repository, backends=backends, **options)


@pytest.fixture
def sums(tmp_path):
    add_fake(tmp_path, "sums", TASK)
    return tmp_path


@pytest.fixture
def running(sums):
    with serving(sums) as server:
        yield server


@pytest.mark.parametrize("path", [PATH, "/v2/models/sums/versions/1/double", "/double"])
def test_a_task_has_its_own_path(running, path):
    answer = running.post(path, {"numbers": "1 2 3"})
    assert answer.status == 200
    assert answer.json == {"model": "sums", "version": 1, "doubled": [2, 4, 6]}


def test_the_plain_tensors_of_the_model_keep_working(running):
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [7]}
    answer = running.post("/v2/models/sums/infer", {"inputs": [tensor]})
    assert answer.json["outputs"][0]["data"] == [7]


@pytest.mark.one_process
def test_inputs_that_wait_for_a_thread_are_pending(running, monkeypatch):
    signals = ("nv_inference_pending_request_count", "shoal_time_to_drain_seconds")
    running.post(PATH, {"numbers": "1 2"})
    at = {"model": "sums", "version": "1"}
    assert [running.metric(name, **at) for name in signals] == [0, 0]
    monkeypatch.setattr(TaskContext, "waiting", lambda _: 3)
    pending, drain = [running.metric(name, **at) for name in signals]
    assert pending == 3
    assert drain > 0


def test_calls_and_stages_count_in_statistics(running):
    running.post(PATH, {"numbers": "1 2"})
    running.post(PATH, {"numbers": "x"})
    counted = running.statistics("sums")
    task = counted["task"]
    assert task["name"] == "doubling"
    assert (task["success"]["count"], task["fail"]["count"]) == (1, 1)
    assert (task["preprocess"]["count"], task["postprocess"]["count"]) == (2, 1)
    assert task["preprocess"]["ns"] > 0
    assert counted["inference_count"] == 2  # of rows, as everybody's


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        (PATH, {"numbers": "one"}, 400, "not a number: invalid literal for int() with base 10"),
        (PATH, {}, 400, "'numbers' is missing: send it as a text"),
        (PATH, {"numbers": "1", "stream": "perhaps"}, 400, "'stream' must be true or false"),
        (PATH + "/more", {}, 404, "Not Found"),
        ("/v2/models/sums/halve", {}, 404, "Not Found"),
        ("/halve", {}, 404, "Not Found"),
        ("/v2/models/none/double", {"numbers": "1"}, 404, "unknown model: 'none'"),
        (
            "/v2/models/sums/classify",
            {},
            400,
            "does not offer 'classify': it has the task 'doubling', which offers 'double'",
        ),
        ("/classify", {}, 404, "no loaded model offers 'classify'"),
    ],
)
def test_wrong_use_is_refused(running, path, body, status, said):
    answer = running.post(path, body)
    assert answer.status == status
    assert said in answer.error
    assert running.post(PATH, {"numbers": "2"}).json["doubled"] == [4]


def test_a_task_is_posted_to(running):
    answer = running.get(PATH)
    assert answer.status == 405
    assert answer.headers["allow"] == "POST, OPTIONS"
    assert running.get("/nothing").status == 404


def test_several_models_of_a_kind_must_be_named(sums):
    add_fake(sums, "more", TASK)
    add_fake(sums, "plain")
    with serving(sums) as running:
        answer = running.post("/double", {"numbers": "1"})
        assert answer.status == 400
        assert "several models offer 'double' (more, sums)" in answer.error
        assert running.post("/v2/models/more/double", {"numbers": "1"}).status == 200
        plain = running.post("/v2/models/plain/double", {"numbers": "1"})
        assert plain.status == 400
        assert "it names no task in its config" in plain.error


def test_pieces_come_as_events(running):
    answer = running.post(PATH + "?stream=true", {"numbers": "1 2 3"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.body == b"".join(b'data: {"doubled":%d}\n\n' % n for n in (2, 4, 6))


def test_what_is_wrong_from_the_start_has_its_status_in_a_stream_too(running):
    answer = running.post(PATH + "?stream=true", {"numbers": "x"})
    assert answer.status == 400
    assert "not a number" in answer.error


def test_a_later_error_is_the_last_event(running):
    answer = running.post(PATH + "?stream=true", {"numbers": "1 x 3"})
    assert answer.status == 200
    first, last = answer.body.strip().split(b"\n\n")
    assert first == b'data: {"doubled":2}'
    assert "not a number" in json.loads(last.removeprefix(b"data: "))["error"]


def test_a_client_that_disconnects_ends_its_call(running):
    connection = http.client.HTTPConnection(running.http_address)
    connection.request("POST", PATH, json.dumps({"numbers": "wait"}))
    assert Doubling.held.wait(WAIT_SECS)
    connection.close()
    assert Doubling.left.wait(WAIT_SECS)
    Doubling.go.set()  # for the thread that it waited on
    assert running.post(PATH, {"numbers": "1"}).status == 200


def test_a_call_under_way_survives_a_reload(sums):
    with serving(sums, model_control_mode="explicit", load_model=["sums"]) as running:
        connection = http.client.HTTPConnection(running.http_address)
        connection.request("POST", PATH, json.dumps({"numbers": "wait"}))
        assert Doubling.held.wait(WAIT_SECS)
        (sums / "sums" / "task.json").write_text('{"factor": 5}')
        add_fake(sums, "sums", TASK, dims="1 ", versions=(1, 2))
        assert running.load("sums").status == 200
        assert running.post(PATH, {"numbers": "1"}).json["doubled"] == [5]
        Doubling.go.set()
        answer = json.loads(connection.getresponse().read())
        assert answer == {"model": "sums", "version": 1, "doubled": [2]}
        connection.close()


def test_an_ensemble_may_have_a_task(sums):
    steps = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
ensemble_scheduling { step [ {
  model_name: "plain" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" }
  output_map { key: "OUTPUT0" value: "OUTPUT0" }
} ] }
"""
    add_fake(sums, "plain")
    add_model(sums, "whole", steps + TASK)
    with serving(sums) as running:
        answer = running.post("/v2/models/whole/double", {"numbers": "4"})
        assert answer.json["doubled"] == [8]
        assert running.statistics("whole")["task"]["success"]["count"] == 1


def test_in_lazy_mode_a_call_loads_the_model(sums):
    with serving(sums, model_control_mode="lazy") as running:
        assert running.post(PATH, {"numbers": "1"}).json["doubled"] == [2]


@pytest.mark.parametrize(
    ("task", "settings", "said"),
    [
        ("dubbling", "{}", "there is no task 'dubbling'. Did you mean 'doubling'?"),
        ("doubling", '{"factor": 0}', "task.json: factor: found 0. Write a whole number from 1"),
        ("doubling", '{"fcator": 3}', "task.json: fcator: no such setting for this task"),
        ("doubling", "[]", "task.json: must contain a JSON object"),
    ],
)
def test_a_wrong_task_keeps_its_model_from_loading(tmp_path, task, settings, said):
    add_model(tmp_path, "sums", None, {"task.json": settings.encode()})
    add_fake(tmp_path, "sums", parameter("task", task))
    with serving(tmp_path, exit_on_error=False) as running:
        (row,) = running.index()
        assert row["state"] == "UNAVAILABLE"
        assert said in row["reason"]


def test_restrictions_of_inference_hold_for_tasks(sums):
    restricted = [("inference", "secret", "open")]
    with serving(sums, http_restricted_api=restricted) as running:
        assert running.post(PATH, {"numbers": "1"}).status == 403
        assert running.post(PATH, {"numbers": "1"}, {"secret": "open"}).status == 200
