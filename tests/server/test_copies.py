"""Where the bytes of large tensors are: how often they are copied between socket and model.

socket --recv_into--> body == what a model reads alone; several are joined once
what a model returns == what the socket is given to send
"""

from __future__ import annotations

import asyncio
import gc

import numpy as np
import pytest

from shoal.core import buffers
from shoal.frontends.http.protocol import HttpConnection
from shoal.testing.server import running_server, wait_until
from tests.support.client import Infer, outputs
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.repositories import EXECUTION_MODES, add_fake, execution

COLUMNS = 60_000  # 240 KB a row
FEWER = 12_000  # 48 KB, which the loop joins, too
HUGE = 1_500_000  # more than the buffers of a connection take


def doubled(inputs, names):
    return [inputs["INPUT0"] * 2 for _ in names]


class Witness:
    """Sees every buffer the sockets wrote into and everything they were given to send."""

    def __init__(self, monkeypatch):
        self.received = []
        self.sent = []
        get_buffer, write = HttpConnection.get_buffer, HttpConnection.write

        def note_buffer(connection, sizehint):
            buffer = get_buffer(connection, sizehint)
            if connection._reader.target is not None:  # not the scratch that all share
                self.received.append(np.frombuffer(buffer, np.uint8))
            return buffer

        def note_write(connection, data):
            if isinstance(data, memoryview):
                self.sent.append(np.frombuffer(data, np.uint8))
            write(connection, data)

        monkeypatch.setattr(HttpConnection, "get_buffer", note_buffer)
        monkeypatch.setattr(HttpConnection, "write", note_write)

    def clear(self):
        self.received.clear()
        self.sent.clear()


@pytest.fixture
def witness(monkeypatch):
    return Witness(monkeypatch)


@pytest.fixture
def backend():
    backend = FakeBackend(doubled, may_run_on_loop=True)
    backend.results = []
    compute = backend.compute

    def keep(inputs, names):
        backend.results.append(compute(inputs, names))
        return backend.results[-1]

    backend.compute = keep
    yield backend
    backend.gate.set()


@pytest.fixture(params=EXECUTION_MODES)
def mode(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["plans", "no plans"])
def running(request, tmp_path, backend, mode, witness):
    del witness  # patched before the first connection
    more = "dynamic_batching { }\ninstance_group { kind: KIND_CPU count: 1 }\n" + execution(mode)
    add_fake(tmp_path, "wide", more, dims=str(COLUMNS))
    add_fake(tmp_path, "narrow", more, dims=str(FEWER))
    add_fake(tmp_path, "huge", more, dims=str(HUGE))
    backends = backend.registry()
    with running_server(tmp_path, backends=backends, plans=request.param) as server:
        yield server


def ask(start=0, rows=1, columns=COLUMNS, id="1"):
    array = np.arange(start, start + rows * columns, dtype=np.int32).reshape(rows, columns)
    infer = Infer(id=id).add("INPUT0", array, binary=True).want("OUTPUT0", binary_data=True)
    infer.document = {"id": infer.document.pop("id"), **infer.document}  # where clients write it
    return infer, array


def shared(array, buffers):
    """How many of the array's bytes lie in the buffers."""
    lowest = array.__array_interface__["data"][0]
    spans = {(b.__array_interface__["data"][0], b.nbytes) for b in buffers if b.nbytes}
    covered = np.zeros(array.nbytes, bool)
    for start, size in spans:
        first = max(0, start - lowest)
        last = min(array.nbytes, start + size - lowest)
        covered[first : max(first, last)] = True
    return int(covered.sum())


@pytest.mark.one_process
def test_a_batch_of_one_is_never_copied(running, backend, witness):
    for number in range(3):  # from the second one on with a plan
        backend.batches.clear()
        backend.results.clear()
        witness.clear()
        infer, array = ask(number, id=f"request {number}")
        answer = infer.send(running, "wide")
        assert (outputs(answer)["OUTPUT0"] == array * 2).all()
        (batch,) = backend.batches
        (result,) = backend.results
        # All but what came in one piece with the head was written where the model read it.
        assert shared(batch["INPUT0"], witness.received) >= array.nbytes - 64 * 1024
        assert batch["INPUT0"].ctypes.data % 64 == 0
        assert shared(result[0], witness.sent) == array.nbytes


@pytest.mark.one_process
def test_a_batch_is_joined_once_and_its_outputs_are_views(running, backend, witness):
    backend.gate.clear()
    requests = [
        ask(1000 * number, rows=1 + (number > 0), columns=FEWER, id=str(number))
        for number in range(4)
    ]
    calls = _batched(running, backend, requests, "narrow")
    for call, (_, array) in zip(calls, requests, strict=True):
        assert (outputs(call.response())["OUTPUT0"] == array * 2).all()
    joined = backend.batches[-1]["INPUT0"]
    (result,) = backend.results[-1]
    assert joined.shape[0] > 2
    assert joined.ctypes.data % 64 == 0
    assert shared(joined, witness.received) == 0  # copied
    lent = [loan() for loan in list(buffers.pool._lent.values())]
    spans = {(one.ctypes.data, one.nbytes) for one in lent if one is not None}
    assert (joined.ctypes.data, joined.nbytes) in spans  # once: this was taken for it alone
    first = (
        4 * FEWER if running.model("narrow").execution_placement.on_loop() else 0
    )  # sent with its head
    assert shared(result, witness.sent) == result.nbytes - first


@pytest.mark.one_process
def test_the_loop_runs_large_inputs_alone_and_copies_none(running, backend, witness, mode):
    if mode != "loop":
        pytest.skip("threads join whatever waits together")
    backend.gate.clear()
    requests = [ask(1000 * number, id=str(number)) for number in range(4)]
    for call, (_, array) in zip(_batched(running, backend, requests), requests, strict=True):
        assert (outputs(call.response())["OUTPUT0"] == array * 2).all()
    assert [batch["INPUT0"].shape[0] for batch in backend.batches] == [1] * 4
    for batch in backend.batches:
        copied = batch["INPUT0"].nbytes - shared(batch["INPUT0"], witness.received)
        assert copied <= 64 * 1024  # what came in one piece with the head


def test_the_memory_of_a_batch_is_used_again(running, backend, witness):
    places = []
    for _ in range(3):
        backend.gate.clear()
        requests = [ask(number, columns=FEWER, id=str(number)) for number in range(4)]
        for call in _batched(running, backend, requests, "narrow"):
            assert call.response().status == 200
        joined = backend.batches[-1]["INPUT0"]
        backend.batches.clear()
        backend.results.clear()
        witness.clear()
        _at_rest(running, "narrow")  # what comes back while another is at the pool is not kept
        places.append(joined.ctypes.data)
        del joined
    assert places[1] == places[0] == places[2]


def test_buffers_of_bodies_are_returned_with_the_response(running, backend, witness):
    """None of them waits for the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        lent = buffers.pool.lent
        for number in range(4):
            infer, _ = ask(number, id=str(number))
            assert infer.send(running, "wide").status == 200
        backend.batches.clear()
        backend.results.clear()
        witness.clear()
        wait_until(lambda: buffers.pool.lent <= lent, "all have come back")
    finally:
        gc.enable()


def test_a_result_that_is_its_input_is_not_overwritten_before_it_was_sent(running, backend):
    """Models may hand back what they were given; it is still being sent when the next ones run."""
    backend.compute = lambda inputs, names: [inputs["INPUT0"] for _ in names]
    backend.gate.clear()
    slow = [ask(1000 * number, columns=HUGE, id=str(number)) for number in range(3)]
    unread = _batched(running, backend, slow, "huge")
    backend.batches.clear()
    for number in range(4):  # others use the pool meanwhile, and get what is theirs
        infer, array = ask(7 * number, columns=HUGE)
        assert (outputs(infer.send(running, "huge"))["OUTPUT0"] == array).all()
        backend.batches.clear()
    for call, (_, array) in zip(unread, slow, strict=True):
        assert (outputs(call.response())["OUTPUT0"] == array).all()


def _at_rest(running, model):
    """Wait until neither the instance nor the loop is busy with what has been answered."""
    served = running.model(model)
    if not served.execution_placement.on_loop():
        wait_until(lambda: served._batcher._waiting, "the instance waits")
    running.run(asyncio.sleep(0))


def _batched(running, backend, requests, model="wide"):
    """Send `requests` so that all but the first run as one batch; the calls, not yet answered."""
    first, *others = requests
    if running.model(model).execution_placement.on_loop():
        return _batched_on_loop(running, backend, requests, model)
    calls = [first[0].call(running, model)]
    assert backend.started.acquire(timeout=WAIT_SECS)
    calls += [infer.call(running, model) for infer, _ in others]
    running.wait_for_pending(model, len(others))
    backend.gate.set()
    assert backend.started.acquire(timeout=WAIT_SECS)
    return calls


def _batched_on_loop(running, backend, requests, model):
    """On the loop nothing arrives during an execution: hold the queue until all have."""
    backend.gate.set()
    batcher = running.model(model)._batcher
    batcher._cutter._hold_until = len(requests)
    calls = [infer.call(running, model) for infer, _ in requests]
    assert backend.started.acquire(timeout=WAIT_SECS)
    return calls
