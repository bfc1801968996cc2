"""The captions example, from a checkpoint to words."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.testing.server import running_server

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "captions"


def run(*command):
    command = (sys.executable, *map(str, command))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(300)  # it loads PyTorch twice, in separate processes
def test_the_captions_example_runs(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    checkpoint, models = tmp_path / "checkpoint", tmp_path / "captioning"
    assert "shoal export blip" in run(FOLDER / "make_checkpoint.py", checkpoint)
    printed = run("-m", "shoal", "export", "blip", checkpoint, models / "captions")
    assert "encoder.onnx" in printed
    with running_server(models) as running:
        printed = run(FOLDER / "caption.py", running.http_address)
    assert re.search(r"cat\.jpg: \d+ tokens", printed), printed
