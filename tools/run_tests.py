"""Run the tests as several pytest processes: `python tools/run_tests.py [--quick]`.

    groups of folders, longest first  -->  PROCESSES pytest processes at a time  -->  their output
    a few failed tests                -->  once more, with nothing beside them

A group is a process of its own, so the folders that load PyTorch or JAX do not slow down the
others: half a million objects of these libraries make each garbage collection take 0.4 s. There are
two processes more than cores, because many tests wait for a server, a browser or a measurement.

A few failures among thousands of tests with real servers, browsers and clients may be caused by a
busy machine, so those tests run again alone. Tests that pass then are listed at the end as
unstable; a test that fails again fails the run (decisions/0016). More than a few failures, or a
process that did not end normally, fail it at once, and so does SHOAL_RETRY_FAILED=no.

--quick runs the unit tests only. Any other arguments are passed to a single pytest process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = (os.cpu_count() or 2) + 2
# The longest folder is divided: a process for it alone would end last.
PROCESS_TESTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "tests" / "server").glob("test_processes*.py")
)
# Longest first, after a group with the folders that these do not name: what starts last should be
# short, because the other processes wait for it.
GROUPS = (
    ("tests/server", *(f"--ignore={path}" for path in PROCESS_TESTS)),
    ("tests/backends", "tests/gpu", "tests/unit/backends", "tests/unit/export"),
    ("tests/console", "tests/perf", "tests/tune"),
    ("tests/tasks", "tests/generation"),
    PROCESS_TESTS,
    ("tests/docs",),
    ("tests/ray",),
    ("tests/compat", "tests/client"),
    ("tests/chaos", "tests/storage"),
    ("tests/examples",),
)
QUICK_GROUPS = (
    ("tests/unit/backends", "tests/unit/export"),
    ("tests/unit/config", "tests/unit/frontends", "tests/unit/wire"),
)
MAX_RETRIED = 3  # more failures than these are not caused by a busy machine
PASSED, FAILED = 0, 1  # pytest's exit status; any other is a crash or wrong use


def main(arguments: list[str]) -> int:
    """Run pytest; the exit status."""
    if arguments == ["--quick"]:
        groups = all_of("tests/unit", QUICK_GROUPS)
    elif arguments:
        return subprocess.run(_pytest(*arguments), cwd=ROOT, check=False).returncode
    else:
        groups = all_of("tests", GROUPS)
    with tempfile.TemporaryDirectory() as folder:
        caches = [Path(folder) / str(number) for number in range(len(groups))]
        with ThreadPoolExecutor(PROCESSES) as pool:
            statuses = set(pool.map(_run, groups, caches))
        if statuses == {PASSED}:
            return 0
        failed = [test for cache in caches for test in _failed(cache)]
    if statuses <= {PASSED, FAILED} and may_be_retried(failed, os.environ):
        return _retry(failed)
    return 1


def all_of(folder: str, groups: Sequence[Sequence[str]]) -> list[list[str]]:
    """The arguments of each group's pytest, and first of one for the rest of `folder`."""
    named = [each for group in groups for each in group if each[0] != "-"]
    ignored = [f"--ignore={each}" for each in named]
    return [[folder, *ignored], *(list(group) for group in groups)]


def _run(group: Sequence[str], cache: Path) -> int:
    """Run a group and print its output when it has ended; the exit status of pytest."""
    print(f"testing {' '.join(each for each in group if each[0] != '-')}", flush=True)
    command = _pytest("-o", f"cache_dir={cache}", *group)
    ended = subprocess.run(
        command, cwd=ROOT, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    sys.stdout.flush()
    sys.stdout.buffer.write(ended.stdout)
    sys.stdout.buffer.flush()
    return ended.returncode


def _pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *arguments]


def _failed(cache: Path) -> list[str]:
    """The tests that failed, as pytest recorded them for its option --last-failed."""
    recorded = cache / "v" / "cache" / "lastfailed"
    return list(json.loads(recorded.read_text())) if recorded.exists() else []


def may_be_retried(failed: list[str], environment: Mapping[str, str]) -> bool:
    """Whether these failures are run again."""
    allowed = environment.get("SHOAL_RETRY_FAILED", "yes") != "no"
    return allowed and 0 < len(failed) <= MAX_RETRIED


def _retry(failed: list[str]) -> int:
    print(f"running {len(failed)} failed tests again, alone", flush=True)
    again = subprocess.run(_pytest("-p", "no:cacheprovider", *failed), cwd=ROOT, check=False)
    if again.returncode != PASSED:
        return 1
    print("unstable: these failed beside other tests and passed alone, so they depend on timing")
    for test in failed:
        print(f"  fix {test}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
