"""Streams of tritonclient.grpc: sync and aio, against a real server."""

from __future__ import annotations

import asyncio
import queue

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as aioclient
from tritonclient.utils import InferenceServerException

from shoal.testing.server import wait_until
from tests.support.fakes import WAIT_SECS


def make_inputs(module, number):
    tensors = []
    for name in ("INPUT0", "INPUT1"):
        tensor = module.InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(np.full((1, 16), number, np.int32))
        tensors.append(tensor)
    return tensors


def held_input(value):
    tensor = grpcclient.InferInput("INPUT0", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[value]], np.int32))
    return [tensor]


@pytest.fixture
def client(address):
    with grpcclient.InferenceServerClient(address) as made:
        yield made


@pytest.fixture
def answers():
    return queue.Queue()


def collect(answers):
    return lambda result, error: answers.put((result, error))


def test_responses_come_in_order(client, answers):
    client.start_stream(collect(answers))
    for number in range(200):
        client.async_stream_infer("sum", make_inputs(grpcclient, number), request_id=str(number))
    for number in range(200):
        result, error = answers.get(timeout=WAIT_SECS)
        assert error is None
        response = result.get_response()
        assert response.id == str(number)
        assert response.parameters["triton_final_response"].bool_param
        assert result.as_numpy("OUTPUT0")[0, 0] == 2 * number
    client.stop_stream()
    assert answers.empty()


def test_errors_inside_the_stream(client, answers):
    client.start_stream(collect(answers))
    client.async_stream_infer("nope", make_inputs(grpcclient, 1))
    client.async_stream_infer("sum", make_inputs(grpcclient, 1)[:1], request_id="short")
    client.async_stream_infer("sum", make_inputs(grpcclient, 1))
    _, error = answers.get(timeout=WAIT_SECS)
    assert error.message() == "Request for unknown model: 'nope' is not found"
    _, error = answers.get(timeout=WAIT_SECS)
    assert error.message().startswith("[request id: short] expected 2 inputs but got 1 inputs")
    result, error = answers.get(timeout=WAIT_SECS)
    assert error is None
    assert result.as_numpy("OUTPUT0")[0, 0] == 2
    client.stop_stream()


def test_errors_that_end_the_stream(client, answers):
    client.start_stream(collect(answers), headers={"triton_grpc_error": "true"})
    client.async_stream_infer("sum", make_inputs(grpcclient, 1))
    assert answers.get(timeout=WAIT_SECS)[1] is None
    client.async_stream_infer("nope", make_inputs(grpcclient, 1))
    _, error = answers.get(timeout=WAIT_SECS)
    assert error.status() == "StatusCode.NOT_FOUND"
    assert error.message() == "Request for unknown model: 'nope' is not found"
    client.stop_stream()


def test_a_cancelled_stream_leaves_nothing_in_the_queue(client, answers, world):
    fake = world.fake
    while fake.started.acquire(blocking=False):
        pass  # those of other tests
    fake.batches.clear()
    fake.gate.clear()
    try:
        client.start_stream(collect(answers))
        for number in range(3):
            client.async_stream_infer("held", held_input(number))
        assert fake.started.acquire(timeout=WAIT_SECS)
        world.running.wait_for_pending("held", 2)
        client.stop_stream(cancel_requests=True)
        world.running.wait_for_pending("held", 0)
        _, error = answers.get(timeout=WAIT_SECS)
        assert error.status() == "StatusCode.CANCELLED"
    finally:
        fake.gate.set()
    wait_until(lambda: world.running.model("held").in_flight() == 0, "the first one has run")
    assert [batch["INPUT0"].tolist() for batch in fake.batches] == [[[0]]]
    assert client.is_server_live()


def test_aio(address):
    async def main():
        async with aioclient.InferenceServerClient(address) as client:
            assert await client.is_server_ready()
            assert (await client.get_model_metadata("sum")).name == "sum"
            answers = await asyncio.gather(
                *(client.infer("sum", make_inputs(aioclient, number)) for number in range(30))
            )
            assert [answer.as_numpy("OUTPUT0")[0, 0] for answer in answers] == [
                2 * number for number in range(30)
            ]
            with pytest.raises(InferenceServerException) as caught:
                await client.infer("nope", make_inputs(aioclient, 1))
            assert caught.value.status() == "StatusCode.NOT_FOUND"

            async def requests():
                for number in range(50):
                    yield {
                        "model_name": "sum" if number != 7 else "nope",
                        "inputs": make_inputs(aioclient, number),
                        "request_id": str(number),
                    }

            found = []
            async for result, error in client.stream_infer(requests()):
                found.append(error.message() if error else result.get_response().id)
            expected = [str(number) for number in range(50)]
            expected[7] = "Request for unknown model: 'nope' is not found"
            assert found == expected

    asyncio.run(main())
