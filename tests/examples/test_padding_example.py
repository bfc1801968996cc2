"""The padding example, from its model to its answers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from shoal.testing.server import running_server

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "padding"


def run(script, *arguments):
    command = (sys.executable, str(FOLDER / script), *map(str, arguments))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_padding_example_runs(tmp_path):
    assert "is ready" in run("make_model.py", tmp_path / "models")
    with running_server(tmp_path / "models") as running:
        printed = run("texts.py", running.http_address)
    found = re.search(r"26 texts of 26 lengths took (\d+) executions", printed)
    assert found, printed
    assert int(found[1]) < 26
