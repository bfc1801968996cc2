"""Run the whole suite as two pytest processes side by side: `python tools/run_tests.py`.

    people and formats   the console, pages, examples and tasks, then those of backends, which
                         load every runtime there is (PyTorch, JAX, …)
    the rest             they load none of them

Half a million objects of those runtimes make each garbage collection take 0.4 s, which in one
process would be paid for by all other tests. Both take about as long. With arguments it is one
plain pytest. Exits with 1 when anything failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEOPLE = ("tests/console", "tests/docs", "tests/examples", "tests/tasks", "tests/generation")
# Last, for what they load stays.
FORMATS = ("tests/unit/backends", "tests/unit/export", "tests/backends", "tests/gpu")


def main(arguments: list[str]) -> int:
    """Run pytest; the exit status."""
    pytest = [sys.executable, "-m", "pytest"]
    if arguments:
        return subprocess.run([*pytest, *arguments], cwd=ROOT, check=False).returncode
    with tempfile.TemporaryFile("w+") as said:  # a pipe that nobody reads would stop them
        others = subprocess.Popen(
            [*pytest, "-p", "no:cacheprovider", *PEOPLE, *FORMATS],
            cwd=ROOT,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        rest = [*pytest, *[f"--ignore={folder}" for folder in (*PEOPLE, *FORMATS)]]
        failed = subprocess.run(rest, cwd=ROOT, check=False).returncode != 0
        failed |= others.wait() != 0
        said.seek(0)
        print(said.read(), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
