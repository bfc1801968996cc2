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
from upstream.example import Client, Example, OtherClone, Place

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
            lay_out(example, clones, place)
            for command in example.before:
                run_client(command, clones[example.clone], place)
            with _serving(example, place):
                for client in example.clients:
                    run_client(client, clones[example.clone], place)
    except (Unsuccessful, LookupError, OSError, subprocess.SubprocessError) as error:
        outcome, detail = FAILED, f"{error}\nthe server's log: {place.root / 'server.log'}"
    return Result(example.name, outcome, time.monotonic() - begun, example.remarks(), detail)


def why_left_out(example: Example, clones: Mapping[str, Clone]) -> str:
    """What the example needs and this machine lacks, or ""."""
    if example.left_out:
        return example.left_out
    others = (each.clone for each in example.files.values() if isinstance(each, OtherClone))
    for name in (example.clone, *others):
        if name not in clones:
            return f"needs a clone of {name}"
    missing = [need for need in dict.fromkeys(example.modules()) if not _is_installed(need)]
    return f"needs {', '.join(missing)}" if missing else ""


def _is_installed(need: str) -> bool:
    """Whether there is a module (PIL), a package at a version (theine<1) or a program (curl)."""
    requirement = Requirement(need)
    if not requirement.specifier and importlib.util.find_spec(requirement.name):
        return True
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return shutil.which(requirement.name) is not None
    return requirement.specifier.contains(version)


def lay_out(example: Example, clones: Mapping[str, Clone], place: Place) -> None:
    """Copy the files of the clones and make what stands in for the rest."""
    shutil.rmtree(place.root, ignore_errors=True)
    (place.root / "models").mkdir(parents=True)
    for destination, source in example.files.items():
        if isinstance(source, OtherClone):
            other = clones[source.clone].at(source.commit)
            other.copy(source.path, place.root / destination)
        else:
            clones[example.clone].copy(source, place.root / destination)
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


def run_client(client: Client, clone: Clone, place: Place) -> None:
    """Run a command of the example; raises Unsuccessful with what it printed."""
    line = clone.line(client.page, client.command) if client.page else client.command
    arguments = shlex.split(line)
    if arguments[0] == "time":  # a word of the shell
        del arguments[0]
    if arguments[0] in {"python", "python3"}:
        arguments[0] = sys.executable
    output = place.root / "client.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            arguments, cwd=place.root, env=_environment(place), stdout=log, stderr=log
        )
        try:
            status = _wait_for(process, client, output)
        finally:
            process.kill()
            process.wait()
    printed = output.read_text("utf-8", errors="replace")
    with (place.root / "clients.log").open("a", encoding="utf-8") as log:
        log.write(f"$ {line}\n{printed}\n")
    if status:
        raise Unsuccessful(f"{line!r} exited with {status}:\n{printed[-3000:]}")
    if absent := _absent(client, printed):
        raise Unsuccessful(f"{line!r} did not print {absent}, but:\n{printed[-3000:]}")


def _wait_for(process: subprocess.Popen[bytes], client: Client, output: Path) -> int:
    """The exit status; 0 for an endless client that has printed all that it should."""
    if not client.endless:
        return process.wait(CLIENT_SECS)
    end = time.monotonic() + CLIENT_SECS
    while _absent(client, output.read_text("utf-8", errors="replace")):
        if (status := process.poll()) is not None:
            return status
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return 0


def _absent(client: Client, printed: str) -> list[str]:
    return [pattern for pattern in client.prints if not re.search(pattern, printed)]


def _environment(place: Place) -> dict[str, str]:
    return {**os.environ, **place.environment}


def _tail(log: Path) -> str:
    return log.read_text("utf-8", errors="replace")[-3000:]
