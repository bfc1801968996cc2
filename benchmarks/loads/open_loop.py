"""open_loop: HTTP/1.1 requests with Poisson arrivals, each counted from when it was due.

A program of our own, in C (`open_loop.c`), because of what it counts and how many it can send: wrk
and h2load wait for a response before they send the next request, so that a stall of the server
hides the requests that it would have delayed (coordinated omission), and a generator in Python
cannot keep up with 70 % of what the servers answer.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.loads import program
from benchmarks.measures import Load
from benchmarks.peers.base import Target
from benchmarks.places import HOME

NAME = "open_loop"  # at 70 % of each server's own peak rate
EQUAL = "open_loop, equal rates"  # all servers at 70 % of the lowest peak rate
SHARE = 0.7  # of the peak rate
FAILURES = ("status", "size", "reset", "unanswered")
_SOURCE = Path(__file__).with_suffix(".c")
_SEED = 11
_GIVE_UP_SECS = 10.0  # the program's own limit, after the last request was due


def build(folder: Path = HOME) -> str:
    """The program; see `program.compiled`."""
    return program.compiled(_SOURCE, folder)


def run(target: Target, connections: int, rate: float, seconds: float, answer: int) -> Load:
    """Send `rate` requests a second, whose responses have `answer` bytes.

    Raises LoadFailed, or Unavailable without a C compiler.
    """
    request = str(program.body_file(message(target)))
    line = command(target.port, rate, seconds, connections, request, answer)
    return parse(program.run(line, seconds + _GIVE_UP_SECS + 20))


def command(
    port: int, rate: float, seconds: float, connections: int, request: str, answer: int
) -> list[str]:
    """The command line for the request in the file `request`; see `run`."""
    return [
        *(build(), str(port), f"{rate:.0f}", f"{seconds:g}"),
        *(str(connections), str(_SEED), request, str(answer)),
    ]


def message(target: Target) -> bytes:
    """The whole request, from its first line to the end of its body."""
    body = target.exchange.body
    fields = {"host": f"127.0.0.1:{target.port}", **target.exchange.headers}
    fields["content-length"] = str(len(body))
    head = [f"POST {target.path} HTTP/1.1", *(f"{name}: {fields[name]}" for name in fields)]
    return "\r\n".join([*head, "", ""]).encode() + body


def parse(text: str) -> Load:
    """The figures of the line that it prints."""
    values = program.result(NAME, text)
    seconds = values["nanos"] / 1e9
    load = Load(
        values["requests"],
        seconds,
        values["requests"] / seconds if seconds else 0.0,
        values["p50"] / 1e3,
        values["p99"] / 1e3,
        p999_us=values["p999"] / 1e3,
        max_us=values["max"] / 1e3,
        late_share=values["late"] / max(values["offered"], 1),
    )
    for kind in FAILURES:
        load.note(kind, values[kind])
    return load
