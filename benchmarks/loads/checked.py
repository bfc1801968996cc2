"""checked: many connections that send different requests, of which every answer is checked.

A program of our own, in C (`checked.c`): wrk's scripts can check an answer, but then they are
slower than the servers that they measure.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.environments import Unavailable
from benchmarks.loads import program
from benchmarks.measures import Load
from benchmarks.places import HOME

NAME = "checked"
FAILURES = ("status", "wrong", "reset")
_SOURCE = Path(__file__).with_suffix(".c")
_THREADS = 4
_GIVE_UP_SECS = 60.0


def build(folder: Path = HOME) -> str:
    """The program, compiled if it is missing or older than its source.

    Raises Unavailable without a C compiler, or if it fails.
    """
    made = folder / NAME
    if not made.exists() or made.stat().st_mtime < _SOURCE.stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        compiler = program.find("cc", "gcc")
        line = [compiler, "-O2", "-Wall", "-Werror", "-o", str(made), str(_SOURCE), "-lm"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(f"{NAME} cannot be compiled: {done.stderr.strip()[-300:]}")
    return str(made)


def run(
    port: int,
    connections: int,
    seconds: float,
    asked: Sequence[tuple[Path, str]],
    requests: int = 0,
) -> tuple[Load, str]:
    """Send the requests in these files, whose answers must contain the texts, for some seconds, or
    so many of them. The second value is what it says about wrong answers.

    Raises LoadFailed, or Unavailable without a C compiler.
    """
    threads = min(_THREADS, connections)
    line = [build(), str(port), str(threads), str(connections), f"{seconds:g}", str(requests)]
    for file, text in asked:
        line += [str(file), text]
    output = program.run(line, seconds + _GIVE_UP_SECS)
    return parse(output), output.partition("RESULT")[2].partition("\n")[2].strip()


def parse(text: str) -> Load:
    """The figures of the line that it prints."""
    values = program.result(NAME, text)
    seconds = values["nanos"] / 1e9
    load = Load(
        values["requests"],
        seconds,
        values["requests"] / seconds if seconds > 0 else 0.0,
        values["p50"] / 1e3,
        values["p99"] / 1e3,
        max_us=values["max"] / 1e3,
    )
    for kind in FAILURES:
        load.note(kind, values[kind])
    return load
