"""Run the whole suite as two pytest processes side by side: `python tools/run_tests.py`.

    formats   tests/backends, tests/gpu   they load every runtime there is (PyTorch, JAX, …)
    the rest                              they load none of them

Half a million objects of those runtimes make each garbage collection take 0.4 s, which in one
process would be paid for by all other tests. With arguments it is one plain pytest. Exits with 1
when anything failed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORMATS = ("tests/backends", "tests/gpu")
NO_TESTS = 5  # pytest's exit status; the GPU tests alone may be all that is left


def main(arguments: list[str]) -> int:
    """Run pytest; the exit status."""
    pytest = [sys.executable, "-m", "pytest"]
    if arguments:
        return subprocess.run([*pytest, *arguments], cwd=ROOT, check=False).returncode
    formats = subprocess.Popen(
        [*pytest, "-p", "no:cacheprovider", *FORMATS],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    rest = [*pytest, *[f"--ignore={folder}" for folder in FORMATS]]
    failed = subprocess.run(rest, cwd=ROOT, check=False).returncode != 0
    print(formats.communicate()[0], flush=True)
    return int(failed or formats.returncode not in (0, NO_TESTS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
