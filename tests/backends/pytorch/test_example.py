"""The PyTorch example, from its models to its answers."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.testing.server import running_server

pytest.importorskip("torch")

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "pytorch"


def test_the_pytorch_example_runs(tmp_path, monkeypatch, capsys):
    models = tmp_path / "models"
    monkeypatch.setattr(sys, "argv", ["export_model.py", str(models)])
    # In this process, which has imported PyTorch already.
    runpy.run_path(str(FOLDER / "export_model.py"), run_name="__main__")
    assert "is ready" in capsys.readouterr().out
    with running_server(models) as running:
        command = (sys.executable, str(FOLDER / "classify.py"), running.http_address)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split(": ")[1].split()[0] for line in done.stdout.splitlines()] == [
        "setosa",
        "versicolor",
        "virginica",
    ]
