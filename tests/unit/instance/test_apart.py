"""Which batches the loop runs request by request, and how long it may take over them."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.backends.base import Executor
from shoal.core.dtypes import UINT8
from shoal.core.tensor import Tensor
from shoal.instance import inline
from shoal.instance.execution_placement import ExecutionPlacement
from shoal.instance.inline import LoopInstance, executions_of
from tests.support.fakes import make_request

LARGE = 64 << 10


def request_of(size, *, raw=True):
    request, _ = make_request()
    array = np.zeros((1, size), np.uint8)
    tensor = (
        Tensor("IN", UINT8, (1, size), raw=array.tobytes())
        if raw
        else Tensor.from_array("IN", array)
    )
    request.inputs = {"IN": tensor}
    return request


@pytest.mark.parametrize(
    ("batch", "executions"),
    [
        ([request_of(LARGE)], 1),
        ([request_of(LARGE), request_of(LARGE), request_of(LARGE)], 3),
        ([request_of(LARGE - 1), request_of(LARGE - 1)], 1),
        ([request_of(LARGE, raw=False), request_of(LARGE, raw=False)], 1),
    ],
)
def test_only_large_inputs_that_would_be_copied(batch, executions):
    assert executions_of(batch) == executions


def test_a_batch_of_sequences_stays_together():
    batch = [request_of(LARGE), request_of(LARGE)]
    batch[0].turn = object()
    assert executions_of(batch) == 1


class Counting:
    """Stands for an execution: each takes as long as it is told."""

    def __init__(self, took_ns):
        self.took_ns = took_ns
        self.sizes = []

    def run(self, executor, batch):
        del executor
        self.sizes.append(len(batch))
        return self.took_ns


class Nothing(Executor):
    def run(self, inputs, outputs):
        return []


def loop_instance(took_ns):
    execution = Counting(took_ns)
    return LoopInstance(None, None, execution, Nothing(), ExecutionPlacement()), execution


def test_one_by_one_and_judged_by_the_slowest():
    instance, execution = loop_instance(30_000)
    assert instance._run([request_of(LARGE)] * 4) == 30_000
    assert execution.sizes == [1, 1, 1, 1]


def test_not_when_sockets_would_wait_too_long(monkeypatch):
    monkeypatch.setattr(inline, "own_ns", lambda elapsed_ns, *_: elapsed_ns)
    instance, execution = loop_instance(inline._LONGEST_APART_NS // 4 + 1)
    instance._run([request_of(LARGE)] * 4)  # how long one takes is not known yet
    instance._run([request_of(LARGE)] * 4)
    instance._run([request_of(LARGE)] * 3)
    assert execution.sizes == [1, 1, 1, 1, 4, 1, 1, 1]
