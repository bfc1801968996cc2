"""`AsyncClient`: the same methods, on Shoal and on Triton."""

from __future__ import annotations

import asyncio
import inspect

import numpy as np
import pytest

from shoal.client import (
    AsyncClient,
    Client,
    ClientError,
    ConnectionFailed,
    InvalidInput,
    ServerError,
)

ONE = np.arange(16, dtype=np.int32).reshape(1, 16)


def both(index=1):
    return {"INPUT0": ONE, "INPUT1": ONE * index}


def test_the_methods_are_those_of_the_other_client():
    def methods(kind):
        return {name for name in vars(kind) if not name.startswith("_")}

    assert methods(Client) == methods(AsyncClient)
    for name in methods(Client):
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (Client, AsyncClient))
        assert list(ours.parameters)[1:] == list(theirs.parameters)[1:], name


def test_many_at_once(url):
    async def main():
        async with AsyncClient(url, connections=8) as client:
            results = await asyncio.gather(
                *(client.infer("add_sub", both(index)) for index in range(100))
            )
            for index, result in enumerate(results):
                np.testing.assert_array_equal(result["OUTPUT0"], ONE * (1 + index))

    asyncio.run(main())


def test_status_and_errors(url):
    async def main():
        async with AsyncClient(url) as client:
            assert await client.live()
            assert await client.model_ready("nope") is False
            assert (await client.metadata("add_sub"))["name"] == "add_sub"
            assert (await client.infer("add_sub", {**both(), "INPUT0": [[1] * 16]}))[
                "OUTPUT0"
            ].any()
            with pytest.raises(ServerError, match="nope"):
                await client.infer("nope", both())
            with pytest.raises(InvalidInput):
                await client.infer("add_sub", {"INPUT0": [["a"]]})
            prepared = await client.prepare("add_sub", both())
            assert len(await client.send(prepared)) == 2

    asyncio.run(main())


def test_labels(url):
    async def main():
        async with AsyncClient(url) as client:
            result = await client.infer("scores", {"INPUT": np.array([[0, 3, 1, 2]], np.float32)})
            assert result.top_k("OUTPUT")[0][0].name == ""  # nobody has asked for them
            assert await client.labels(result, "OUTPUT") == ["kraken", "whale", "eel", ""]
            assert result.top_k("OUTPUT")[0][0].name == "whale"

    asyncio.run(main())


def test_large_tensors(url):
    async def main():
        given = np.arange(1_000_000, dtype=np.float32)
        async with AsyncClient(url) as client:
            results = await asyncio.gather(
                *(client.infer("echo", {"FP32": given}) for _ in range(3))
            )
            for result in results:
                np.testing.assert_array_equal(result["OUT_FP32"], given)

    asyncio.run(main())


def test_sequences_and_shared_memory(url):
    async def main():
        async with AsyncClient(url) as client:
            async with client.sequence("counter") as sequence:
                for number, total in ((1, 1), (2, 3)):
                    result = await sequence.infer({"INPUT": [[number]]})
                    assert int(result["TOTAL"][0, 0]) == total
            async with client.shared_memory("async", 4096) as region:
                result = await client.infer(
                    "add_sub",
                    {"INPUT0": region.put(ONE), "INPUT1": ONE},
                    outputs={"OUTPUT0": region.place(64)},
                )
                np.testing.assert_array_equal(result["OUTPUT0"], ONE * 2)
            assert await client.shared_memory_regions() == []

    asyncio.run(main())


def test_streams(server):
    async def main():
        async with AsyncClient(server.grpc) as client:
            async with client.stream("words") as stream:
                await stream.send({"TEXT": ["one two three"]})
                assert [r["WORD"][0] async for r in stream] == [b"one", b"two", b"three"]
                await stream.send({"TEXT": ["bad"]})
                with pytest.raises(ServerError, match="bad word"):
                    await stream.receive()
                await stream.finish()
                while await stream.receive() is not None:
                    pass
            large = np.arange(500_000, dtype=np.float32)
            async with client.stream("echo") as stream:
                for _ in range(10):
                    await stream.send({"FP32": large})
                assert sum([r["OUT_FP32"].size async for r in stream]) == 10 * large.size
            with pytest.raises(ClientError, match="async with"):
                await client.stream("words").send({"TEXT": ["a"]})

    asyncio.run(main())


def test_generate(server):
    async def main():
        async with AsyncClient(server.http) as client:
            assert (await client.generate("words", {"TEXT": "one"}))["WORD"] == "one"
            found = [
                each["WORD"] async for each in client.generate_stream("words", {"TEXT": "one two"})
            ]
            assert found == ["one", "two"]
            with pytest.raises(ServerError, match="nope"):
                async for _ in client.generate_stream("nope", {"TEXT": "one"}):
                    pass
            begun = client.generate_stream("words", {"TEXT": "one two three"})
            assert (await anext(begun))["WORD"] == "one"
            await begun.aclose()
            assert await client.live()

    asyncio.run(main())


def test_a_cancelled_call_leaves_the_client_usable(url):
    async def main():
        async with AsyncClient(url, connections=1) as client:
            await client.live()
            for _ in range(5):
                call = asyncio.ensure_future(client.infer("add_sub", both()))
                await asyncio.sleep(0)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            np.testing.assert_array_equal(
                (await client.infer("add_sub", both()))["OUTPUT0"], ONE * 2
            )

    asyncio.run(main())


def test_a_closed_client_raises(url):
    async def main():
        client = AsyncClient(url)
        await client.live()
        await client.close()
        with pytest.raises(ClientError, match="closed"):
            await client.live()

    asyncio.run(main())


def test_no_server_is_running():
    async def main():
        for address in ("localhost:1", "grpc://localhost:1"):
            async with AsyncClient(address) as client:
                with pytest.raises(ConnectionFailed, match="no server answers at localhost:1"):
                    await client.live()

    asyncio.run(main())
