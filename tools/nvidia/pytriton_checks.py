"""pytriton's clients against a running server: `pytriton_checks.py HTTP_ADDRESS GRPC_ADDRESS`.

It runs in the environment that has nvidia-pytriton, imports only `pytriton.client`, and starts no
server. The models are those of repository.py. Each check prints a line; the exit status is 1 if
one failed.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import traceback
import warnings
from collections.abc import Awaitable, Callable

import numpy as np
from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
)
from pytriton.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientModelDoesntSupportBatchingError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)

WAIT_SECS = 60
LEFT = np.arange(16, dtype=np.int32)
RIGHT = np.full(16, 3, np.int32)
LEFT_ROWS, RIGHT_ROWS = np.stack([LEFT] * 5), np.stack([RIGHT] * 5)


def is_add_sub(result: dict[str, np.ndarray], left: np.ndarray, right: np.ndarray) -> bool:
    return (
        set(result) == {"OUTPUT0", "OUTPUT1"}
        and np.array_equal(result["OUTPUT0"], left + right)
        and np.array_equal(result["OUTPUT1"], left - right)
    )


def text(words: str) -> np.ndarray:
    """One string, as pytriton's users write it."""
    return np.char.encode(np.array([words]), "utf-8")


def forgets_its_protocol(url: str) -> bool:
    """Whether a client made of another one would use HTTP on the port of gRPC: pytriton 0.7.0 does
    not keep the scheme, whatever the server."""
    return url.startswith("grpc")


def fails(kind: type[Exception], call: Callable[[], object], message: str = "") -> bool:
    """Whether `call` raises this exception, with `message` in its text."""
    try:
        call()
    except kind as error:
        assert message in str(error), error
        return True
    return False


async def fails_later(kind: type[Exception], awaited: Awaitable[object], message: str = "") -> bool:
    try:
        await awaited
    except kind as error:
        assert message in str(error), error
        return True
    return False


# ---- ModelClient


def check_samples_and_batches(url: str) -> None:
    with ModelClient(url, "add_sub") as client:
        client.wait_for_server(WAIT_SECS)
        client.wait_for_model(WAIT_SECS)
        assert client.is_batching_supported
        assert is_add_sub(client.infer_sample(LEFT, RIGHT), LEFT, RIGHT)
        assert is_add_sub(client.infer_sample(INPUT1=RIGHT, INPUT0=LEFT), LEFT, RIGHT)
        assert is_add_sub(client.infer_batch(LEFT_ROWS, RIGHT_ROWS), LEFT_ROWS, RIGHT_ROWS)
        assert is_add_sub(
            client.infer_batch(INPUT0=LEFT_ROWS, INPUT1=RIGHT_ROWS), LEFT_ROWS, RIGHT_ROWS
        )


def check_the_model_config(url: str) -> None:
    with ModelClient(url, "add_sub", lazy_init=False) as client:
        config = client.model_config
    assert (config.model_name, config.batching, config.max_batch_size) == ("add_sub", True, 64)
    assert not config.decoupled
    assert [(each.name, each.shape, each.dtype) for each in config.inputs] == [
        ("INPUT0", (16,), np.int32),
        ("INPUT1", (16,), np.int32),
    ]
    assert [each.name for each in config.outputs] == ["OUTPUT0", "OUTPUT1"]


def check_a_version_and_an_existing_client(url: str) -> None:
    with ModelClient(url, "add_sub", "1") as client:
        assert is_add_sub(client.infer_sample(LEFT, RIGHT), LEFT, RIGHT)
        if forgets_its_protocol(url):
            return
        with ModelClient.from_existing_client(client) as other:
            assert is_add_sub(other.infer_sample(LEFT, RIGHT), LEFT, RIGHT)


def check_a_model_without_batching(url: str) -> None:
    with ModelClient(url, "twice") as client:
        assert not client.is_batching_supported
        numbers = np.array([1, 2, 3.5], np.float32)
        assert client.infer_sample(numbers)["OUTPUT"].tolist() == [2, 4, 7]
        assert fails(
            PyTritonClientModelDoesntSupportBatchingError, lambda: client.infer_batch(numbers)
        )


def check_parameters_and_headers(url: str) -> None:
    with ModelClient(url, "parameters") as client:
        number = np.zeros(1, np.int32)
        sent = {"text": "a", "number": 3, "flag": True}
        seen = client.infer_sample(number, parameters=sent, headers={"triton-grpc-x": "y"})
        found = json.loads(seen["OUTPUT"][0])
        assert {name: found[name] for name in sent} == sent, found


def check_errors(url: str) -> None:
    with ModelClient(url, "picky") as client:
        below = np.array([1, -1], np.int32)
        assert fails(
            PyTritonClientInferenceServerError,
            lambda: client.infer_sample(below),
            "a number below zero",
        )
        wrong_shape = np.zeros(3, np.int32)
        assert fails(
            PyTritonClientInferenceServerError,
            lambda: client.infer_sample(wrong_shape),
            "unexpected shape for input 'INPUT'",
        )
        wrong_type = np.zeros(2, np.float32)
        assert fails(
            PyTritonClientInferenceServerError,
            lambda: client.infer_sample(wrong_type),
            "data-type",
        )
        assert fails(
            PyTritonClientInferenceServerError,
            lambda: client.infer_batch(np.zeros((5, 2), np.int32)),
            "batch-size must be <= 4",
        )
        assert fails(
            PyTritonClientInferenceServerError,
            lambda: client.infer_sample(NONE=below),
        )
        assert fails(PyTritonClientValueError, lambda: client.infer_sample(below, INPUT=below))
        assert client.infer_sample(below * below)["OUTPUT"].tolist() == [1, 1]
    assert fails(PyTritonClientClosedError, lambda: client.infer_sample(below))


def check_models_that_are_not_there(url: str) -> None:
    for name, version in (("nothing", None), ("add_sub", "9")):
        with ModelClient(url, name, version, init_timeout_s=1.0) as client:
            assert fails(PyTritonClientTimeoutError, lambda client=client: client.model_config)


def check_time_outs(url: str) -> None:
    with ModelClient(url, "slow", inference_timeout_s=0.5) as client:
        assert fails(PyTritonClientTimeoutError, lambda: client.infer_sample(np.zeros(1, np.int32)))


def check_loading(url: str) -> None:
    """As the server is in explicit mode."""
    with ModelClient(url, "twice") as client:
        client.unload_model()
        client.load_model()
        client.wait_for_model(WAIT_SECS)
        assert client.infer_sample(np.ones(1, np.float32))["OUTPUT"].tolist() == [2]
        config = {
            "backend": "python",
            "max_batch_size": 2,
            "input": [{"name": "INPUT", "data_type": "TYPE_FP32", "dims": [-1]}],
            "output": [{"name": "OUTPUT", "data_type": "TYPE_FP32", "dims": [-1]}],
        }
        client.load_model(config=json.dumps(config))
        with ModelClient(url, "twice") as again:
            rows = np.ones((2, 3), np.float32)
            assert again.infer_batch(rows)["OUTPUT"].tolist() == (rows * 2).tolist()
        client.load_model()


# ---- FuturesModelClient


def check_futures(url: str) -> None:
    workers = 1 if forgets_its_protocol(url) else 8
    with FuturesModelClient(url, "add_sub", max_workers=workers) as client:
        client.wait_for_model(WAIT_SECS).result(WAIT_SECS)
        assert client.model_config().result(WAIT_SECS).max_batch_size == 64
        samples = [client.infer_sample(LEFT + number, RIGHT) for number in range(40)]
        batches = [client.infer_batch(LEFT_ROWS, RIGHT_ROWS) for _ in range(10)]
        for number, future in enumerate(samples):
            assert is_add_sub(future.result(WAIT_SECS), LEFT + number, RIGHT)
        for future in batches:
            assert is_add_sub(future.result(WAIT_SECS), LEFT_ROWS, RIGHT_ROWS)
    with FuturesModelClient(url, "picky", max_workers=workers) as client:
        future = client.infer_sample(np.array([-1, 1], np.int32))
        error = future.exception(WAIT_SECS)
        assert isinstance(error, PyTritonClientInferenceServerError), error
        assert "a number below zero" in str(error)


# ---- AsyncioModelClient


async def check_asyncio(url: str) -> None:
    async with AsyncioModelClient(url, "add_sub") as client:
        await client.wait_for_model(WAIT_SECS)
        assert (await client.model_config).max_batch_size == 64
        calls = [client.infer_sample(LEFT + number, RIGHT) for number in range(40)]
        for number, result in enumerate(await asyncio.gather(*calls)):
            assert is_add_sub(result, LEFT + number, RIGHT)
        assert is_add_sub(await client.infer_batch(LEFT_ROWS, RIGHT_ROWS), LEFT_ROWS, RIGHT_ROWS)
    async with AsyncioModelClient(url, "twice") as client:
        result = await client.infer_sample(np.ones(2, np.float32))
        assert result["OUTPUT"].tolist() == [2, 2]
        assert await fails_later(
            PyTritonClientModelDoesntSupportBatchingError,
            client.infer_batch(np.ones((1, 2), np.float32)),
        )
    async with AsyncioModelClient(url, "picky") as client:
        assert await fails_later(
            PyTritonClientInferenceServerError,
            client.infer_sample(np.array([-1, 1], np.int32)),
            "a number below zero",
        )
    async with AsyncioModelClient(url, "slow", inference_timeout_s=0.5) as client:
        assert await fails_later(
            PyTritonClientTimeoutError, client.infer_sample(np.zeros(1, np.int32))
        )


# ---- the decoupled clients, which pytriton has for gRPC only


def check_decoupled_models_need_their_client(url: str) -> None:
    with ModelClient(url, "words") as client:
        assert client.model_config.decoupled
        assert fails(
            PyTritonClientInferenceServerError,
            lambda: client.infer_sample(text("a b")),
            "Use DecoupledModelClient",
        )


def check_decoupled(url: str) -> None:
    if url.startswith("http"):
        assert fails(PyTritonClientValueError, lambda: DecoupledModelClient(url, "words"))
        return
    with DecoupledModelClient(url, "words") as client:
        for words in ("one two three", "", "four"):
            found = [each["WORD"][0].decode() for each in client.infer_sample(text(words))]
            assert found == words.split(), found
        responses = client.infer_sample(text("good bad"))
        assert next(responses)["WORD"].tolist() == [b"good"]
        assert fails(PyTritonClientInferenceServerError, lambda: next(responses), "a bad word")
    with DecoupledModelClient(url, "steps") as client:
        found = [each["STEP"].tolist() for each in client.infer_sample(np.array([3], np.int32))]
        assert found == [[0], [1], [2]], found
        rows = np.array([[2], [1]], np.int32)
        found = [each["STEP"].tolist() for each in client.infer_batch(rows)]
        assert found == [[[0], [0]], [[1], [1]]], found
    with DecoupledModelClient(url, "count_down") as client:
        name = client.model_config.outputs[0].name
        found = [each[name].tolist() for each in client.infer_sample(np.array([3]))]
        assert [np.ravel(each).tolist() for each in found] == [[3], [2], [1]], found
    with DecoupledModelClient(url, "add_sub") as client:
        assert fails(
            PyTritonClientInferenceServerError,
            lambda: client.infer_sample(LEFT, RIGHT),
            "Use ModelClient",
        )


async def check_decoupled_asyncio(url: str) -> None:
    if url.startswith("http"):
        return
    async with AsyncioDecoupledModelClient(url, "words") as client:
        found = [each["WORD"][0] async for each in client.infer_sample(text("one two three"))]
        assert found == [b"one", b"two", b"three"], found
    async with AsyncioDecoupledModelClient(url, "steps") as client:
        count = np.array([[2], [2]], np.int32)
        found = [each["STEP"].tolist() async for each in client.infer_batch(count)]
        assert found == [[[0], [0]], [[1], [1]]], found


def main(http: str, grpc: str) -> int:
    """Run every check over both protocols; the exit status."""
    warnings.simplefilter("ignore")  # that gRPC's client has no time-out for all calls
    failed = 0
    checks = [value for name, value in globals().items() if name.startswith("check_")]
    for url in (f"http://{http}", f"grpc://{grpc}"):
        for check in checks:
            name = f"{check.__name__.removeprefix('check_')} ({url.partition(':')[0]})"
            try:
                outcome = check(url)
                if inspect.isawaitable(outcome):
                    asyncio.run(outcome)
            except Exception:  # noqa: BLE001 - every check is run, and what failed is printed
                failed += 1
                print(f"FAIL pytriton: {name}\n{traceback.format_exc()}", flush=True)
            else:
                print(f"PASS pytriton: {name}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
