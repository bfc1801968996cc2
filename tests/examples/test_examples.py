from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples"


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_python_example_runs(demo, path):
    done = run(sys.executable, str(path), demo.address)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.curl
def test_curl_example_runs(demo):
    done = run("sh", str(FOLDER / "curl.sh"), demo.address)
    assert done.returncode == 0, done.stderr
    assert "A SHOAL OF FISH" in done.stdout
    assert ":1:one" in done.stdout


@pytest.mark.curl
def test_explain_example_runs(demo):
    done = run("sh", str(FOLDER / "explain.sh"), demo.address)
    assert done.returncode == 0, done.stderr
    assert "upper, version 1" in done.stdout
    assert '"cut_because":' in done.stdout
    assert "digits, version" in done.stdout


@pytest.mark.curl
def test_photos_example_runs(demo):
    done = run("sh", str(FOLDER / "photos.sh"), demo.address)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" cat") >= 6
    assert "again.jpg" in done.stdout


def test_an_example_that_finds_no_server_fails(demo):
    done = run(sys.executable, str(FOLDER / "infer_with_requests.py"), "127.0.0.1:1")
    assert done.returncode != 0


@pytest.mark.curl
def test_what_the_demo_prints_can_be_pasted(demo):
    done = run("sh", "-e", "-c", _without_words(demo.banner))
    assert done.returncode == 0, done.stderr
    assert '"error"' not in done.stdout
    assert "200 OK" in done.stdout
    assert "A SHOAL OF FISH" in done.stdout
    assert ":0:zero" in done.stdout
    assert "nv_inference_request_success" in done.stdout


def _without_words(banner):
    """The banner from its first comment to its last command, ready to paste."""
    assert banner.rstrip().endswith("stops the server.")
    return banner[banner.index("#") : banner.rindex("Ctrl-C")]
