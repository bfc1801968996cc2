"""Other programs over HTTPS: tritonclient and curl, with and without certificates of their own."""

from __future__ import annotations

import shutil
import ssl
import subprocess

import numpy as np
import pytest
import tritonclient.http as httpclient

from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import add_onnx


@pytest.fixture(scope="module", params=[False, True], ids=["server-only", "mutual"])
def running(tmp_path_factory, certificates, request):
    folder = tmp_path_factory.mktemp("models")
    add_onnx(folder, "echo", onnx_models.identity("FP32", [-1]))
    with running_server(
        folder,
        https_cert=str(certificates / "own.pem"),
        https_key=str(certificates / "own.key"),
        https_client_ca=str(certificates / "root.pem") if request.param else "",
    ) as server:
        yield server


def test_tritonclient(running, certificates):
    def context():
        made = ssl.create_default_context(cafile=str(certificates / "root.pem"))
        made.load_cert_chain(certificates / "own.pem", certificates / "own.key")
        return made

    values = np.arange(300_000, dtype=np.float32).reshape(1, -1)
    tensor = httpclient.InferInput("INPUT0", values.shape, "FP32")
    tensor.set_data_from_numpy(values)
    with httpclient.InferenceServerClient(
        running.http_address, ssl=True, ssl_context_factory=context
    ) as client:
        for _ in range(2):
            found = client.infer("echo", [tensor]).as_numpy("OUTPUT0")
            assert (found == values).all()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(running, certificates):
    files = ["--cacert", "root.pem", "--cert", "own.pem", "--key", "own.key"]
    words = ["curl", "-sS", "-o", "-", "-w", "%{http_code}", *files]
    for port, path in (
        (running.server.http_port, "v2/health/ready"),
        (running.server.metrics_port, ""),
    ):
        done = subprocess.run(
            [*words, f"https://localhost:{port}/{path}"],
            cwd=certificates,
            capture_output=True,
            check=True,
            timeout=WAIT_SECS,
        )
        assert done.stdout == b"200"
