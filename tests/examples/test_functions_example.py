from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "functions"
FREE_PORTS = ("--http-address=127.0.0.1", "--http-port=0", "--grpc-port=0", "--metrics-port=0")


@pytest.fixture
def address():
    """`shoal serve app.py`, in the folder of the example."""
    command = (sys.executable, "-m", "shoal", "serve", "app.py", *FREE_PORTS)
    with subprocess.Popen(command, cwd=FOLDER, stderr=subprocess.PIPE, text=True) as process:
        try:
            port, log = "", []
            for line in process.stderr:
                log.append(line)
                found = re.search(r"listening for http on \S+:(\d+)", line)
                port = found[1] if found else port
                if "the server is ready" in line:
                    break
            else:
                pytest.fail("".join(log))
            yield f"127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
            status = process.wait()
    assert status == 0


def run(*words, cwd=None):
    done = subprocess.run(
        (sys.executable, *map(str, words)), cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_served_file(address):
    shown = run(FOLDER / "client.py", address)
    assert '"output":"Hello, Ada!"' in shown
    assert '"output":"Good morning, Ada!"' in shown
    assert '"output":[1.0,-0.75]' in shown
    assert shown.count("data: ") == 4
    assert "lift-off" in shown
    assert "brightest pixels: [0, 255]" in shown


def test_the_server_inside_a_script():
    shown = run(FOLDER / "in_process.py")
    assert "[b'Hello, Ada!']" in shown
    assert "lift-off" in shown


def test_the_file_has_no_mistakes():
    shown = run("-m", "shoal", "check", "app.py", "--load", cwd=FOLDER)
    assert "5 models checked, no problems" in shown
