"""A load of many connections in which every response is checked against its own request.

    python -m benchmarks.load_check [--requests 20000] [--connections 64] [--url HOST:PORT] [--wrk]

The model is the demo's add_sub: two INT32 rows of 16, their sum and their difference. Every request
has unique numbers and a unique id, so a response that belongs to another request is detected. The
client is plain asyncio and uses much of a small machine, so the server's CPU time per request says
more than the throughput. Exits with 1 if a request was lost, refused or answered wrongly.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.serving import Server, serve

ROW = struct.Struct("<16i")
HEADER_LENGTH = b"inference-header-content-length"
SLOWEST_PER_SEC = 100  # below this rate we stop waiting: a request without answer is lost


def request_bytes(host: str, number: int) -> bytes:
    """A binary infer request whose tensors and id follow from `number`."""
    tensor = {"datatype": "INT32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
    header = json.dumps(
        {
            "id": str(number),
            "inputs": [{"name": "INPUT0", **tensor}, {"name": "INPUT1", **tensor}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    first, second = rows(number)
    body = header + ROW.pack(*first) + ROW.pack(*second)
    return (
        f"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: {host}\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def rows(number: int) -> tuple[list[int], list[int]]:
    """Two rows, unique to this number."""
    return [number + place for place in range(16)], [3 * number - place for place in range(16)]


def fault(number: int, status: int, header_length: int, body: bytes) -> str:
    """What is wrong with the response to `number`; empty if nothing is."""
    if status != 200:
        return f"status {status}: {body[:200].decode(errors='replace')}"
    header = json.loads(body[:header_length])
    if header.get("id") != str(number):
        return "the id of another request"
    tail = body[header_length:]
    if len(tail) != 128:
        return f"{len(tail)} bytes of tensors instead of 128"
    tensors = {}
    for place, output in enumerate(header["outputs"]):
        tensors[output["name"]] = list(ROW.unpack_from(tail, 64 * place))
    first, second = rows(number)
    right = {
        "OUTPUT0": [a + b for a, b in zip(first, second, strict=True)],
        "OUTPUT1": [a - b for a, b in zip(first, second, strict=True)],
    }
    return "" if tensors == right else "the numbers of another request"


async def read_response(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """Status, length of the JSON header and body of the next response."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    fields = dict(line.lower().split(b":", 1) for line in lines[1:] if line)
    body = await reader.readexactly(int(fields[b"content-length"]))
    header_length = int(fields.get(HEADER_LENGTH, len(body)))
    return int(lines[0].split()[1]), header_length, body


async def converse(host: str, port: int, numbers: Iterator[int], faults: Counter[str]) -> None:
    """One connection: sends and checks requests until no numbers are left."""
    reader, writer = await asyncio.open_connection(host, port)
    for number in numbers:
        try:
            writer.write(request_bytes(host, number))
            wrong = fault(number, *await read_response(reader))
        except (OSError, EOFError) as error:  # the connection is gone: this request was lost
            faults[f"lost ({type(error).__name__})"] += 1
            reader, writer = await asyncio.open_connection(host, port)
            continue
        if wrong:
            faults[wrong] += 1
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def load(host: str, port: int, connections: int, requests: int) -> tuple[float, Counter[str]]:
    """The duration of the load in seconds, and the number of errors of each kind."""
    faults: Counter[str] = Counter()
    numbers = iter(range(1, requests + 1))  # shared: each connection takes what is next
    begun = time.perf_counter()
    tasks = [asyncio.create_task(converse(host, port, numbers, faults)) for _ in range(connections)]
    done, waiting = await asyncio.wait(tasks, timeout=30 + requests / SLOWEST_PER_SEC)
    for task in waiting:
        faults["no answer"] += 1
        task.cancel()
    for task in done:
        task.result()  # a connection that could not be made again ends the run
    return time.perf_counter() - begun, faults


def wrk_load(host: str, port: int, connections: int) -> str:
    """The same request repeated by wrk, a load generator that is not ours."""
    wrk = shutil.which("wrk")
    if wrk is None:
        return "wrk is not installed"
    raw = request_bytes(host, 7)
    head, body = raw.split(b"\r\n\r\n", 1)
    length = head.split(b"Content-Length: ")[1].split(b"\r\n")[0].decode()
    escaped = "".join(f"\\{byte:03d}" for byte in body)
    script = (
        'wrk.method = "POST"\n'
        f'wrk.headers["Inference-Header-Content-Length"] = "{length}"\n'
        f'wrk.body = "{escaped}"\n'
    )
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        line = [wrk, "-t1", f"-c{connections}", "-d5s", "--latency", "-s", file.name]
        line.append(f"http://{host}:{port}/v2/models/add_sub/infer")
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout


def main() -> int:
    """Start a server unless one is named, load it, print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--url", help="host:port of a running server with the demo models")
    parser.add_argument("--wrk", action="store_true", help="also let wrk have a go for 5 s")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()

    with contextlib.ExitStack() as stack:
        own: Server | None = None
        if arguments.url is None:
            own = stack.enter_context(serve("--demo"))
        host, _, port = (arguments.url or (own and own.address) or "").rpartition(":")
        # The first few requests meet a server that has never run the model.
        asyncio.run(load(host, int(port), arguments.connections, 2 * arguments.connections))
        busy = own.cpu_secs() if own else 0.0
        took, faults = asyncio.run(load(host, int(port), arguments.connections, arguments.requests))
        busy = own.cpu_secs() - busy if own else 0.0
        if arguments.wrk:
            print(wrk_load(host, int(port), arguments.connections))

    report = {
        "machine": describe(),
        "connections": arguments.connections,
        "requests": arguments.requests,
        "right": arguments.requests - sum(faults.values()),
        "faults": dict(faults.most_common(10)),
        "requests_per_sec": round(arguments.requests / took),
        "server_cpu_us_per_request": round(1e6 * busy / arguments.requests, 1) if own else None,
    }
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
