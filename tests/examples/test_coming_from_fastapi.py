"""The same model behind FastAPI, as a Shoal function, and behind FastAPI with Shoal in the process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "coming_from_fastapi"
PICTURE = json.loads((FOLDER / "one.json").read_text(encoding="utf-8"))
FREE_PORTS = ("--http-address=127.0.0.1", "--http-port=0", "--grpc-port=0", "--metrics-port=0")
LISTENING = re.compile(r"(?:listening for http on |running on http://)(\S+?:\d+)")


@contextmanager
def running(*words, ready):
    """The address of a server, once it has printed `ready`."""
    command = (sys.executable, "-m", *words)
    with subprocess.Popen(command, cwd=FOLDER, stderr=subprocess.PIPE, text=True) as process:
        try:
            log = []
            for line in process.stderr:
                log.append(line)
                if ready in line:
                    break
            else:
                pytest.fail("".join(log))
            yield LISTENING.search("".join(log))[1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()


def fastapi(name):
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    return running("uvicorn", name, "--port=0", ready="running on")


def classify(address, body, path="classify"):
    answer = requests.post(f"http://{address}/{path}", json=body, timeout=60)
    return answer.status_code, answer.json()


@pytest.mark.parametrize("name", ["before:app", "in_front:app"])
def test_clients_of_fastapi_see_no_difference(name):
    with fastapi(name) as address:
        status, digit = classify(address, PICTURE)
        assert status == 200
        assert digit == {"label": "one", "probability": pytest.approx(0.99984, abs=1e-4)}
        status, refused = classify(address, {"image": [1.0, 2.0]})
        assert status == 400
        assert list(refused) == ["detail"]
        assert classify(address, {"image": "none"})[0] == 422


def test_the_function():
    path = "v2/models/classify/generate"
    with running("shoal", "serve", "app.py", *FREE_PORTS, ready="the server is ready") as address:
        status, digit = classify(address, PICTURE, path)
        assert status == 200
        assert digit["label"] == "one"
        status, refused = classify(address, {"image": [1.0, 2.0]}, path)
        assert status == 400
        assert list(refused) == ["error"]
        command = (sys.executable, str(FOLDER / "ask.py"), address)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "one 1.0\n(32, 1) one\n", done.stderr
