"""Models that hang, with `execution_timeout_ms`: what clients, probes and operators see."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

import shoal
from shoal.server import ModelsFailed
from shoal.testing.server import running_server, wait_until
from tests.backends.python.conftest import CONFIG as PYTHON_CONFIG
from tests.backends.python.conftest import HEAD
from tests.support.client import Infer, check_empty, outputs
from tests.support.ensembles import chain
from tests.support.fakes import WAIT_SECS, FakeBackend, RequestBackend
from tests.support.repositories import add_fake, add_model, execution, parameter

LIMIT_MS = 400
LIMIT = parameter("execution_timeout_ms", str(LIMIT_MS))
ONE = "instance_group { count: 1 kind: KIND_CPU }\n"
HANG = -1


def ask(running, number, model="m", name="INPUT0"):
    return Infer().add(name, np.array([[number]], np.int32)).call(running, model)


def answer(call):
    return outputs(call.response())["OUTPUT0"].reshape(-1).tolist()


class Hanging(FakeBackend):
    """Hangs for one number until the test ends."""

    def __init__(self):
        super().__init__(self.compute_or_hang, may_run_on_loop=True)
        self.hangs = threading.Semaphore(0)
        self.returns = threading.Event()

    def compute_or_hang(self, inputs, outputs):
        array = next(iter(inputs.values()))
        if (array == HANG).any():
            self.hangs.release()
            assert self.returns.wait(WAIT_SECS)
        return [array for _ in outputs]


@pytest.fixture
def hanging():
    backend = Hanging()
    yield backend
    backend.returns.set()


@pytest.fixture
def serve(tmp_path, hanging):
    def start(config="", **options):
        add_fake(tmp_path, "m", LIMIT + ONE + config)
        options = {"model_control_mode": "explicit", "load_model": ("*",), **options}
        return running_server(tmp_path, backends=hanging.registry(), **options)

    return start


def counts(running, model="m"):
    counted = running.statistics(model)["inference_stats"]
    return counted["success"]["count"], counted["fail"]["count"]


def test_all_requests_of_the_batch_fail_and_the_next_ones_are_served(serve, hanging):
    with serve("dynamic_batching { max_queue_delay_microseconds: 100000 }") as running:
        assert answer(ask(running, 1)) == [1]
        calls = [ask(running, number) for number in (HANG, 2, 3)]
        responses = [call.response() for call in calls]
        assert [response.status for response in responses] == [504] * 3
        assert responses[0].error == (
            f"model 'm', instance 'm_0_0': an execution took longer than {LIMIT_MS} ms "
            "(execution_timeout_ms). Raise that limit if the model needs longer; otherwise find "
            "out where it hangs: the server's log shows it"
        )
        assert answer(ask(running, 4)) == [4]
        wait_until(lambda: counts(running) == (2, 3))
        labels = {"model": "m", "version": "1"}
        assert running.metric("shoal_execution_timeouts_total", **labels) == 1
        assert running.metric("shoal_abandoned_threads", **labels) == 1
        assert running.metric("shoal_unhealthy_instances", **labels) == 0
        (shown,) = running.get("/v2/console").json["models"]
        assert shown["health"] == {
            "timeouts": 1,
            "abandoned_threads": 1,
            "unhealthy_instances": 0,
        }
        assert running.get("/v2/models/m/ready").status == 200
        assert running.statistics("m")["execution"]["mode"] == "threads"


def test_over_grpc(serve):
    with serve() as running, grpc_client.InferenceServerClient(running.grpc_address) as client:
        tensor = grpc_client.InferInput("INPUT0", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.array([[HANG]], np.int32))
        with pytest.raises(InferenceServerException) as caught:
            client.infer("m", [tensor])
        assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        assert "an execution took longer" in caught.value.message()
        tensor.set_data_from_numpy(np.array([[5]], np.int32))
        assert client.infer("m", [tensor]).as_numpy("OUTPUT0").tolist() == [[5]]


def test_without_replacements_the_model_is_unhealthy_until_it_is_loaded_again(serve):
    with serve(parameter("execution_timeout_replacements", "0")) as running:
        assert ask(running, HANG).response().status == 504
        refused = ask(running, 1).response()
        assert refused.status == 503
        assert refused.error.startswith("model 'm' has no healthy instance: instance 'm_0_0' is ")
        assert running.get("/v2/models/m/ready").status == 400
        report = running.get("/v2/health/ready?verbose")
        assert report.status == 400
        (reason,) = report.json["reasons"]
        assert reason.startswith("model 'm', instance 'm_0_0' is unhealthy: threads that hang")
        assert running.metric("shoal_unhealthy_instances", model="m", version="1") == 1
        check_empty(running.load("m"))
        assert answer(ask(running, 2)) == [2]
        assert running.get("/v2/health/ready").status == 200


def test_it_recovers_when_the_execution_returns(serve, hanging):
    with serve(parameter("execution_timeout_replacements", "0")) as running:
        assert ask(running, HANG).response().status == 504
        assert ask(running, 1).response().status == 503
        hanging.returns.set()
        wait_until(lambda: running.get("/v2/models/m/ready").status == 200)
        assert answer(ask(running, 2)) == [2]
        assert counts(running) == (1, 2)


def test_unloading_does_not_wait_for_it(serve, hanging):
    with serve() as running:
        assert ask(running, HANG).response().status == 504
        assert answer(ask(running, 1)) == [1]
        check_empty(running.unload("m"))
        wait_until(lambda: running.states("m") == {"1": "UNAVAILABLE"})
        assert hanging.open_models == 1  # its thread may still use it
        hanging.returns.set()
        wait_until(lambda: hanging.open_models == 0)
        assert hanging.open_executors == 0


def test_unloading_waits_for_an_execution_until_its_limit(serve, hanging):
    with serve() as running:
        call = ask(running, HANG)
        assert hanging.hangs.acquire(timeout=WAIT_SECS)
        check_empty(running.unload("m"))
        assert call.response().status == 504
        wait_until(lambda: running.states("m") == {"1": "UNAVAILABLE"})


def test_a_step_that_hangs_fails_the_request_of_the_ensemble(serve, tmp_path):
    add_model(tmp_path, "both", chain("m", "m"))
    with serve() as running:
        failed = ask(running, HANG, "both", "IN").response()
        assert failed.status == 504
        assert failed.error.startswith("in ensemble 'both', model 'm', instance 'm_0_0': an exec")
        served = outputs(ask(running, 3, "both", "IN").response())
        assert served["OUT"].tolist() == [[3]]
        assert counts(running, "both") == (1, 1)


def test_it_is_never_run_on_the_event_loop(serve):
    with serve(execution("loop")) as running:
        assert answer(ask(running, 1)) == [1]
        assert running.statistics("m")["execution"] == {
            "mode": "threads",
            "reason": "it has a time limit, which the event loop cannot keep",
        }


def test_models_without_a_limit_have_no_such_metrics(tmp_path, hanging):
    add_fake(tmp_path, "m")
    with running_server(tmp_path, backends=hanging.registry()) as running:
        assert running.metric("shoal_execution_timeouts_total", model="m", version="1") is None
        (shown,) = running.get("/v2/console").json["models"]
        assert shown["health"] is None


def test_a_sequence_continues_with_the_new_instance(tmp_path):
    returns = threading.Event()

    def execute(batch):
        for one in batch:
            number = int(one.request.inputs["INPUT0"].array[0, 0])
            if number == HANG:
                assert returns.wait(WAIT_SECS)
            one.send(list(one.request.inputs.values())[:0])

    backend = RequestBackend(execute)
    config = """
backend: "requests"
max_batch_size: 2
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
sequence_batching { direct { } }
"""
    add_model(tmp_path, "m", config + LIMIT + ONE)
    with running_server(tmp_path, backends=backend.registry()) as running:

        def step(number, **flags):
            array = np.array([[number]], np.int32)
            return Infer(sequence_id=7, **flags).add("INPUT0", array).send(running, "m").status

        assert step(1, sequence_start=True) == 200
        assert step(HANG) == 504
        assert step(2) == 200
        assert step(3, sequence_end=True) == 200
        assert counts(running) == (3, 1)
        returns.set()


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("execution_timeout_ms", "0", "a whole number of milliseconds, at least 1"),
        ("execution_timeout_ms", "5s", "a whole number of milliseconds, at least 1"),
        ("execution_timeout_replacements", "-1", "a whole number, 0 or more"),
    ],
)
def test_wrong_values(tmp_path, hanging, name, value, fix):
    add_fake(tmp_path, "m", parameter(name, value))
    with (
        pytest.raises(ModelsFailed) as failed,
        running_server(tmp_path, backends=hanging.registry()),
    ):
        pass
    (reason,) = failed.value.reasons
    assert f"parameters['{name}']: found '{value}'. Write {fix}" in reason


# ---- functions and Python models

released = threading.Event()


@shoal.model(batch=8, config=LIMIT)
def patient(x: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    if (x == HANG).any():
        assert released.wait(WAIT_SECS)
    return x


def test_a_function():
    with running_server(functions=[patient]) as running:
        assert ask(running, HANG, "patient", "x").response().status == 504
        served = outputs(ask(running, 2, "patient", "x").response())
        assert served["output"].tolist() == [[2]]
        released.set()


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_a_python_model(tmp_path, mode):
    source = (
        HEAD
        + f"""
import os, time

class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        if int(value(requests[0])[0, 0]) == {HANG}:
            while not os.path.exists({str(tmp_path / "end")!r}):
                time.sleep(0.01)
        self.count += 1
        return [answer([[self.count, os.getpid()]]) for _ in requests]
"""
    )
    config = PYTHON_CONFIG + LIMIT + parameter("python_execution", mode) + ONE
    add_model(tmp_path / "models", "m", config, {"1/model.py": source.encode()})

    def ask_python(running, number):
        return ask(running, number, name="IN").response()

    with running_server(tmp_path / "models") as running:
        _, pid = outputs(ask_python(running, 1))["OUT"].tolist()[0]
        failed = ask_python(running, HANG)
        assert failed.status == 504
        assert "instance 'm_0_0': an execution took longer" in failed.error
        count, next_pid = outputs(ask_python(running, 2))["OUT"].tolist()[0]
        assert count == 1  # a new instance
        assert (next_pid == pid) == (mode == "thread")
        assert counts(running) == (2, 1)
        labels = {"model": "m", "version": "1"}
        assert running.metric("shoal_execution_timeouts_total", **labels) == 1
        abandoned = running.metric("shoal_abandoned_threads", **labels)
        assert abandoned == (1 if mode == "thread" else 0)
        wait_until(lambda: running.get("/v2/models/m/ready").status == 200)
        (tmp_path / "end").touch()
