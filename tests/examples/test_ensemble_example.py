"""The ensemble example, from its models to its answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from shoal.testing.server import running_server

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "ensemble"


def run(script, *arguments):
    command = (sys.executable, str(FOLDER / script), *map(str, arguments))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_ensemble_example_runs(tmp_path):
    assert "is ready" in run("make_models.py", tmp_path / "models")
    with running_server(tmp_path / "models") as running:
        printed = run("weather.py", running.http_address)
    assert "Lisbon:  21.0 °C, feels like  19.2 °C: pleasant" in printed
    assert "weather: 2 executions" in printed
    assert "comfort: 1 executions" in printed
