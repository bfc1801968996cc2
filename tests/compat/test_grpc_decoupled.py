"""Decoupled models through tritonclient's streams: any number of responses, in any order."""

from __future__ import annotations

import asyncio
import queue
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from shoal.core.inbox import LoopInbox
from shoal.core.tensor import Tensor
from shoal.errors import BackendFailure
from shoal.frontends.grpc.grpcio_transport import GrpcioListener
from shoal.frontends.grpc.listener import GrpcListener
from shoal.frontends.grpc.service import GrpcOptions, GrpcService
from shoal.testing.server import wait_until
from tests.support.fakes import WAIT_SECS
from tests.support.scripted_engine import DECOUPLED, MODEL, ScriptedEngine

ADDRESS = "127.0.0.1"


def tensor(value):
    return Tensor.from_array("OUT", np.array([value], np.int32))


def inputs():
    made = grpcclient.InferInput("IN", [1], "INT32")
    made.set_data_from_numpy(np.array([1], np.int32))
    return [made]


@pytest.fixture(scope="module", params=[GrpcListener, GrpcioListener])
def world(request):
    """A listener on a thread of its own, with an engine that this thread answers for."""
    engine = ScriptedEngine()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(WAIT_SECS)

    async def begin():
        options = GrpcOptions(header_forward_pattern="^x-")
        service = GrpcService(engine, LoopInbox(loop), options)
        listener = request.param(service)
        return service, listener, await listener.start(ADDRESS)

    service, listener, port = run(begin())
    yield SimpleNamespace(engine=engine, address=f"{ADDRESS}:{port}")
    assert run(listener.drain(WAIT_SECS))
    service.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def engine(world):
    world.engine.requests.clear()
    return world.engine


@pytest.fixture
def answers():
    return queue.Queue()


@pytest.fixture
def client(world, engine):
    with grpcclient.InferenceServerClient(world.address) as made:
        yield made


def arrived(engine, count):
    wait_until(lambda: len(engine.requests) >= count, f"{count} requests at the engine")


def take(answers):
    """The next answer: id, value or error, final flag."""
    result, error = answers.get(timeout=WAIT_SECS)
    if error is not None:
        return error.message()
    response = result.get_response()
    output = result.as_numpy("OUT")
    final = response.parameters["triton_final_response"].bool_param
    return response.id, None if output is None else int(output[0]), final


def test_responses_come_as_they_are_made(client, engine, answers):
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer(DECOUPLED, inputs(), request_id="a")
    client.async_stream_infer(DECOUPLED, inputs(), request_id="b", enable_empty_final_response=True)
    arrived(engine, 2)
    engine.answer(1, tensor(1), final=False)
    assert take(answers) == ("b", 1, False)
    for value in range(100):
        engine.answer(0, tensor(value), final=False)
    for value in range(100):
        assert take(answers) == ("a", value, False)
    engine.answer(0)  # nobody asked for this one
    engine.answer(1)
    assert take(answers) == ("b", None, True)
    client.stop_stream()
    assert answers.empty()


def test_an_error_between_responses(client, engine, answers):
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer(DECOUPLED, inputs(), request_id="a")
    arrived(engine, 1)
    engine.answer(0, tensor(1), final=False)
    engine.answer(0, error=BackendFailure("for now"), final=False)
    engine.answer(0, tensor(2))
    assert [take(answers) for _ in range(3)] == [("a", 1, False), "for now", ("a", 2, True)]
    client.stop_stream()


def test_cancelling_reaches_a_request_that_is_still_responding(client, engine, answers):
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer(DECOUPLED, inputs())
    arrived(engine, 1)
    engine.answer(0, tensor(1), final=False)
    take(answers)
    client.stop_stream(cancel_requests=True)
    wait_until(lambda: engine.requests[0].cancelled, "the cancellation")
    engine.answer(0, tensor(2), final=False)
    engine.answer(0)


def test_large_responses_to_a_slow_reader(client, engine, answers):
    """What a decoupled model sends waits for the client, and arrives whole."""
    gate = threading.Event()

    def slow(result, error):
        gate.wait(WAIT_SECS)
        answers.put((result, error))

    client.start_stream(slow)
    client.async_stream_infer(DECOUPLED, inputs())
    arrived(engine, 1)
    large = Tensor.from_array("OUT", np.arange(500_000, dtype=np.int32))
    for _ in range(10):
        engine.answer(0, large, final=False)
    engine.answer(0, tensor(7))
    gate.set()
    for _ in range(10):
        result, error = answers.get(timeout=WAIT_SECS)
        assert error is None
        assert result.as_numpy("OUT").size == 500_000
    assert take(answers)[1] == 7
    client.stop_stream()


def test_decoupled_models_are_not_for_unary_calls(client):
    with pytest.raises(InferenceServerException) as caught:
        client.infer(DECOUPLED, inputs())
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
    assert "decoupled transaction policy" in caught.value.message()


def test_metadata_is_forwarded(client, engine):
    done = queue.Queue()
    client.async_infer(
        MODEL,
        inputs(),
        lambda result, error: done.put(error),
        headers={"x-user": "ann", "other": "1"},
        parameters={"mine": 1.5},
    )
    arrived(engine, 1)
    assert engine.requests[0].parameters == {"x-user": "ann", "mine": 1.5}
    engine.answer(0, tensor(1))
    assert done.get(timeout=WAIT_SECS) is None
