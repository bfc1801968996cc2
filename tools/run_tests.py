"""Run the whole suite as two pytest processes side by side: `python tools/run_tests.py`.

    people and formats   the console, pages, examples, tasks and tools, then backends, which
                         load every runtime there is (PyTorch, JAX, …)
    the rest             they load none of them
    a second look        at the few that failed, alone

Half a million objects of those runtimes make each garbage collection take 0.4 s, which in one
process would be paid for by all other tests. Both take about as long.

A few failures among thousands of tests with real servers, browsers and clients may be the
machine's: those tests run once more with nothing beside them. What passes then is named at the end
as a test to mend; what fails again fails the run (decisions/0016). Many failures, or a process
that did not end in order, fail it at once. So does `SHOAL_SECOND_LOOK=no`.

With arguments it is one plain pytest. Exits with 1 when anything failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEOPLE = (
    *("tests/console", "tests/docs", "tests/examples", "tests/tasks", "tests/generation"),
    *("tests/perf", "tests/tune"),
)
# Last, for what they load stays.
FORMATS = ("tests/unit/backends", "tests/unit/export", "tests/backends", "tests/gpu")
MOST_LOOKED_AT_AGAIN = 3  # more than these are no accident
PASSED, FAILED = 0, 1  # pytest's exit status; others are crashes and wrong use


def main(arguments: list[str]) -> int:
    """Run pytest; the exit status."""
    if arguments:
        return subprocess.run(_pytest(*arguments), cwd=ROOT, check=False).returncode
    with tempfile.TemporaryDirectory() as folder:
        caches = [Path(folder) / "people", Path(folder) / "rest"]
        ended = _side_by_side(*caches)
        if ended == {PASSED}:
            return 0
        failed = [test for cache in caches for test in _failed(cache)]
    if ended <= {PASSED, FAILED} and may_be_accidents(failed, os.environ):
        return _second_look(failed)
    return 1


def _side_by_side(people: Path, rest: Path) -> set[int]:
    """Both halves of the suite, each with its own cache folder; how they ended."""
    with tempfile.TemporaryFile("w+") as said:  # a pipe that nobody reads would stop them
        others = subprocess.Popen(
            _pytest("-o", f"cache_dir={people}", *PEOPLE, *FORMATS),
            cwd=ROOT,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        ignored = [f"--ignore={folder}" for folder in (*PEOPLE, *FORMATS)]
        ended = subprocess.run(_pytest("-o", f"cache_dir={rest}", *ignored), cwd=ROOT, check=False)
        statuses = {ended.returncode, others.wait()}
        said.seek(0)
        print(said.read(), flush=True)
    return statuses


def _pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *arguments]


def _failed(cache: Path) -> list[str]:
    """The tests that failed, as pytest noted them down for its `--last-failed`."""
    noted = cache / "v" / "cache" / "lastfailed"
    return list(json.loads(noted.read_text())) if noted.exists() else []


def may_be_accidents(failed: list[str], environment: Mapping[str, str]) -> bool:
    """Whether these failures get a second look."""
    allowed = environment.get("SHOAL_SECOND_LOOK", "yes") != "no"
    return allowed and 0 < len(failed) <= MOST_LOOKED_AT_AGAIN


def _second_look(failed: list[str]) -> int:
    print(f"once more, alone: {len(failed)} that failed", flush=True)
    again = subprocess.run(_pytest("-p", "no:cacheprovider", *failed), cwd=ROOT, check=False)
    if again.returncode != PASSED:
        return 1
    print("failed beside other tests and passed alone, so something in them depends on speed:")
    for test in failed:
        print(f"  mend {test}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
