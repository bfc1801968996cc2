"""The ensemble example, from its models to its answers."""

from __future__ import annotations

from pathlib import Path

from shoal.testing.server import running_server
from tests.support.scripts import run_script

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "ensemble"


def test_the_ensemble_example_runs(tmp_path):
    assert "is ready" in run_script(FOLDER / "make_models.py", tmp_path / "models")
    with running_server(tmp_path / "models") as running:
        printed = run_script(FOLDER / "weather.py", running.http_address)
    assert "Lisbon:  21.0 °C, feels like  19.2 °C: pleasant" in printed
    assert "weather: 2 executions" in printed
    assert "comfort: 1 executions" in printed
