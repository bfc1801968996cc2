"""The PyTorch example, from its models to its answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shoal.testing.server import running_server

pytest.importorskip("torch")

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "pytorch"


def run(script, *arguments):
    command = (sys.executable, str(FOLDER / script), *map(str, arguments))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_pytorch_example_runs(tmp_path):
    assert "is ready" in run("export_model.py", tmp_path / "models")
    with running_server(tmp_path / "models") as running:
        printed = run("classify.py", running.http_address)
    assert [line.split(": ")[1].split()[0] for line in printed.splitlines()] == [
        "setosa",
        "versicolor",
        "virginica",
    ]
