"""Run a load generator with a time limit; its output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.environments import Unavailable
from benchmarks.places import ROOT, WORK

_NO_QUESTIONS = {"DEBIAN_FRONTEND": "noninteractive"}


class LoadFailed(Exception):
    """The load generator failed or did not end; the text says which."""


class NeverEnded(LoadFailed):
    """It did not end. perf_analyzer with many threads sometimes does not, with any server."""


def find(name: str, package: str) -> str:
    """The program on the PATH; installed from Debian's package if the user is root.

    Raises Unavailable with the package's name.
    """
    found = shutil.which(name)
    apt = shutil.which("apt-get")
    if found is None and apt is not None and os.geteuid() == 0:
        print(f"installing {package}", flush=True)
        for line in ([apt, "update"], [apt, "install", "-y", "--no-install-recommends", package]):
            subprocess.run(
                line, capture_output=True, check=False, env={**os.environ, **_NO_QUESTIONS}
            )
        found = shutil.which(name)
    if found is None:
        raise Unavailable(f"{name} is not installed (Debian: apt-get install {package})")
    return found


def compiled(source: Path, folder: Path) -> str:
    """The program of one C file, compiled into `folder` if it is missing or older than its source.

    Raises Unavailable without a C compiler, or if it fails.
    """
    made = folder / source.stem
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        compiler = find("cc", "gcc")
        folder.mkdir(parents=True, exist_ok=True)
        line = [compiler, "-O2", "-Wall", "-Werror", "-o", str(made), str(source), "-lm"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(f"{source.stem} cannot be compiled: {done.stderr.strip()[-300:]}")
    return str(made)


def perf_analyzer() -> str:
    """NVIDIA's perf_analyzer; downloaded from PyPI if it is missing."""
    script = ROOT / ".tools" / "bin" / "perf_analyzer"
    if not script.exists():
        # It wants a library of Debian's, which this script installs where it may.
        subprocess.run([ROOT / "tools" / "test_programs.sh"], capture_output=True, check=False)
        tool = [sys.executable, str(ROOT / "tools" / "perf_analyzer.py")]
        done = subprocess.run(tool, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(done.stderr.strip())
    return str(script)


def run(line: list[str], within_secs: float, variables: dict[str, str] | None = None) -> str:
    """The output of the program. Raises LoadFailed if it fails, NeverEnded if it takes longer."""
    try:
        done = subprocess.run(
            line,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=within_secs,
            env={**os.environ, **(variables or {})},
        )
    except subprocess.TimeoutExpired:
        raise NeverEnded(f"{Path(line[0]).name} did not end within {within_secs:.0f} s") from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise LoadFailed(f"{Path(line[0]).name}: {' '.join(words)[-300:]}")
    return done.stdout + done.stderr


def body_file(body: bytes, place: int = 0) -> Path:
    """Write the body of a request to a file for the load generator."""
    WORK.mkdir(parents=True, exist_ok=True)
    path = WORK / f"body-{place}.bin"
    path.write_bytes(body)
    return path


def result(name: str, text: str) -> dict[str, int]:
    """The numbers of the line `RESULT key=number …` that a program printed; LoadFailed without."""
    line = re.search(r"^RESULT (.*)$", text, re.MULTILINE)
    if line is None:
        raise LoadFailed(f"{name} printed no result: {text[-300:]}")
    return {key: int(value) for key, value in re.findall(r"(\w+)=(-?\d+)", line.group(1))}
