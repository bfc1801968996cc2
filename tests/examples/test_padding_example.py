"""The padding example, from its model to its answers."""

from __future__ import annotations

import re
from pathlib import Path

from shoal.testing.server import running_server
from tests.support.scripts import run_script

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "padding"


def test_the_padding_example_runs(tmp_path):
    assert "is ready" in run_script(FOLDER / "make_model.py", tmp_path / "models")
    with running_server(tmp_path / "models") as running:
        printed = run_script(FOLDER / "texts.py", running.http_address)
    found = re.search(r"26 texts of 26 lengths took (\d+) executions", printed)
    assert found, printed
    assert int(found[1]) < 26
