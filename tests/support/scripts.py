"""Running the scripts of examples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run_script(script: Path, *words: object) -> str:
    """Run a script, which must succeed; returns its output."""
    command = (sys.executable, str(script), *map(str, words))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
