"""Where models run: quick ones on the event loop, others on threads, and how they change over."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from shoal.core.inbox import LoopInbox
from shoal.instance.execution import Execution
from shoal.instance.execution_placement import STALL_NS, ExecutionMode
from shoal.testing.server import HttpCall, running_server, wait_until
from tests.support import onnx_models
from tests.support.client import Infer, outputs
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.repositories import EXECUTION_MODES, add_fake, add_onnx, execution

LOOP_THREAD = "shoal-testing-server"
MILLISECOND = 1_000_000
ONE_INSTANCE = "instance_group { kind: KIND_CPU count: 1 }\n"


class Burner(FakeBackend):
    """Its executions take as much CPU time as the test says; `where` notes the thread of each."""

    def __init__(self):
        super().__init__(self.burn, may_run_on_loop=True)
        self.burn_ns = 0
        self.where = []

    def burn(self, inputs, names):
        self.where.append((threading.current_thread().name == LOOP_THREAD, self.burn_ns))
        until_ns = time.thread_time_ns() + self.burn_ns
        while time.thread_time_ns() < until_ns:
            pass
        return [inputs["INPUT0"] for _ in names]

    def slow_on_loop(self):
        """How often the loop was kept for long."""
        return sum(on_loop and burnt > 0 for on_loop, burnt in self.where)


@pytest.fixture
def burner():
    backend = Burner()
    yield backend
    backend.gate.set()


@pytest.fixture
def running(tmp_path, burner):
    add_fake(tmp_path, "burner", ONE_INSTANCE)
    on_loop = "max_batch_size: 8\n" + execution("loop")
    add_onnx(tmp_path, "other", onnx_models.add_sub(dims=(1,)), on_loop)
    backends = burner.registry()
    with running_server(tmp_path, backends=backends, execution="auto") as server:
        yield server


def ask(running, number=1):
    infer = Infer().add("INPUT0", np.array([[number]], np.int32))
    assert outputs(infer.send(running, "burner"))["OUTPUT0"].tolist() == [[number]]


def ask_other(running):
    infer = (
        Infer().add("INPUT0", np.array([[5]], np.int32)).add("INPUT1", np.array([[3]], np.int32))
    )
    assert outputs(infer.send(running, "other"))["OUTPUT1"].tolist() == [[2]]


def mode(running, model="burner"):
    """Where the model runs, as statistics and metrics tell it; they must agree."""
    told = running.statistics(model)["execution"]
    assert told["reason"]
    scraped = HttpCall(running.server.metrics_port, "GET", "/metrics").response().body.decode()
    on_loop = int(told["mode"] == "loop")
    assert f'shoal_model_on_loop{{model="{model}",version="1"}} {on_loop}\n' in scraped
    return told["mode"]


def reason(running, model="burner"):
    return running.statistics(model)["execution"]["reason"]


def until_on_loop(running, send=ask, model="burner"):
    """Send quick requests until the model has moved; how many it took."""
    count = 0
    while running.statistics(model)["execution"]["mode"] != "loop":
        send(running)
        count += 1
        assert count < 5000
    return count


def test_a_quick_model_moves_to_the_loop_and_reports_why(running, burner):
    assert mode(running) == "threads"
    assert reason(running) == "not measured yet"
    assert until_on_loop(running) >= 2
    assert "a batch of 1 row takes" in reason(running)
    assert "over 800 µs it would move to threads" in reason(running)
    burner.where.clear()
    ask(running)
    assert burner.where == [(True, 0)]
    assert mode(running) == "loop"


@pytest.mark.parametrize("burn_ms", [2, 8, 30])
def test_a_model_that_turns_slow_leaves_the_loop_and_may_return(running, burner, burn_ms):
    until_on_loop(running)
    burner.where.clear()
    burner.burn_ns = burn_ms * MILLISECOND
    for _ in range(8):
        ask(running)
    assert mode(running) == "threads"
    assert "µs to compute; up to 400 µs it would move to the event loop" in reason(running)
    # However long they take: three are enough to see it, and one that stalls everybody is.
    assert 1 <= burner.slow_on_loop() <= (1 if burn_ms * MILLISECOND > STALL_NS else 3)
    burner.burn_ns = 0
    assert until_on_loop(running) >= 2
    assert mode(running) == "loop"


def test_a_model_that_is_slow_now_and_then_leaves_the_loop_too(running, burner):
    """Not often enough to be slow on the whole, but each time all others have to wait."""
    until_on_loop(running)
    burner.where.clear()
    for number in range(40):
        burner.burn_ns = 15 * MILLISECOND if number % 4 == 3 else 0
        ask(running)
        if running.model("burner").execution_placement.mode is ExecutionMode.THREADS:
            break
    assert mode(running) == "threads"
    assert burner.slow_on_loop() <= 3


def test_others_are_served_while_a_slow_model_computes(running, burner):
    """On its thread it may take all the time in the world."""
    until_on_loop(running)
    burner.burn_ns = 30 * MILLISECOND
    ask(running)
    assert mode(running) == "threads"
    while burner.started.acquire(blocking=False):
        pass
    burner.gate.clear()
    infer = Infer().add("INPUT0", np.array([[1]], np.int32))
    call = infer.call(running, "burner")
    assert burner.started.acquire(timeout=WAIT_SECS)
    for _ in range(20):
        ask_other(running)
    assert mode(running, "other") == "loop"
    burner.gate.set()
    assert call.response().status == 200


def sized():
    """OUTPUT0 = the sum of INPUT0 · W · W · W: what it costs depends on how many rows come."""
    weights = np.eye(256, dtype=np.float32)
    nodes, before = [], "INPUT0"
    for number in range(3):
        nodes.append(onnx_models.helper.make_node("MatMul", [before, "w"], [f"x{number}"]))
        before = f"x{number}"
    nodes.append(onnx_models.helper.make_node("ReduceSum", [before, "axes"], ["OUTPUT0"]))
    return onnx_models.model(
        nodes,
        inputs=[onnx_models.value("INPUT0", "FP32", ("rows", 256))],
        outputs=[onnx_models.value("OUTPUT0", "FP32", ("rows", 1))],
        constants={"w": weights, "axes": np.array([1], np.int64)},
    )


def test_a_real_model_goes_back_and_forth_with_the_size_of_its_inputs(tmp_path, monkeypatch):
    on_loop = []
    run = Execution.run

    def note(self, executor, batch):
        if threading.current_thread().name == LOOP_THREAD:
            on_loop.append(batch[0].inputs["INPUT0"].shape[0])
        return run(self, executor, batch)

    monkeypatch.setattr(Execution, "run", note)
    config = (
        'input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1, 256 ] }'
        'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1, 1 ] }'
    )
    add_onnx(tmp_path, "sized", sized(), config)

    def send(running, rows=1):
        array = np.ones((rows, 256), np.float32)
        infer = Infer().add("INPUT0", array, binary=True).want("OUTPUT0", binary_data=True)
        assert (outputs(infer.send(running, "sized"))["OUTPUT0"] == 256).all()

    with running_server(tmp_path, execution="auto") as running:
        until_on_loop(running, send, "sized")
        on_loop.clear()
        for _ in range(6):
            send(running, 20_000)
        assert mode(running, "sized") == "threads"
        assert 1 <= on_loop.count(20_000) <= 3
        until_on_loop(running, send, "sized")
        assert mode(running, "sized") == "loop"


@pytest.mark.one_process
def test_the_responses_of_a_batch_wake_the_loop_once(tmp_path, burner, monkeypatch):
    woken = []
    drain = LoopInbox._drain

    def note(inbox):
        woken.append(len(inbox._waiting))
        drain(inbox)

    monkeypatch.setattr(LoopInbox, "_drain", note)
    add_fake(tmp_path, "burner", ONE_INSTANCE + "dynamic_batching { }\n")
    backends = burner.registry()
    with running_server(tmp_path, backends=backends, execution="threads") as running:
        burner.gate.clear()
        infer = Infer().add("INPUT0", np.array([[1]], np.int32))
        calls = [infer.call(running, "burner")]
        assert burner.started.acquire(timeout=WAIT_SECS)
        calls += [infer.call(running, "burner") for _ in range(8)]
        running.wait_for_pending("burner", 8)
        held, release = threading.Event(), threading.Event()

        async def hold():  # so that the loop sees nothing before all of it is there
            held.set()
            release.wait(WAIT_SECS)

        holding = threading.Thread(target=running.run, args=(hold(),))
        holding.start()
        assert held.wait(WAIT_SECS)
        burner.gate.set()
        counted = running.model("burner").statistics
        wait_until(lambda: counted.read().success_count == 9, "all were executed")
        wait_until(lambda: not running.model("burner")._instances.busy(), "all were answered")
        release.set()
        holding.join()
        assert [call.response().status for call in calls] == [200] * 9
    assert len(woken) == 1  # with one entry per batch, or per request where there is no template


# ---- what may be set


@pytest.mark.parametrize("forced", EXECUTION_MODES)
@pytest.mark.parametrize("by", ["config", "option"])
def test_the_mode_may_be_set_and_then_stays(tmp_path, burner, forced, by):
    more = ONE_INSTANCE + (execution(forced) if by == "config" else "")
    option = {"config": "auto", "option": forced}[by]
    add_fake(tmp_path, "burner", more)
    backends = burner.registry()
    with running_server(tmp_path, backends=backends, execution=option) as running:
        for burn_ms in (0,) * 20 + (3,) * 5 + (0,) * 5:
            burner.burn_ns = burn_ms * MILLISECOND
            ask(running)
        assert mode(running) == forced
        assert reason(running) == "set by the configuration"
    assert {on_loop for on_loop, _ in burner.where} == {forced == "loop"}


def test_what_may_wait_never_runs_on_the_loop(tmp_path, burner):
    backend = FakeBackend()
    add_fake(tmp_path, "held", ONE_INSTANCE + execution("loop"))
    backends = backend.registry()
    with running_server(tmp_path, backends=backends, execution="loop") as running:
        assert mode(running, "held") == "threads"
        assert "wait" in reason(running, "held")
        for _ in range(20):
            Infer().add("INPUT0", np.array([[1]], np.int32)).send(running, "held")
        assert mode(running, "held") == "threads"


def test_every_model_reports_where_it_runs(running):
    rows = running.get("/v2/models/stats").json["model_stats"]
    assert {row["name"] for row in rows} == {"burner", "other"}
    for row in rows:
        assert set(row["execution"]) == {"mode", "reason"}


# ---- the machine's noise is not the model's


def test_waiting_for_a_processor_is_not_computing(running, burner, monkeypatch):
    """Executions that take long by the clock and little CPU time were held up by others."""
    until_on_loop(running)
    run = Execution.run

    def late(self, executor, batch):
        rows, own_ns, _ = run(self, executor, batch)
        return rows, own_ns, 5 * MILLISECOND  # by the clock

    monkeypatch.setattr(Execution, "run", late)
    for _ in range(100):
        ask(running)
    assert mode(running) == "loop"
    monkeypatch.undo()
    burner.where.clear()
    burner.burn_ns = 5 * MILLISECOND
    for _ in range(5):
        ask(running)
    assert mode(running) == "threads"
    assert burner.slow_on_loop() <= 3
