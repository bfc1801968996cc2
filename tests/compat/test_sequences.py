"""Sequences through real clients: tritonclient over both protocols, its streams, perf_analyzer."""

from __future__ import annotations

import queue
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from shoal.backends.registry import BackendRegistry
from shoal.testing.server import running_server, wait_until
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.repositories import add_fake, add_onnx
from tests.support.sequences import running_total, total_config

LONG = "max_sequence_idle_microseconds: 60000000"
OLDEST = "oldest { max_candidate_sequences: 16 }"
TWO = "instance_group { count: 2 kind: KIND_CPU }"
MODELS = ("direct", "oldest")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, strategy in (("direct", LONG), ("oldest", f"{OLDEST} {LONG}")):
        add_onnx(folder, name, running_total(), total_config(strategy, more=TWO))
    add_onnx(
        folder, "text", running_total(corrid="BYTES"), total_config(LONG, corrid="BYTES", more=TWO)
    )
    add_fake(folder, "held", f"sequence_batching {{ {LONG} }}", max_batch_size=1)
    fake = FakeBackend()
    # The real backends and the fake one, side by side.
    registry = BackendRegistry(
        {"fake": lambda: fake, "onnxruntime": lambda: BackendRegistry().get("onnxruntime", file="")}
    )
    with running_server(folder, backends=registry) as running:
        yield SimpleNamespace(running=running, fake=fake)


@pytest.fixture(params=["http", "grpc"])
def protocol(request, world):
    """tritonclient's module for one protocol, and a client."""
    module = {"http": httpclient, "grpc": grpcclient}[request.param]
    address = getattr(world.running, f"{request.param}_address")
    with module.InferenceServerClient(address) as client:
        yield SimpleNamespace(module=module, client=client)


def one(module, value, name="INPUT"):
    tensor = module.InferInput(name, [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[value]], np.int32))
    return [tensor]


def told(result):
    names = ("OUTPUT", "GOT_START", "GOT_END", "GOT_READY", "GOT_CORRID")
    return tuple(result.as_numpy(name).item() for name in names)


@pytest.mark.parametrize("model", MODELS)
def test_a_sequence(protocol, model):
    assert protocol.client.is_model_ready(model)
    values = [3, 4, 5]
    answers = [
        told(
            protocol.client.infer(
                model,
                one(protocol.module, value),
                sequence_id=1234,
                sequence_start=value == values[0],
                sequence_end=value == values[-1],
            )
        )
        for value in values
    ]
    assert answers == [(3, 1, 0, 1, 1234), (7, 0, 0, 1, 1234), (12, 0, 1, 1, 1234)]


def test_a_sequence_named_by_a_string(protocol):
    answers = [
        told(
            protocol.client.infer(
                "text",
                one(protocol.module, 2),
                sequence_id="the first",
                sequence_start=place == 0,
                sequence_end=place == 2,
            )
        )
        for place in range(3)
    ]
    assert [answer[0] for answer in answers] == [2, 4, 6]
    assert {answer[-1] for answer in answers} == {b"the first"}


@pytest.mark.parametrize("model", MODELS)
def test_two_interleaved_sequences(protocol, model):
    for place in range(4):
        for number in (21, 22):
            result = protocol.client.infer(
                model,
                one(protocol.module, number),
                sequence_id=number,
                sequence_start=place == 0,
                sequence_end=place == 3,
            )
            assert result.as_numpy("OUTPUT").item() == number * (place + 1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "must specify a non-zero or non-empty correlation ID"),
        (
            {"sequence_id": 77},
            "inference request for sequence 77 to model 'direct' must specify the START flag on the first request of the sequence",
        ),
        ({"sequence_id": "x", "sequence_start": True}, "but model 'direct' expects 'UINT64'"),
    ],
)
def test_refused(protocol, options, sentence):
    with pytest.raises(InferenceServerException) as caught:
        protocol.client.infer("direct", one(protocol.module, 1), **options)
    assert sentence in caught.value.message()


def test_requests_in_flight_together(world):
    """Many sequences of tritonclient.http's own threads, each request waiting for its turn."""
    with httpclient.InferenceServerClient(world.running.http_address, concurrency=16) as client:
        for place in range(3):
            pending = [
                client.async_infer(
                    "oldest",
                    one(httpclient, number),
                    sequence_id=number,
                    sequence_start=place == 0,
                    sequence_end=place == 2,
                )
                for number in range(100, 116)
            ]
            for number, request in zip(range(100, 116), pending, strict=True):
                assert told(request.get_result())[0] == number * (place + 1)


# ---- gRPC streams


@pytest.fixture
def stream(world):
    answers: queue.Queue = queue.Queue()
    with grpcclient.InferenceServerClient(world.running.grpc_address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        yield SimpleNamespace(client=client, answers=answers)


def next_answer(stream):
    result, error = stream.answers.get(timeout=WAIT_SECS)
    if error is not None:
        raise error
    return result


@pytest.mark.parametrize("model", MODELS)
def test_a_whole_sequence_sent_ahead(stream, model):
    """Nobody waits for an answer before the next request is sent."""
    count = 50
    for place in range(count):
        stream.client.async_stream_infer(
            model,
            one(grpcclient, 1),
            request_id=str(place),
            sequence_id=5,
            sequence_start=place == 0,
            sequence_end=place == count - 1,
        )
    answers = [next_answer(stream) for _ in range(count)]
    assert [answer.get_response().id for answer in answers] == [str(n) for n in range(count)]
    assert [told(answer)[0] for answer in answers] == list(range(1, count + 1))


@pytest.mark.parametrize("model", MODELS)
def test_sequences_woven_into_one_stream(stream, model):
    numbers = range(31, 43)  # more than there are slots with the direct strategy
    for place in range(3):
        for number in numbers:
            stream.client.async_stream_infer(
                model,
                one(grpcclient, number),
                request_id=f"{number} {place}",
                sequence_id=number,
                sequence_start=place == 0,
                sequence_end=place == 2,
            )
    got = {}
    for _ in range(3 * len(numbers)):
        answer = next_answer(stream)
        got[answer.get_response().id] = told(answer)[0]
    expected = {f"{n} {place}": n * (place + 1) for n in numbers for place in range(3)}
    assert got == expected


def test_an_error_does_not_end_the_stream(stream):
    stream.client.async_stream_infer("direct", one(grpcclient, 1), sequence_id=6)
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        next_answer(stream)
    stream.client.async_stream_infer(
        "direct", one(grpcclient, 1), sequence_id=6, sequence_start=True, sequence_end=True
    )
    assert told(next_answer(stream))[0] == 1


def test_a_stream_that_is_cancelled_takes_its_sequence_along(world):
    running, fake = world.running, world.fake
    while fake.started.acquire(blocking=False):
        pass
    fake.gate.clear()
    try:
        with grpcclient.InferenceServerClient(running.grpc_address) as client:
            client.start_stream(lambda result, error: None)
            for place in range(3):
                client.async_stream_infer(
                    "held",
                    one(grpcclient, place, "INPUT0"),
                    sequence_id=8,
                    sequence_start=place == 0,
                )
            assert fake.started.acquire(timeout=WAIT_SECS)
            running.wait_for_pending("held", 2)
            client.stop_stream(cancel_requests=True)
            running.wait_for_pending("held", 0)
    finally:
        fake.gate.set()
    wait_until(lambda: running.model("held").in_flight() == 0, "the first one has run")
    with httpclient.InferenceServerClient(running.http_address) as client:
        with pytest.raises(InferenceServerException, match="must specify the START flag"):
            client.infer("held", one(httpclient, 1, "INPUT0"), sequence_id=8)
        # Its slot, the only one, is free.
        result = client.infer(
            "held",
            one(httpclient, 9, "INPUT0"),
            sequence_id=9,
            sequence_start=True,
            sequence_end=True,
        )
        assert result.as_numpy("OUTPUT0").item() == 9


# ---- perf_analyzer


# Only a stream keeps the order of requests that do not wait for one another.
RATE = ("--request-rate-range", "300", "--num-of-sequences", "6")
MODES = {
    "http": ("direct", ["-i", "http", "--sync", "--concurrency-range", "4"]),
    "grpc": ("oldest", ["-i", "grpc", "--sync", "--concurrency-range", "4"]),
    "stream": ("oldest", ["-i", "grpc", "--async", "--streaming", "--concurrency-range", "4"]),
    "stream at a rate": ("direct", ["-i", "grpc", "--async", "--streaming", *RATE]),
}


@pytest.mark.perf_analyzer
@pytest.mark.parametrize("mode", MODES)
def test_perf_analyzer(world, mode, perf_analyzer, tmp_path):
    running = world.running
    model, options = MODES[mode]
    address = running.http_address if mode == "http" else running.grpc_address
    table = tmp_path / "table.csv"
    before = running.statistics(model)["inference_count"]
    perf_analyzer("-m", model, "-u", address, *options, "--sequence-length", 5, "-f", table)
    names, numbers = (line.split(",") for line in table.read_text().splitlines()[:2])
    measured = dict(zip(names, numbers, strict=True))
    assert float(measured["Inferences/Second"]) > 0
    statistics = running.statistics(model)
    assert statistics["inference_count"] > before
    assert statistics["inference_stats"]["fail"]["count"] == 0


# ---- the example


def test_the_example_runs(root, tmp_path):
    folder = root / "examples" / "sequence"
    models = tmp_path / "models"
    subprocess.run(
        [sys.executable, folder / "make_model.py", models], check=True, timeout=WAIT_SECS
    )
    with running_server(models) as running:
        run = subprocess.run(
            [sys.executable, folder / "client.py", running.http_address, running.grpc_address],
            capture_output=True,
            text=True,
            timeout=WAIT_SECS,
            check=False,
        )
    assert run.returncode == 0, run.stderr
    assert "15" in run.stdout
