"""KServe's own Python clients, over the Open Inference Protocol's REST and gRPC."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

from shoal.testing import WAIT_SECS
from shoal.testing.server import HttpCall, running_server, wait_until
from tests.support import onnx_models
from tests.support.repositories import add_onnx

DRIVER = Path(__file__).with_name("kserve_sdk.py")
NUMBERS = {
    "model": "plus",
    "id": "r1",
    "name": "OUTPUT0",
    "datatype": "FP32",
    "shape": [2, 1],
    "values": [6.0, 8.0],
}

pytestmark = pytest.mark.kserve


@pytest.fixture(scope="module")
def got(tmp_path_factory):
    """What the clients returned, in one process: importing them takes a second."""
    models = tmp_path_factory.mktemp("models")
    add_onnx(models, "plus", onnx_models.plus(1), "max_batch_size: 8")
    add_onnx(models, "echo", onnx_models.identity("BYTES", dims=(1,)), "max_batch_size: 8")
    add_onnx(models, "half", onnx_models.identity("FP16", dims=(2,)), "max_batch_size: 8")
    with running_server(models) as running:
        url = f"http://127.0.0.1:{running.server.http_port}"
        done = subprocess.run(
            ["kserve-python", DRIVER, "client", url, running.grpc_address],
            check=False,
            capture_output=True,
            text=True,
            timeout=WAIT_SECS * 4,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_health(got, protocol):
    found = got[protocol]
    assert (found["live"], found["ready"], found["model"]) == (True, True, True)


def test_a_model_that_is_not_there(got):
    assert got["rest"]["missing"] is False


@pytest.mark.parametrize(
    ("protocol", "form"),
    [("rest", "json"), ("rest", "binary"), ("grpc", "contents"), ("grpc", "raw")],
)
def test_numbers(got, protocol, form):
    # The client for REST does not read the version.
    assert got[protocol][form] == {**NUMBERS, "version": "1" if protocol == "grpc" else None}


@pytest.mark.parametrize(
    ("protocol", "form"), [("rest", "texts"), ("rest", "texts_binary"), ("grpc", "texts")]
)
def test_texts(got, protocol, form):
    found = got[protocol][form]
    assert (found["datatype"], found["shape"]) == ("BYTES", [2, 1])
    assert found["values"] == ["one", "zwölf"]


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_half_precision(got, protocol):
    found = got[protocol]["half"]
    assert (found["datatype"], found["values"]) == ("FP16", [0.5, 2.0])


def test_errors(got):
    kind, status, text = got["rest"]["error"]
    assert (kind, status) == ("HTTPStatusError", 400)
    assert "plus" in text
    kind, status, text = got["grpc"]["error"]
    assert (kind, status) == ("AioRpcError", "INVALID_ARGUMENT")
    assert "plus" in text


@pytest.fixture(scope="module")
def whole_package():
    """Skips where `kserve-python` has the clients only, as tools/kserve_client.py installs them."""
    needs = (
        "import sys; from importlib.util import find_spec; sys.exit(not find_spec('kubernetes'))"
    )
    if subprocess.run(["kserve-python", "-c", needs], check=False).returncode != 0:
        pytest.skip("needs the whole package: pip install kserve, and a kserve-python that has it")


@pytest.mark.usefixtures("whole_package")
@pytest.mark.parametrize("protocol", ["v2", "grpc-v2"])
def test_the_transformer_of_the_example(root, protocol):
    """Its preprocess and postprocess around Shoal, by KServe's own model server."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    digits = root / "demo" / "shoal_demo" / "models"
    pixels = np.zeros((2, 8, 8), int)
    pixels[:, 1:7, 3:5] = 255  # a stroke: a one
    body = {
        "id": "t",
        "inputs": [
            {"name": "PIXELS", "datatype": "UINT8", "shape": [2, 8, 8], "data": pixels.tolist()}
        ],
    }
    options = {"model_control_mode": "explicit", "load_model": ("digits",)}
    with running_server(digits, **options) as running:
        host = {"v2": f"127.0.0.1:{running.server.http_port}", "grpc-v2": running.grpc_address}
        words = [f"--predictor_host={host[protocol]}", f"--predictor_protocol={protocol}"]
        words += ["--model_name=digits", f"--http_port={port}", "--enable_grpc=false"]
        program = root / "deploy" / "kserve" / "transformer" / "transformer.py"
        process = subprocess.Popen(["kserve-python", program, *words], stderr=-3)
        try:
            wait_until(lambda: _listens(port), "the transformer listens")
            answer = HttpCall(
                port,
                "POST",
                "/v2/models/digits/infer",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            ).response()
        finally:
            process.kill()
            process.wait(WAIT_SECS)
    assert answer.status == 200, answer
    (output,) = answer.json["outputs"]
    assert (output["name"], output["data"]) == ("DIGIT", [1, 1])


def _listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
