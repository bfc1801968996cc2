"""wrk: HTTP/1.1 from one thread, as fast as the connections allow."""

from __future__ import annotations

import re

from benchmarks.loads import program
from benchmarks.measures import Load
from benchmarks.peers.base import Target
from benchmarks.places import WORK

NAME = "wrk"
FAILURES = ("connect", "read", "write", "status", "timeout")

_REPORT = """
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("RESULT requests=%d micros=%d bytes=%d connect=%d read=%d write=%d " ..
    "status=%d timeout=%d p50=%d p99=%d\\n", summary.requests, summary.duration, summary.bytes,
    e.connect, e.read, e.write, e.status, e.timeout,
    latency:percentile(50), latency:percentile(99)))
end
"""


def run(target: Target, concurrency: int, seconds: float, paths: tuple[str, ...] = ()) -> Load:
    """Post the target's request over `concurrency` connections; with `paths`, to each of them in
    turn. Raises LoadFailed, or Unavailable without wrk."""
    wrk = program.find(NAME, "wrk")
    body = program.body_file(target.exchange.body)
    file = WORK / "load.lua"
    file.write_text(script(str(body), target.exchange.headers, paths), encoding="utf-8")
    line = [wrk, "-t1", f"-c{concurrency}", f"-d{max(1, round(seconds))}s", "--timeout", "60s"]
    line += ["-s", str(file), f"http://127.0.0.1:{target.port}{target.path}"]
    return parse(program.run(line, seconds + 90))


def script(body: str, headers: dict[str, str], paths: tuple[str, ...] = ()) -> str:
    """The Lua script that makes wrk send POST requests and print its summary in one line."""
    lines = ['wrk.method = "POST"', f'local file = io.open("{body}", "rb")']
    lines += ['wrk.body = file:read("*a")', "file:close()"]
    lines += [f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items()]
    if paths:
        listed = ", ".join(f'"{path}"' for path in paths)
        lines += [
            f"local paths, requests, place = {{{listed}}}, {{}}, 0",
            "function init(arguments)",
            "  for i, path in ipairs(paths) do requests[i] = wrk.format(nil, path) end",
            "end",
            "function request()",
            "  place = place % #requests + 1",
            "  return requests[place]",
            "end",
        ]
    return "\n".join(lines) + "\n" + _REPORT


def parse(text: str) -> Load:
    """The figures of the line that our `done` function printed."""
    line = re.search(r"^RESULT (.*)$", text, re.MULTILINE)
    if line is None:
        raise program.LoadFailed(f"wrk printed no summary: {text[-300:]}")
    values = {name: int(value) for name, value in re.findall(r"(\w+)=(-?\d+)", line.group(1))}
    seconds = values["micros"] / 1e6
    load = Load(
        values["requests"],
        seconds,
        values["requests"] / seconds if seconds else 0.0,
        values["p50"],
        values["p99"],
    )
    for kind in FAILURES:
        load.note(kind, values[kind])
    return load
