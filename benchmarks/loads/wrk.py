"""wrk: HTTP/1.1 from one thread, as fast as the connections allow."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks.loads import program
from benchmarks.measures import Load
from benchmarks.peers.base import Target
from benchmarks.places import WORK

NAME = "wrk"
FAILURES = ("connect", "read", "write", "status", "timeout")

_READ = """local function read(name)
  local file = io.open(name, "rb")
  local data = file:read("*a")
  file:close()
  return data
end"""

_REPORT = """
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("RESULT requests=%d micros=%d bytes=%d connect=%d read=%d write=%d " ..
    "status=%d timeout=%d p50=%d p99=%d p999=%d max=%d\\n", summary.requests, summary.duration,
    summary.bytes, e.connect, e.read, e.write, e.status, e.timeout,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9), latency.max))
end
"""


def run(target: Target, concurrency: int, seconds: float) -> Load:
    """Post the target's requests in turn over `concurrency` connections.

    Raises LoadFailed, or Unavailable without wrk.
    """
    wrk = program.find(NAME, "wrk")
    exchange = target.exchange
    bodies = [
        str(program.body_file(body, place))
        for place, body in enumerate((exchange.body, *exchange.others))
    ]
    file = WORK / "load.lua"
    file.write_text(script(bodies, exchange.headers, target.paths), encoding="utf-8")
    line = [wrk, "-t1", f"-c{concurrency}", f"-d{max(1, round(seconds))}s", "--timeout", "60s"]
    line += ["-s", str(file), f"http://127.0.0.1:{target.port}{target.path}"]
    return parse(program.run(line, seconds + 90))


def script(bodies: Sequence[str], headers: dict[str, str], paths: Sequence[str] = ()) -> str:
    """The Lua script that makes wrk send POST requests and print its summary in one line.

    With several files of bodies or several paths, requests go through them in turn.
    """
    lines = [_READ, f'wrk.method = "POST"\nwrk.body = read("{bodies[0]}")']
    lines += [f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items()]
    if len(bodies) > 1 or paths:
        lines += [
            f"local bodies, paths = {{{_listed(bodies)}}}, {{{_listed(paths)}}}",
            "local requests, place = {}, 0",
            "function init(arguments)",
            "  for i, name in ipairs(bodies) do bodies[i] = read(name) end",
            "  if #paths == 0 then paths[1] = wrk.path end",
            "  for i = 1, math.max(#bodies, #paths) do",
            "    local path, body = paths[(i - 1) % #paths + 1], bodies[(i - 1) % #bodies + 1]",
            "    requests[i] = wrk.format(nil, path, nil, body)",
            "  end",
            "end",
            "function request()",
            "  place = place % #requests + 1",
            "  return requests[place]",
            "end",
        ]
    return "\n".join(lines) + "\n" + _REPORT


def _listed(values: Sequence[str]) -> str:
    return ", ".join(f'"{value}"' for value in values)


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
        p999_us=values["p999"],
        max_us=values["max"],
    )
    for kind in FAILURES:
        load.note(kind, values[kind])
    return load
