"""The example of a Python-based backend, served: streams, cancellation, metrics, OpenAI's API."""

from __future__ import annotations

import json
import queue
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from shoal.testing.server import running_server, wait_until
from tests.support.fakes import WAIT_SECS

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "python_based_backend"
ENDLESS = 10**9


@pytest.fixture(scope="module")
def server():
    directory = str(FOLDER / "backends")
    with running_server(FOLDER / "model_repository", backend_directory=directory) as running:
        yield running


def words_of(body):
    lines = [line for line in body.decode().splitlines() if line]
    return [json.loads(line.removeprefix("data: "))["text_output"] for line in lines]


def test_each_model_has_its_own_text(server):
    for model, prompt, text in (
        ("tides", "The moon", " pulls the tide comes in and"),
        ("seasons", "winter", " comes spring, after winter"),
    ):
        response = server.post(f"/v2/models/{model}/generate", {"text_input": prompt})
        assert response.status == 200, response
        assert response.json["text_output"] == text
    assert server.config("tides")["model_transaction_policy"] == {"decoupled": True}
    assert server.get("/v2/models/tides").json["platform"] == "bigrams"


def test_words_are_streamed(server):
    body = {"text_input": "the sea", "stream": True, "parameters": {"max_tokens": 3}}
    response = server.post("/v2/models/tides/generate_stream", body)
    assert words_of(response.body) == [" pulls", " the", " tide"]


def test_an_unknown_word(server):
    response = server.post("/v2/models/tides/generate", {"text_input": "the sky"})
    assert response.status == 500
    assert response.error == "the text does not have the word 'sky'"


def test_openai(server):
    body = {"model": "seasons", "prompt": "after spring", "max_tokens": 2}
    response = server.post("/v1/completions", body)
    assert response.json["choices"][0]["text"] == " comes spring,"


def test_a_cancelled_stream_ends_in_the_engine(server, caplog):
    results = queue.Queue()
    text = grpcclient.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"the sea"], np.object_))
    stream = grpcclient.InferInput("stream", [1], "BOOL")
    stream.set_data_from_numpy(np.array([True]))
    with caplog.at_level("INFO"), grpcclient.InferenceServerClient(server.grpc_address) as client:
        client.start_stream(lambda result, error: results.put((result, error)))
        client.async_stream_infer("tides", [text, stream], parameters={"max_tokens": ENDLESS})
        result, error = results.get(timeout=WAIT_SECS)
        assert error is None, error
        assert result.as_numpy("text_output").tolist() == [b" pulls"]
        client.stop_stream(cancel_requests=True)
        wait_until(lambda: "the request was cancelled" in caplog.text)


def test_a_client_that_disconnects_ends_the_generation(server, caplog):
    with caplog.at_level("INFO"):
        before = caplog.text.count("the request was cancelled")
        body = {"text_input": "the sea", "max_tokens": ENDLESS}
        counted = words(server)
        call = server.call("POST", "/v2/models/tides/generate", body)
        wait_until(lambda: words(server) > counted)  # it is being generated
        call.disconnect()
        wait_until(lambda: caplog.text.count("the request was cancelled") == before + 1)


def words(server):
    line = 'bigrams_words_total{model="tides",version="1"} '
    found = [row for row in server.metrics().splitlines() if row.startswith(line)]
    return float(found[0].removeprefix(line)) if found else 0
