"""Models that front ends run themselves: who runs which request, and one truth in the engine."""

from __future__ import annotations

import asyncio
import logging
import time

import numpy as np
import pytest

from shoal.backends.registry import BackendRegistry
from shoal.core.dtypes import INT32
from shoal.core.tensor import Tensor
from shoal.engine.linked.replicas import ReplicaLoader
from shoal.errors import InvalidArgument, NotFound, QueueRejected
from shoal.frontends.waiting import once_loaded
from shoal.models.spec import ServingContext
from tests.support.fakes import HeldLoads, make_request
from tests.support.repositories import add_fake, parameter, touch
from tests.unit.engine.linked.conftest import LinkedWorld

MARK = parameter("run_in_frontends", "true")


class ReplicaWorld(LinkedWorld):
    """Its model "quick" is marked. Replicas have a backend of their own for each front end."""

    def __init__(self, folder, more=""):
        self.backends = []
        add_fake(folder / "models", "quick", MARK + more, max_batch_size=0)
        super().__init__(folder, load_replica=type(self).loader)

    async def _start(self):
        self.backend.stateless = True
        await super()._start()

    def loader(self):
        backend = HeldLoads()
        backend.stateless = True
        self.backends.append(backend)
        context = ServingContext(loop=self.handle, execution="threads")
        return ReplicaLoader(context, BackendRegistry({"fake": lambda: backend}), 1)

    def find(self, number, name="quick"):
        return self.run(once_loaded(lambda: self.frontends[number].find(name)))

    def replicate(self, number):
        """A replica in a front end, once it is loaded."""
        model = self.find(number)
        self.run(self.until(lambda: model.replica is not None))
        return model

    def request(self, value=7, **options):
        array = np.array([value], np.int32)
        tensor = Tensor("INPUT0", INT32, array.shape, array=array)
        return make_request(tensor, model="quick", **options)

    def infer(self, number, request=None):
        """The response to one request of a front end."""
        request, reply = request or self.request()

        async def infer():
            self.frontends[number].infer(request)
            await self.until(lambda: reply.answered)

        self.run(infer())
        return reply.wait()

    def ran(self):
        """Executions in each front end and in the engine."""
        return [len(backend.batches) for backend in (*self.backends, self.backend)]

    def counted(self):
        (row,) = self.blocking(self.frontends[0].statistics, "quick")
        return row


@pytest.fixture
def quick(tmp_path):
    made = ReplicaWorld(tmp_path)
    yield made
    for backend in made.backends:
        backend.gate.set()
        backend.load_gate.set()
    made.close()


def test_the_engine_serves_until_the_replica_is_loaded(quick):
    first, _ = quick.backends
    first.load_gate.clear()
    model = quick.find(0)
    assert first.loading.acquire(timeout=10)
    assert quick.infer(0).error is None
    assert quick.ran() == [0, 0, 1]
    first.load_gate.set()
    quick.run(quick.until(lambda: model.replica is not None))
    response = quick.infer(0)
    assert response.outputs[0].array.tolist() == [7]
    assert (response.model_name, response.model_version) == ("quick", 1)
    quick.replicate(1)
    assert quick.infer(1).error is None
    assert quick.ran() == [1, 1, 1]


def test_the_engine_counts_for_all(quick):
    for number in (0, 1):
        quick.replicate(number)
    for number in (0, 1, 0, 1, 1):
        quick.infer(number)
    counted = quick.counted()
    assert counted["inference_count"] == counted["execution_count"] == 5
    assert counted["execution"]["reason"].startswith("in front ends: ")
    assert counted["batch_stats"][0]["compute_infer"]["count"] == 5
    quick.backends[0].compute = lambda *_: 1 / 0
    assert "division" in quick.infer(0).error.message
    counted = quick.counted()
    assert counted["inference_stats"]["fail"]["count"] == 1
    statistics = next(one for one in quick.engine.model_statistics() if one.name == "quick")
    assert statistics.instances() == 3
    quick.run(close(quick, 0))
    assert statistics.instances() == 2
    assert statistics.read().success_count == 5


async def close(world, number):
    """End a front end as a crash would: without a last report."""
    world.frontends[number]._connection.close()
    await world.until(lambda: len(world.service.frontends()) == 1)


def test_requests_that_wait_in_front_ends_are_pending(quick):
    quick.replicate(1)
    backend = quick.backends[1]
    backend.gate.clear()
    replies = []

    async def queue():
        for _ in range(4):
            request, reply = quick.request()
            quick.frontends[1].infer(request)
            replies.append(reply)
        await quick.until(lambda: backend.started.acquire(blocking=False))

    quick.run(queue())
    quick.counted()
    statistics = next(one for one in quick.engine.model_statistics() if one.name == "quick")
    assert statistics.pending() == 3
    assert quick.frontends[1].in_flight() == 4
    backend.gate.set()
    quick.run(quick.until(lambda: all(reply.answered for reply in replies)))


def test_a_traced_request_runs_in_the_engine(quick):
    quick.replicate(0)
    quick.blocking(quick.frontends[0].update_trace_settings, "", {"trace_level": ["TIMESTAMPS"]})
    request, reply = quick.request()
    trace = quick.frontends[0].tracer.start("quick", lambda _: None)
    trace.attach(request)
    quick.infer(0, (request, reply))
    trace.finish()
    assert quick.ran() == [0, 0, 1]
    quick.blocking(quick.frontends[0].update_trace_settings, "", {"trace_level": ["OFF"]})
    quick.infer(0)
    assert quick.ran() == [1, 0, 1]


def test_invalid_requests_get_the_error_of_the_engine(quick):
    quick.replicate(0)
    wrong, reply = make_request(model="quick")
    with pytest.raises(InvalidArgument) as here:
        quick.infer(0, (wrong, reply))
    with pytest.raises(InvalidArgument) as there:
        quick.engine.infer(make_request(model="quick")[0])
    assert here.value.message == there.value.message


def test_a_replica_is_dropped_before_an_unload_is_answered(quick):
    quick.replicate(0)
    quick.backends[0].gate.clear()
    request, waiting = quick.request()

    async def queue():
        quick.frontends[0].infer(request)

    quick.run(queue())
    quick.blocking(quick.frontends[1].unload, "quick")
    with pytest.raises(NotFound, match="has no available versions"):
        quick.find(0)
    quick.backends[0].gate.set()  # what was accepted is still answered
    assert waiting.wait().error is None
    quick.run(quick.until(lambda: quick.backends[0].open_models == 0))


def test_a_replica_that_was_loaded_too_late_is_closed(quick):
    first, _ = quick.backends
    first.load_gate.clear()
    model = quick.find(0)
    assert first.loading.acquire(timeout=10)
    touch(quick.models / "quick" / "config.pbtxt")
    quick.blocking(quick.frontends[1].unload, "quick")
    first.load_gate.set()
    quick.run(quick.until(lambda: first.open_executors == 0 and len(first.loads) == 1))
    assert model.replica is None


def test_a_front_end_that_was_stopped_reads_what_has_changed_first(quick):
    """The engine has answered an unload without it."""
    quick.replicate(0)
    frontend, _ = quick.frontends

    async def stop_and_resume():
        read = frontend._connection._loop_link._read
        quick.loop.remove_reader(frontend.link.fileno())
        await asyncio.to_thread(quick.repository.unload, "quick")
        request, reply = quick.request()
        request.start_ns = time.monotonic_ns() + 10**9  # it has been stopped for a second
        frontend.infer(request)
        quick.loop.add_reader(frontend.link.fileno(), read)
        await quick.until(lambda: reply.answered)
        return reply.wait()

    response = quick.run(stop_and_resume())
    assert "'quick' has no available versions" in response.error.message
    assert quick.ran() == [0, 0, 0]


def test_the_engine_serves_what_a_front_end_cannot_load(quick, caplog):
    quick.backends[0].failure = InvalidArgument("no memory for it")
    model = quick.find(0)
    with caplog.at_level(logging.WARNING):
        quick.run(quick.until(lambda: "no memory for it" in caplog.text))
        for _ in range(3):
            assert quick.infer(0).error is None
    assert caplog.text.count("runs in the engine process only") == 1
    assert model.replica is None
    assert quick.ran() == [0, 0, 3]


def test_files_that_the_engine_has_not_loaded_are_not_used(quick, caplog):
    (quick.models / "quick" / "1" / "weights").write_text("others")
    with caplog.at_level(logging.WARNING):
        model = quick.find(0)
        quick.run(quick.until(lambda: "its files are not those" in caplog.text))
    assert quick.infer(0).error is None
    assert model.replica is None
    assert quick.backends[0].open_models == 0


def test_other_instance_groups_are_taken_over(quick):
    model = quick.replicate(0)
    quick.infer(0)
    config = (quick.models / "quick" / "config.pbtxt").read_text()
    more = config + "\ninstance_group { count: 3 kind: KIND_CPU }"
    (quick.models / "quick" / "config.pbtxt").write_text(more)
    quick.blocking(quick.frontends[1].load, "quick", None, {})
    again = quick.replicate(0)
    assert again is not model
    assert quick.backends[0].open_executors == 3
    quick.infer(0)
    assert quick.counted()["inference_count"] == 2  # the same model for the engine


def test_a_lost_engine_ends_the_replicas(quick):
    model = quick.replicate(0)
    lost = []
    quick.frontends[0].on_lost = lambda: lost.append(True)
    next(iter(quick.service.frontends())).close()
    for frontend in list(quick.service.frontends()):
        frontend.close()
    quick.run(quick.until(lambda: lost and quick.backends[0].open_models == 0))
    assert model.replica is None


@pytest.fixture
def short_queue(tmp_path):
    made = ReplicaWorld(tmp_path, parameter("max_queue_size", "1"))
    yield made
    made.backends[0].gate.set()
    made.close()


def test_each_front_end_has_a_queue_of_its_own(short_queue):
    world, backend = short_queue, short_queue.backends[0]
    world.replicate(0)
    backend.gate.clear()
    replies = []

    async def fill():
        for _ in range(2):
            request, reply = world.request()
            world.frontends[0].infer(request)
            replies.append(reply)
            if len(replies) == 1:
                await world.until(lambda: backend.started.acquire(blocking=False))
        with pytest.raises(QueueRejected):
            world.frontends[0].infer(world.request()[0])
        with pytest.raises(QueueRejected):
            world.frontends[0].check_room("quick")

    world.run(fill())
    world.replicate(1)
    assert world.infer(1).error is None
    backend.gate.set()
    world.run(world.until(lambda: all(reply.answered for reply in replies)))
    assert world.counted()["inference_stats"]["fail"]["count"] == 2
