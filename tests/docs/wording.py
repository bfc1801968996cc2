"""Rewrites the commands of a page: real addresses, and short measurements."""

from __future__ import annotations

import re
from dataclasses import dataclass

from servers import PORTS, Background

TCP = PORTS["tcp"]

# On a busy machine windows differ, and some are empty; allow many of them.
_QUICK_PERF = "-p 150 -s 99999 -r 100"
_LIMIT = re.compile(r"(--latency-limit[= ])\S+")
_PATIENT_LIMIT = "60s"  # which any machine meets
_EXAMPLE = re.compile(r"^python3? \S*\.py$")


@dataclass(frozen=True)
class Program:
    """How a program gets the server's address, and how its measurements are shortened."""

    flag: str = ""  # followed by the address; empty if it needs none
    unless: str = ""  # a pattern: the page sets the address itself
    quick: str = ""


PROGRAMS = {
    "shoal perf": Program("-u", r" (-u|--url)\b", _QUICK_PERF),
    "perf_analyzer": Program("-u", r" (-u|--url)\b", _QUICK_PERF),
    "shoal image": Program("-u", r" (-u|--url)\b"),
    "shoal ask": Program("--http", r" --(http|port)\b"),
    "shoal tune": Program(quick="--window 5ms --max-batch 2 --max-instances 1 --concurrency 2"),
    "shoal stress": Program(quick="--clients 1 --requests 2 --warmup 1"),
}


def typed(command: str, server: Background | None) -> str:
    """Rewrite `command` for `server`, which is None if the page has not needed one so far."""
    command = _LIMIT.sub(rf"\g<1>{_PATIENT_LIMIT}", command.replace(".venv/bin/", ""))
    for name, program in PROGRAMS.items():
        found = re.search(rf"\b{name}\b", command)
        if found and "--help" not in command:
            command = _told(command, found.end(), program, server)
    if server is not None and TCP in server.ports:
        command = re.sub(rf"--port[= ]{TCP}\b", f"--port {server.ports[TCP]}", command)
    plain = command.split(" #", maxsplit=1)[0].rstrip()
    if server is not None and _EXAMPLE.match(plain) and 8000 in server.ports:
        return f"{plain} {server.address()}"
    return command if server is None else server.here(command)


def needs_server(text: str) -> bool:
    """Return whether `text` needs a server."""
    if re.search(r"\b(localhost|127\.0\.0\.1)[: ]\d", text) or text.startswith("python examples/"):
        return True
    return any(
        program.flag and re.search(rf"\b{name}\b", text) for name, program in PROGRAMS.items()
    )


def _told(command: str, at: int, program: Program, server: Background | None) -> str:
    """Insert the flags that `program` needs into `command`, at position `at`."""
    flags = ""
    if program.flag and server is not None and not re.search(program.unless, command):
        protocol = "grpc" if re.search(r"-i grpc|--protocol[= ]grpc", command) else "http"
        flags = f" {program.flag} {server.address(protocol)}"
        if program.flag == "--http" and TCP in server.ports:  # which it tries first
            flags = f" --port {server.ports[TCP]}"
    rest = re.match(r"[^#|&;<>\n]*", command[at:])
    assert rest is not None  # it may be empty
    end = at + len(rest[0].rstrip())
    quick = f" {program.quick}" if program.quick else ""
    if "shoal stress" in command and not re.search(r" --(url|host)\b", command):
        quick += " --sessions 1 --batching on"  # it starts one server per row of its table
    return f"{command[:at]}{flags}{command[at:end]}{quick}{command[end:]}"
