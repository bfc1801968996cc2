"""Triton's vLLM backend, its model.py and its sample client unmodified, with a stand-in for vLLM.

UPSTREAM_VLLM_BACKEND is a git clone of triton-inference-server/vllm_backend; without it these tests
are skipped. `tests/examples/test_python_based_backend.py` tests the same with a backend of ours.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from shoal.testing.server import running_server, wait_until
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import add_model, parameter

CLONE = os.environ.get("UPSTREAM_VLLM_BACKEND", "")
STAND_IN = Path(__file__).resolve().parents[1] / "support" / "vllm_stand_in"
WORDS = " word0 word1 word2"

pytestmark = pytest.mark.skipif(
    not CLONE, reason="UPSTREAM_VLLM_BACKEND is not set: a clone of Triton's vllm_backend"
)
pytest.importorskip("PIL", reason="the backend imports Pillow")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The clone's backend and samples, and models with other settings."""
    folder = tmp_path_factory.mktemp("vllm")
    archive = subprocess.run(
        ("git", "-C", CLONE, "archive", "HEAD", "src", "samples"), check=True, capture_output=True
    )
    subprocess.run(("tar", "x", "-C", folder), input=archive.stdout, check=True)
    (folder / "backends").mkdir()
    (folder / "src").rename(folder / "backends" / "vllm")
    models = folder / "samples" / "model_repository"
    thread = parameter("python_execution", "thread")
    metrics = parameter("REPORT_CUSTOM_METRICS", "true")
    for name, more in (("noted", metrics), ("on_thread", thread + metrics)):
        add_vllm(models, name, more, events=str(folder / name), pace_secs=0.001)
    add_vllm(models, "embedder", tasks=["embed"])
    add_vllm(models, "missing", engine="missing")
    add_vllm(models, "ill", parameter("ENABLE_VLLM_HEALTH_CHECK", "true"), healthy_checks=0)
    lora = add_vllm(models, "lora", enable_lora=True, events=str(folder / "lora"))
    (lora / "1" / "multi_lora.json").write_text('{"alpaca": "/weights/alpaca"}')
    return folder


def add_vllm(models, name, more="", *, engine="facebook/opt-125m", **arguments):
    files = {"1/model.json": json.dumps({"model": engine, **arguments}).encode()}
    group = "instance_group { count: 1 kind: KIND_MODEL }\n"
    return add_model(models, name, f'backend: "vllm"\n{group}{more}', files)


@pytest.fixture(scope="module")
def server(home):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(STAND_IN))  # for processes
        patch.syspath_prepend(STAND_IN)  # for the model on a thread
        with running_server(
            home / "samples" / "model_repository",
            model_control_mode="explicit",
            backend_directory=str(home / "backends"),
            load_model=("vllm_model", "noted", "on_thread"),
        ) as running:
            yield running
        for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
            del sys.modules[name]


def stream_of(body):
    lines = [line for line in body.decode().splitlines() if line]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


MODELS = pytest.mark.parametrize("model", ["vllm_model", "noted", "on_thread"])
NOTED = pytest.mark.parametrize("model", ["noted", "on_thread"])


def test_its_config_is_completed(server):
    config = server.config("vllm_model")
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert config["max_batch_size"] == 0
    assert config["instance_group"][0]["kind"] == "KIND_MODEL"
    assert (config["backend"], config["runtime"]) == ("vllm", "model.py")
    metadata = server.get("/v2/models/vllm_model").json
    assert metadata["platform"] == "vllm"
    assert "sampling_parameters" in [tensor["name"] for tensor in metadata["inputs"]]


@MODELS
def test_generate(server, model):
    """The request of the backend's README."""
    parameters = {"stream": False, "temperature": 0, "max_tokens": 3}
    body = {"text_input": "What is Triton?", "parameters": parameters}
    response = server.post(f"/v2/models/{model}/generate", body)
    assert response.status == 200, response
    assert response.json["text_output"] == "What is Triton?" + WORDS


@MODELS
def test_generate_stream(server, model):
    parameters = {"stream": True, "temperature": "0.5", "max_tokens": "3"}
    body = {"text_input": "What is Triton?", "parameters": parameters}
    response = server.post(f"/v2/models/{model}/generate_stream", body)
    assert [piece["text_output"] for piece in stream_of(response.body)] == [
        " word0",
        " word1",
        " word2",
    ]


def test_openai(server):
    body = {"model": "vllm_model", "prompt": "Hello", "max_tokens": 3}
    response = server.post("/v1/completions", body)
    assert response.status == 200, response
    document = response.json
    assert document["choices"][0]["text"] == WORDS
    assert document["choices"][0]["finish_reason"] == "length"
    assert document["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    response = server.post("/v1/completions", {**body, "stream": True})
    pieces = stream_of(response.body.removesuffix(b"data: [DONE]\n\n"))
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == WORDS


@pytest.mark.parametrize("options", [[], ["--streaming-mode", "--exclude-inputs-in-outputs"]])
def test_its_sample_client(server, home, tmp_path, options):
    results = tmp_path / "results.txt"
    where = ("--url", server.grpc_address, "--results-file", results)
    done = subprocess.run(
        (sys.executable, "client.py", *where, *options),
        cwd=home / "samples",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "PASS: vLLM example" in done.stdout, done.stdout + done.stderr
    prompts = (home / "samples" / "prompts.txt").read_text().splitlines()
    assert results.read_text().count(" word99") == len(prompts)
    assert (prompts[0] in results.read_text()) == (not options)


@NOTED
def test_additional_outputs_over_grpc(server, model):
    results = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        client.start_stream(lambda result, error: results.put((result, error)))
        client.async_stream_infer(
            model,
            inputs_of(
                "one two",
                {"max_tokens": 2, "logprobs": 1},
                return_finish_reason=True,
                return_cumulative_logprob=True,
                return_logprobs=True,
                return_num_input_tokens=True,
                return_num_output_tokens=True,
            ),
        )
        result, error = results.get(timeout=WAIT_SECS)
    assert error is None
    assert result.as_numpy("finish_reason").tolist() == [b"length"]
    assert result.as_numpy("cumulative_logprob").tolist() == [-1]
    assert json.loads(result.as_numpy("logprobs")[0])[0]["0"]["logprob"] == -0.5
    assert result.as_numpy("num_input_tokens").tolist() == 3
    assert result.as_numpy("num_output_tokens").tolist() == [2]


def inputs_of(prompt, sampling, **switches):
    texts = {"text_input": prompt, "sampling_parameters": json.dumps(sampling)}
    tensors = []
    for name, text in texts.items():
        tensors.append(grpcclient.InferInput(name, [1], "BYTES"))
        tensors[-1].set_data_from_numpy(np.array([text.encode()], np.object_))
    for name, value in switches.items():
        tensors.append(grpcclient.InferInput(name, [1], "BOOL"))
        tensors[-1].set_data_from_numpy(np.array([value]))
    return tensors


@NOTED
def test_a_cancelled_stream_is_aborted_in_the_engine(server, home, model):
    before = events(home, model).count("aborted")
    results = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        client.start_stream(lambda result, error: results.put((result, error)))
        client.async_stream_infer(model, inputs_of("endless", {}, stream=True))
        result, error = results.get(timeout=WAIT_SECS)
        assert error is None, error
        assert result.as_numpy("text_output").tolist() == [b" word0"]
        client.stop_stream(cancel_requests=True)
    wait_until(lambda: events(home, model).count("aborted") == before + 1)


@NOTED
def test_a_client_that_disconnects_ends_the_generation(server, home, model):
    before = events(home, model).count("aborted")
    body = {"text_input": "endless", "stream": False}
    started = events(home, model).count("generate")
    call = server.call("POST", f"/v2/models/{model}/generate", body)
    wait_until(lambda: events(home, model).count("generate") == started + 1)
    call.disconnect()
    wait_until(lambda: events(home, model).count("aborted") == before + 1)


def events(home, model):
    return (home / model).read_text()


@NOTED
def test_an_engine_that_fails(server, model):
    response = server.post(f"/v2/models/{model}/generate", {"text_input": "broken"})
    assert response.status == 500
    assert response.error == "Error generating stream: the engine failed"


@NOTED
def test_metrics_of_the_engine(server, model):
    response = server.post(f"/v2/models/{model}/generate", {"text_input": "a b", "max_tokens": 4})
    assert response.status == 200, response
    labels = f'{{model="{model}",version="1"}}'
    wait_until(lambda: f"vllm:generation_tokens_total{labels} " in server.metrics())
    text = server.metrics()
    assert "# TYPE vllm:time_to_first_token_seconds histogram" in text
    assert f"vllm:time_to_first_token_seconds_count{labels} " in text


def test_embeddings(server):
    assert server.load("embedder").status == 200
    request = json.dumps({"input": "some text", "pooling_params": {"dimensions": [3]}})
    tensor = {"name": "embedding_request", "shape": [1], "datatype": "BYTES", "data": [request]}
    text = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [""]}
    results = queue.Queue()
    inputs = []
    for each in (tensor, text):
        inputs.append(grpcclient.InferInput(each["name"], [1], "BYTES"))
        inputs[-1].set_data_from_numpy(np.array([each["data"][0].encode()], np.object_))
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        client.start_stream(lambda result, error: results.put((result, error)))
        client.async_stream_infer("embedder", inputs)
        result, error = results.get(timeout=WAIT_SECS)
        assert error is None, error
        assert json.loads(result.as_numpy("text_output")[0]) == [0.5, 0.5, 0.5]
        with pytest.raises(InferenceServerException, match="decoupled"):
            client.infer("embedder", inputs)
    response = server.post("/v2/models/embedder/generate", {"text_input": "x"})
    assert "does not support 'generate' request" in response.error


def test_adapters(server, home):
    assert server.load("lora").status == 200
    body = {"text_input": "Hello", "lora_name": "alpaca", "max_tokens": 1}
    assert server.post("/v2/models/lora/generate", body).json["text_output"] == "Hello word0"
    assert "generate Hello /weights/alpaca" in events(home, "lora")
    response = server.post("/v2/models/lora/generate", {**body, "lora_name": "unknown"})
    assert "LoRA unknown is not supported, we currently support ['alpaca']" in response.error
    response = server.post("/v2/models/noted/generate", body)
    assert "LoRA feature is not enabled." in response.error


def test_an_engine_that_does_not_start(server):
    response = server.load("missing")
    assert response.status == 400
    assert "there is no model called 'missing'" in response.error
    assert server.states("missing") == {"1": "UNAVAILABLE"}


def test_an_unhealthy_engine_unloads_its_model(server):
    assert server.load("ill").status == 200
    response = server.post("/v2/models/ill/generate", {"text_input": "Hello"})
    assert "Model is unavailable due to unhealthy vLLM engine" in response.error
    wait_until(lambda: server.states("ill") == {"1": "UNAVAILABLE"})


@NOTED
def test_the_engine_is_stopped_with_its_model(server, home, model):
    server.unload(model)
    wait_until(lambda: events(home, model).splitlines()[-1] == "stopped")
    assert server.load(model).status == 200
