"""The examples of `shoal.client`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "client"
EXPECTED = {
    "classify.py": "one 0.",
    "many_at_once.py": "100 responses, all correct",
    "shared_memory.py": "first and last pixel: 1.0 0.0",
    "stream.py": "from 1 lift-off",
}
OWN_SERVER = ("shared_memory.py", "stream.py")


def test_all_are_here():
    assert {path.name for path in FOLDER.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_it_runs(demo, name):
    words = () if name in OWN_SERVER else (demo.address,)
    command = (sys.executable, str(FOLDER / name), *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert EXPECTED[name] in done.stdout
