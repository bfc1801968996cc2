"""Instances on several GPUs, which the machine is made to have: each batch goes to an idle one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shoal.instance import device
from shoal.testing import WAIT_SECS
from shoal.testing.server import running_server, wait_until
from tests.support.client import Infer
from tests.support.fakes import FakeBackend, FakeExecutor, FakeLoadedModel
from tests.support.repositories import add_fake

pytestmark = pytest.mark.one_process


class OnGpu(FakeExecutor):
    """Counts its executions by GPU; the test can hold those of one."""

    def run(self, inputs, outputs):
        gpu = self.placement.device_id
        self.owner.begun.append(gpu)
        assert self.owner.gates[gpu].wait(WAIT_SECS)
        return super().run(inputs, outputs)


class GpuBackend(FakeBackend):
    """Makes instances on GPUs."""

    def __init__(self):
        super().__init__()
        self.begun = []
        self.gates = {gpu: threading.Event() for gpu in (0, 1)}
        for gate in self.gates.values():
            gate.set()

    def load(self, context):
        super().load(context)

        class Loaded(FakeLoadedModel):
            def executor(self, placement):
                self.owner.open_executors += 1
                return OnGpu(self.owner, placement)

        return Loaded(self)


@pytest.fixture
def backend(monkeypatch):
    monkeypatch.setattr(device, "gpus", lambda: (0, 1))
    made = GpuBackend()
    yield made
    for gate in made.gates.values():
        gate.set()


def ask(running):
    request = Infer().add("INPUT0", np.array([[1]], np.int32))
    return request.send(running, "m").status


@pytest.mark.parametrize("group", ["kind: KIND_GPU", "kind: KIND_GPU gpus: [ 0, 1 ]", "count: 1"])
def test_each_gpu_has_an_instance(repository, backend, group):
    add_fake(repository, "m", f"instance_group [ {{ {group} }} ]\n")
    with running_server(repository, backends=backend.registry()) as running:
        (own,) = running.config("m")["instance_group"]
        assert own["gpus"] == [0, 1]
        (context,) = backend.loads
        assert [(one.kind, one.device_id) for one in context.placements] == [
            ("KIND_GPU", 0),
            ("KIND_GPU", 1),
        ]
        assert ask(running) == 200


def test_a_batch_goes_to_the_gpu_that_is_idle(repository, backend):
    add_fake(repository, "m", "instance_group [ { kind: KIND_GPU gpus: [ 0, 1 ] } ]\n")
    with (
        running_server(repository, backends=backend.registry()) as running,
        ThreadPoolExecutor(2) as pool,
    ):
        for gate in backend.gates.values():
            gate.clear()
        held = [pool.submit(ask, running) for _ in range(2)]
        wait_until(lambda: len(backend.begun) == 2)
        assert sorted(backend.begun) == [0, 1]  # both at once
        backend.gates[1].set()
        wait_until(lambda: any(one.done() for one in held))
        assert [ask(running) for _ in range(5)] == [200] * 5
        assert backend.begun[2:] == [1] * 5  # GPU 0 is busy
        backend.gates[0].set()
        assert [one.result(WAIT_SECS) for one in held] == [200, 200]


def test_a_gpu_that_does_not_exist(repository, backend):
    add_fake(repository, "m", "instance_group [ { kind: KIND_GPU gpus: [ 0, 2 ] } ]\n")
    options = {"backends": backend.registry(), "strict_readiness": False, "exit_on_error": False}
    with running_server(repository, **options) as running:
        (entry,) = running.index()
        assert (
            "instance group m_0 of model m specifies invalid or unsupported gpu id 2. GPUs with "
            "at least the minimum required CUDA compute compatibility of 6.000000 are: 0, 1"
        ) in entry["reason"]
