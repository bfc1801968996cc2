"""Clients that know nothing of inference: `requests` and curl."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest
import requests

from tests.support.fakes import WAIT_SECS

BODY = {
    "id": "1",
    "inputs": [
        {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": list(range(16))},
        {"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "data": [[1] * 16]},
    ],
}


@pytest.fixture
def url(web):
    return f"http://{web.address}"


# ---- requests


def test_requests_with_json(url):
    with requests.Session() as session:
        for _ in range(3):
            answer = session.post(f"{url}/v2/models/sum/infer", json=BODY, timeout=WAIT_SECS)
            assert answer.status_code == 200
            assert answer.json()["outputs"][0]["data"] == list(range(1, 17))
        assert session.get(f"{url}/v2/health/ready", timeout=WAIT_SECS).content == b""
        refused = session.post(f"{url}/v2/models/nope/infer", json=BODY, timeout=WAIT_SECS)
        assert refused.status_code == 404
        assert refused.json()["error"] == "Request for unknown model: 'nope' is not found"


def test_requests_with_large_responses(url):
    """It asks for gzip by itself and unpacks by itself."""
    array = np.arange(50_000, dtype=np.float32) % 7
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": "INPUT0",
                    "datatype": "FP32",
                    "shape": [1, array.size],
                    "parameters": {"binary_data_size": array.nbytes},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    length = "Inference-Header-Content-Length"
    answer = requests.post(
        f"{url}/v2/models/wide/infer",
        data=header + array.tobytes(),
        headers={length: str(len(header))},
        timeout=WAIT_SECS,
    )
    assert answer.headers["Content-Encoding"] == "gzip"
    got = np.frombuffer(answer.content[int(answer.headers[length]) :], np.float32)
    np.testing.assert_array_equal(got, array)


def test_requests_with_a_stream_of_chunks(url):
    text = json.dumps(BODY).encode()
    pieces = (text[i : i + 10] for i in range(0, len(text), 10))
    answer = requests.post(f"{url}/v2/models/sum/infer", data=pieces, timeout=WAIT_SECS)
    assert answer.json()["outputs"][0]["data"][0] == 1


# ---- curl


def curl(*words, data=None):
    done = subprocess.run(
        ["curl", "-sS", "--max-time", str(WAIT_SECS), *words],
        input=data,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.curl
def test_curl_reads(url):
    assert b"200 OK" in curl("-i", f"{url}/v2/health/live")
    assert b"200 OK" in curl("-I", f"{url}/v2")
    assert json.loads(curl(f"{url}/v2/models/sum"))["name"] == "sum"
    assert json.loads(curl(f"{url}/v2/models/nope"))["error"]
    rows = json.loads(curl("-X", "POST", f"{url}/v2/repository/index"))
    assert {"name": "sum", "version": "3", "state": "READY"} in rows


@pytest.mark.curl
def test_curl_infers(url):
    place = f"{url}/v2/models/sum/infer"
    answer = json.loads(curl(place, "-d", json.dumps(BODY)))  # as a form, which nobody minds
    assert answer["outputs"][0]["data"] == list(range(1, 17))
    packed = curl("--compressed", "-d", json.dumps(BODY), place)
    assert json.loads(packed) == answer


@pytest.mark.curl
def test_curl_uploads_a_raw_tensor(url):
    """More than a megabyte, so curl asks for `100 Continue` first."""
    array = np.arange(500_000, dtype=np.float32)
    received = curl(
        *(
            "-H",
            "Inference-Header-Content-Length: 0",
            "-H",
            "Content-Type: application/octet-stream",
        ),
        *("-H", "Expect: 100-continue", "--data-binary", "@-", f"{url}/v2/models/wide/infer"),
        data=array.tobytes(),
    )
    assert received.endswith(array.tobytes())


@pytest.mark.curl
def test_curl_reuses_its_connection(url):
    written = curl(
        *("-o", "/dev/null", "-o", "/dev/null", "-o", "/dev/null", "-w", "%{num_connects}\n"),
        *(f"{url}/v2", f"{url}/v2/models/sum", f"{url}/v2/health/ready"),
    )
    assert written.split() == [b"1", b"0", b"0"]


@pytest.mark.curl
def test_curl_with_http_1_0(url):
    answer = curl("--http1.0", "-d", json.dumps(BODY), f"{url}/v2/models/sum/infer")
    assert json.loads(answer)["outputs"][0]["data"][0] == 1
