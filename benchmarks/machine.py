"""The context of a figure: the machine, its load, versions and commit."""

from __future__ import annotations

import datetime as dt
import platform
import subprocess
from pathlib import Path

import psutil

from benchmarks.peers.base import CORES
from benchmarks.places import ROOT


def describe() -> dict[str, str | int | float]:
    """This machine and this tree, now."""
    return {
        "when": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu_model(),
        "cores": CORES,
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": load_average(),
        "commit": _commit(),
    }


def load_average() -> float:
    """The load average of the last minute."""
    return round(psutil.getloadavg()[0], 2)


def tool_versions() -> dict[str, str]:
    """Versions of the load generators."""
    found = {}
    for name, option in (("wrk", "-v"), ("h2load", "--version")):
        try:
            done = subprocess.run([name, option], capture_output=True, text=True, check=False)
        except OSError:
            continue
        words = (done.stdout + done.stderr).split()
        found[name] = words[1] if len(words) > 1 else "unknown"
    found["perf_analyzer"] = "of tritonclient 2.50.0"
    return found


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def _commit() -> str:
    """The commit, with "-dirty" if files have changed other than earlier results."""
    git = ["git", "-C", str(ROOT)]
    try:
        commit = _output([*git, "describe", "--always"])
        changed = _output([*git, "status", "--porcelain", "-uno", ".", ":!benchmarks/results"])
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty" if changed else commit


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
