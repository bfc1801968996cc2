"""Lays one example out, serves it, runs its clients and says how it went."""

from __future__ import annotations

import contextlib
import http.client
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from upstream.clone import Clone
from upstream.example import Client, Example, Place

PORTS = (8000, 8001, 8002)  # the clients have them written in
START_SECS = 300
CLIENT_SECS = 300

PASSED, FAILED, LEFT_OUT = "passed", "failed", "left out"


class Unsuccessful(Exception):
    """The server did not start, or a client did not print what it should."""


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table."""

    name: str
    outcome: str  # PASSED, FAILED or LEFT_OUT
    seconds: float
    remark: str
    detail: str = ""  # for the terminal: what the failed program printed


def run(example: Example, clones: Mapping[str, Clone], work: Path) -> Result:
    """Run one example in a folder of its own under `work`."""
    if reason := why_left_out(example, clones):
        return Result(example.name, LEFT_OUT, 0, reason)
    begun = time.monotonic()
    place = Place(work / example.name.replace("/", "-"))
    outcome, detail = PASSED, ""
    try:
        with place.closing:
            lay_out(example, clones[example.clone], place)
            for command in example.before:
                _run_client(command, clones[example.clone], place)
            with _serving(example, place):
                for client in example.clients:
                    _run_client(client, clones[example.clone], place)
    except (Unsuccessful, LookupError, OSError, subprocess.SubprocessError) as error:
        outcome, detail = FAILED, f"{error}\nthe server's log: {place.root / 'server.log'}"
    return Result(example.name, outcome, time.monotonic() - begun, example.remarks(), detail)


def why_left_out(example: Example, clones: Mapping[str, Clone]) -> str:
    """What the example needs and this machine lacks, or ""."""
    if example.left_out:
        return example.left_out
    if example.clone not in clones:
        return f"needs a clone of {example.clone}"
    missing = [need for need in dict.fromkeys(example.modules()) if not _is_installed(need)]
    return f"needs {', '.join(missing)}" if missing else ""


def _is_installed(need: str) -> bool:
    """Whether a module can be imported (PIL), at a version of its package (transformers<5)."""
    requirement = Requirement(need)
    if importlib.util.find_spec(requirement.name) is None:
        return False
    if not requirement.specifier:
        return True
    return requirement.specifier.contains(importlib.metadata.version(requirement.name))


def lay_out(example: Example, clone: Clone, place: Place) -> None:
    """Copy the files of the clone and make what stands in for the rest."""
    shutil.rmtree(place.root, ignore_errors=True)
    (place.root / "models").mkdir(parents=True)
    for destination, source in example.files.items():
        clone.copy(source, place.root / destination)
    for stand_in in example.stand_ins:
        stand_in.make(place)


@contextlib.contextmanager
def _serving(example: Example, place: Place) -> Iterator[None]:
    command = [sys.executable, "-m", "shoal", "serve", "--model-repository=models"]
    # Without a GPU, instance groups of KIND_GPU run on the CPU; their files stay as they are.
    command += ["--gpu-fallback=cpu", *example.serve]
    with (place.root / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=place.root, env=_environment(place), stdout=log, stderr=log
        )
        try:
            _wait_until_ready(server, place.root / "server.log")
            yield
        finally:
            server.terminate()
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()


def _wait_until_ready(server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECS
    while time.monotonic() < end:
        if server.poll() is not None:
            raise Unsuccessful(f"the server exited with {server.returncode}:\n{_tail(log)}")
        if _is_ready():
            return
        time.sleep(0.1)
    raise Unsuccessful(f"the server was not ready after {START_SECS} s:\n{_tail(log)}")


def _is_ready() -> bool:
    connection = http.client.HTTPConnection("localhost", PORTS[0], timeout=5)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False


def _run_client(client: Client, clone: Clone, place: Place) -> None:
    line = clone.line(client.page, client.command) if client.page else client.command
    arguments = shlex.split(line)
    if arguments[0] in {"python", "python3"}:
        arguments[0] = sys.executable
    finished = subprocess.run(
        arguments,
        cwd=place.root,
        env=_environment(place),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=CLIENT_SECS,
        check=False,
    )
    printed = finished.stdout.decode(errors="replace")
    with (place.root / "clients.log").open("a", encoding="utf-8") as log:
        log.write(f"$ {line}\n{printed}\n")
    absent = [pattern for pattern in client.prints if not re.search(pattern, printed)]
    if finished.returncode:
        raise Unsuccessful(f"{line!r} exited with {finished.returncode}:\n{printed[-3000:]}")
    if absent:
        raise Unsuccessful(f"{line!r} did not print {absent}, but:\n{printed[-3000:]}")


def _environment(place: Place) -> dict[str, str]:
    return {**os.environ, **place.environment}


def _tail(log: Path) -> str:
    return log.read_text("utf-8", errors="replace")[-3000:]
