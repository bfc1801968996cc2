"""tritonclient.http.aio, unchanged: the asynchronous client and its calls."""

from __future__ import annotations

import asyncio
import json
import warnings

import numpy as np
import pytest

with warnings.catch_warnings():  # what its dependencies warn about is theirs to mend
    warnings.simplefilter("ignore")
    import tritonclient.http.aio as httpclient
from tritonclient.utils import InferenceServerException

from shoal.testing.server import wait_until
from tests.support.fakes import WAIT_SECS

ROW = np.arange(16, dtype=np.int32)[None]


def numbers(start=0, *, binary=True):
    tensors = []
    for name, array in (("INPUT0", ROW + start), ("INPUT1", ROW)):
        tensor = httpclient.InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(array, binary_data=binary)
        tensors.append(tensor)
    return tensors


@pytest.fixture
def with_client(web):
    """Runs a scenario with a client on an event loop of its own."""

    def run(scenario, **options):
        async def session():
            async with httpclient.InferenceServerClient(web.address, **options) as client:
                return await asyncio.wait_for(scenario(client), WAIT_SECS)

        return asyncio.run(session())

    return run


def test_what_there_is(with_client):
    async def scenario(client):
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("sum")
        assert not await client.is_model_ready("nope")
        assert (await client.get_server_metadata())["name"] == "triton"
        assert (await client.get_model_metadata("sum"))["versions"] == ["1", "3"]
        assert (await client.get_model_config("sum"))["max_batch_size"] == 8
        assert len((await client.get_inference_statistics("sum"))["model_stats"]) == 2
        assert any(row["name"] == "sum" for row in await client.get_model_repository_index())

    with_client(scenario)


@pytest.mark.parametrize("binary", [True, False])
def test_infer(with_client, binary):
    async def scenario(client):
        for start in range(3):
            result = await client.infer(
                "sum",
                numbers(start, binary=binary),
                request_id=str(start),
                outputs=[httpclient.InferRequestedOutput("OUTPUT0", binary_data=binary)],
            )
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), 2 * ROW + start)
            assert result.get_response()["id"] == str(start)

    with_client(scenario)


def test_many_at_once(with_client):
    async def scenario(client):
        async def one(number):
            result = await client.infer("sum", numbers(number))
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), 2 * ROW + number)

        await asyncio.gather(*(one(number) for number in range(100)))

    with_client(scenario, conn_limit=20)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compression(with_client, coding):
    async def scenario(client):
        array = np.arange(20_000, dtype=np.float32)[None] % 100
        tensor = httpclient.InferInput("INPUT0", list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        result = await client.infer(
            "wide",
            [tensor],
            request_compression_algorithm=coding,
            response_compression_algorithm=coding,
        )
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)

    with_client(scenario)


def test_errors(with_client):
    async def scenario(client):
        with pytest.raises(InferenceServerException, match="expected 2 inputs"):
            await client.infer("sum", numbers()[:1])
        with pytest.raises(InferenceServerException, match="Request for unknown model"):
            await client.infer("nope", numbers())

    with_client(scenario)


def test_control(with_client):
    async def scenario(client):
        await client.load_model("mine", config=json.dumps({"max_batch_size": 3}))
        assert (await client.get_model_config("mine"))["max_batch_size"] == 3
        await client.unload_model("mine")
        assert not await client.is_model_ready("mine")
        await client.load_model("mine")
        assert (await client.get_model_config("mine"))["max_batch_size"] == 8

    with_client(scenario)


def test_a_cancelled_call_takes_its_request_back(web, with_client):
    """Two held requests: the second is cancelled while it waits and never runs."""
    web.fake.gate.clear()
    ran = len(web.fake.batches)
    tensor = httpclient.InferInput("INPUT0", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[1]], np.int32))

    async def scenario(client):
        first = asyncio.ensure_future(client.infer("held", [tensor]))
        await asyncio.to_thread(web.fake.started.acquire, timeout=WAIT_SECS)
        second = asyncio.ensure_future(client.infer("held", [tensor]))
        await asyncio.to_thread(web.running.wait_for_pending, "held", 1)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        await asyncio.to_thread(web.running.wait_for_pending, "held", 0)
        web.fake.gate.set()
        assert (await first).as_numpy("OUTPUT0").tolist() == [[1]]

    while web.fake.started.acquire(blocking=False):
        pass
    try:
        with_client(scenario)
    finally:
        web.fake.gate.set()
    wait_until(lambda: len(web.fake.batches) == ran + 1)
