"""What autoscalers read: waiting requests and the time to drain, in every way requests can wait."""

import numpy as np
import pytest

from shoal.testing.server import running_server, wait_until
from tests.support.client import Infer, outputs
from tests.support.ensembles import chain
from tests.support.fakes import WAIT_SECS, HeldLoads
from tests.support.held_model import ONE, ask, check, hold, queue
from tests.support.repositories import add_fake, add_model, parameter

PENDING = "nv_inference_pending_request_count"
DRAIN = "shoal_time_to_drain_seconds"
TARGET = parameter("target_latency_ms", "60000")


@pytest.fixture
def fake():
    backend = HeldLoads()
    yield backend
    backend.gate.set()
    backend.load_gate.set()


def read(running, name, model="held", version="1"):
    return running.metric(name, model=model, version=version)


@pytest.mark.parametrize("config", ["", "dynamic_batching { }", TARGET])
def test_waiting_and_running_requests(serve_held, fake, config):
    with serve_held(config) as running:
        assert (read(running, PENDING), read(running, DRAIN)) == (0, 0)
        check(ask(running, 7), 7)  # it is measured
        first = hold(running, fake)
        wait_until(lambda: read(running, DRAIN) > 0, "the request that runs counts")
        alone = read(running, DRAIN)
        others = queue(running, *[lambda number=number: ask(running, number) for number in (1, 2)])
        assert read(running, PENDING) == 2
        assert read(running, DRAIN) > alone
        fake.gate.set()
        for number, call in enumerate([first, *others]):
            check(call, number)
        wait_until(lambda: read(running, DRAIN) == 0, "everything is finished")
        assert read(running, PENDING) == 0


def test_before_the_first_execution_has_ended_the_time_is_not_known(serve_held, fake):
    with serve_held("") as running:
        call = hold(running, fake)
        wait_until(lambda: read(running, DRAIN) is None)
        fake.gate.set()
        check(call, 0)
        wait_until(lambda: read(running, DRAIN) == 0)


def test_responses_after_the_execution_count(serve_held, monkeypatch):
    with serve_held("") as running:
        check(ask(running, 7), 7)
        monkeypatch.setattr(running.model("held")._loaded, "owed", lambda: 2)
        assert (read(running, PENDING), read(running, DRAIN) > 0) == (0, True)


def test_sequences_in_slots_and_without(serve_held, fake):
    strategy = "sequence_batching { max_sequence_idle_microseconds: 600000000 direct { } }"
    with serve_held(strategy, max_batch_size=1) as running:
        check(ask(running, 7, sequence_id=9, sequence_start=True, sequence_end=True), 7)
        fake.gate.clear()
        started = {"sequence_id": 1, "sequence_start": True}
        while fake.started.acquire(blocking=False):
            pass
        first = ask(running, 0, **started)
        assert fake.started.acquire(timeout=WAIT_SECS)
        second, other = queue(
            running,
            lambda: ask(running, 1, sequence_id=1, sequence_end=True),
            lambda: ask(running, 2, sequence_id=2, sequence_start=True, sequence_end=True),
        )
        assert read(running, DRAIN) > 0
        fake.gate.set()
        for number, call in enumerate((first, second, other)):
            check(call, number)
        wait_until(lambda: (read(running, PENDING), read(running, DRAIN)) == (0, 0))


def test_an_ensemble_counts_what_its_limit_holds_back_and_takes_as_long_as_its_models(
    repository, fake
):
    add_fake(repository, "held", ONE)
    add_model(repository, "pipe", chain("held", more="max_inflight_requests: 2"))
    with running_server(repository, backends=fake.registry()) as running:
        check(ask(running, 7), 7)
        assert (read(running, PENDING, "pipe"), read(running, DRAIN, "pipe")) == (0, 0)
        first = hold(running, fake)
        row = np.array([[5]], np.int32)
        calls = [Infer().add("IN", row).call(running, "pipe") for _ in range(5)]
        running.wait_for_pending("held", 2)
        wait_until(lambda: read(running, PENDING, "pipe") == 3, "the limit holds back the others")
        assert read(running, DRAIN, "pipe") == pytest.approx(read(running, DRAIN), rel=0.5)
        assert read(running, DRAIN, "pipe") > 0
        fake.gate.set()
        check(first, 0)
        assert [outputs(call.response())["OUT"].item() for call in calls] == [5] * 5
        wait_until(lambda: (read(running, PENDING, "pipe"), read(running, DRAIN, "pipe")) == (0, 0))


@pytest.mark.parametrize("namespaced", [False, True])
def test_requests_that_wait_for_a_load_are_pending(repository, fake, namespaced):
    add_fake(repository, "held", versions=(1, 3))
    options = {"model_control_mode": "lazy", "model_namespacing": namespaced}
    with running_server(repository, backends=fake.registry(), **options) as running:
        labels = {"model": "held", "version": "3"}
        if namespaced:
            labels["namespace"] = repository.as_posix()
        assert running.metric(PENDING, **labels) is None
        fake.load_gate.clear()
        calls = [ask(running, number) for number in range(3)]
        assert fake.loading.acquire(timeout=WAIT_SECS)
        wait_until(lambda: running.metric(PENDING, **labels) == 3)
        assert running.metric(DRAIN, **labels) is None  # no rate is known
        fake.load_gate.set()
        for number, call in enumerate(calls):
            check(call, number)
        wait_until(lambda: running.metric(PENDING, **labels) == 0)
        assert running.metric(DRAIN, **labels) == 0
