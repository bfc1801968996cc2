"""The example of `shoal ask`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ask.sh"


def test_it_runs(demo):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ("sh", str(EXAMPLE), demo.address),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert "answer    Ada Thornwell" in done.stdout
    assert "\n1874\nForty-six\n" in done.stdout
    assert '"answer": "Unknown"' in done.stdout
