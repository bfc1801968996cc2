"""What a request costs on its way to a replica: our ingress beside the proxies of Ray Serve.

    python -m benchmarks.ray_proxies [--requests 2000] [--clients 4]

Three ways, in turn on one machine: an echo of 128 bytes behind Ray Serve's default proxy, the same
behind its HAProxy mode, and a model that returns its 128 bytes behind `shoal ray`. The figure is
the CPU time of all processes concerned, without that of an idle cluster and of the clients.
Prints a table with the machine and the commit.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

WAYS = ("Ray Serve's proxy", "Ray Serve's HAProxy mode", "shoal ray")
_BODY = b"x" * 128
_WARM_UP = 300  # requests
_IDLE_SECS = 4.0
# The processes of each part, by what their command lines contain.
_PARTS = {
    "proxy": ("ProxyActor", "HAProxyManager", "bin/haproxy"),
    "replica": ("ServeReplica", "shoal.cli.child"),
    "Ray": ("raylet", "gcs_server", "ServeController", "ray/dashboard"),
}
_MODEL = """
backend: "identity" max_batch_size: 0
input [{ name: "X" data_type: TYPE_UINT8 dims: [ 128 ] }]
output [{ name: "X" data_type: TYPE_UINT8 dims: [ 128 ] }]
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--ways", default=",".join(str(n) for n in range(len(WAYS))))
    chosen = parser.parse_args()
    rows = {}
    for number in map(int, chosen.ways.split(",")):
        # A process for each: Ray Serve reads its mode when it is imported.
        results: Any = multiprocessing.get_context("spawn").Queue()
        arguments = (number, chosen.requests, chosen.clients, results)
        process = multiprocessing.get_context("spawn").Process(target=_measure, args=arguments)
        process.start()
        rows[WAYS[number]] = results.get()
        process.join()
    print(_table(rows, chosen.requests, chosen.clients))


def _measure(number: int, requests: int, clients: int, results: Any) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = str(int(number == 1))
    port = _free_port()
    with _shoal(port) if number == 2 else _echo(port):
        path = "/v2/models/echo/infer" if number == 2 else "/"
        _send(port, path, _WARM_UP, clients)
        idle = _used(port, lambda: time.sleep(_IDLE_SECS))
        began = time.monotonic()
        used = _used(port, lambda: _send(port, path, requests, clients))
        secs = time.monotonic() - began
    micros = {
        part: max(0.0, (used[part] - idle[part] / _IDLE_SECS * secs) / requests * 1e6)
        for part in _PARTS
    }
    results.put({**micros, "sum": sum(micros.values()), "rate": requests / secs})


@contextlib.contextmanager
def _echo(port: int) -> Iterator[None]:
    import ray
    from ray import serve

    async def echo(_self: Any, request: Any) -> Any:
        from starlette.responses import Response

        return Response(await request.body())

    ray.init(address="local", include_dashboard=False, logging_level="error", log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port}, proxy_location="HeadOnly")
    deployment: Any = serve.deployment(type("Echo", (), {"__call__": echo}))
    options = {"max_ongoing_requests": 100, "logging_config": {"enable_access_log": False}}
    serve.run(deployment.options(**options).bind(), name="echo")
    try:
        _wait_for(port, "/")
        yield
    finally:
        serve.shutdown()
        ray.shutdown()


@contextlib.contextmanager
def _shoal(port: int) -> Iterator[None]:
    from shoal.ray.cluster import Cluster

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "echo"
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(_MODEL)
        ingress = {"host": "127.0.0.1", "http_port": port, "grpc_port": 0, "metrics_port": 0}
        cluster = Cluster("")
        try:
            cluster.start({"repository": folder, "ingress": ingress}, "shoal")
            _wait_for(port, "/v2/models/echo/infer")
            yield
        finally:
            cluster.close()


def _wait_for(port: int, path: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            _send(port, path, 1, 1)
            return
        except (OSError, AssertionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _send(port: int, path: str, count: int, clients: int) -> None:
    """Send `count` requests over a few connections and check the answers."""
    failures: list[BaseException] = []
    head = b""
    headers = {}
    if path.endswith("/infer"):
        tensor = {
            "name": "X",
            "shape": [128],
            "datatype": "UINT8",
            "parameters": {"binary_data_size": 128},
        }
        outputs = [{"name": "X", "parameters": {"binary_data": True}}]
        head = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}

    def run() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            for _ in range(max(1, count // clients)):
                connection.request("POST", path, head + _BODY, headers)
                answer = connection.getresponse()
                content = answer.read()
                assert answer.status == 200, content
                assert content.endswith(_BODY), content
        except BaseException as error:  # noqa: BLE001 - reported by the caller's thread
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _used(port: int, work: Callable[[], None]) -> dict[str, float]:
    """CPU seconds of each part during some work."""
    before = _cpu_secs(port)
    work()
    after = _cpu_secs(port)
    return {
        part: sum(secs - before[part].get(pid, 0.0) for pid, secs in after[part].items())
        for part in _PARTS
    }


def _cpu_secs(port: int) -> dict[str, dict[int, float]]:
    """CPU seconds so far by part and process, of the cluster that this process has started."""
    found: dict[str, dict[int, float]] = {part: {} for part in _PARTS}
    processes = psutil.Process().children(recursive=True)
    listening = {one.pid for one in psutil.net_connections("tcp4") if one.laddr[1:] == (port,)}
    known = {process.pid for process in processes}
    processes += [psutil.Process(pid) for pid in listening - known - {None, os.getpid()}]
    for process in processes:
        with contextlib.suppress(psutil.Error):
            words = " ".join(process.cmdline())
            part = next((p for p, marks in _PARTS.items() if any(m in words for m in marks)), None)
            if part is not None:
                times = process.cpu_times()
                found[part][process.pid] = times.user + times.system
    return found


def _table(rows: Mapping[str, Mapping[str, float]], requests: int, clients: int) -> str:
    from benchmarks.machine import describe

    context = ", ".join(f"{name} {value}" for name, value in describe().items())
    lines = [
        f"CPU time of a request of 128 bytes, {requests} requests by {clients} clients: {context}",
        "",
        "| way | proxy, µs | replica, µs | rest of Ray, µs | sum, µs | ratio | requests/s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    base = rows.get(WAYS[0], {}).get("sum", 0.0)
    for way, row in rows.items():
        ratio = f"1/{base / row['sum']:.0f}" if base and way != WAYS[0] else ""
        figures = (f"{row[name]:.0f}" for name in ("proxy", "replica", "Ray", "sum"))
        lines.append(f"| {way} | {' | '.join(figures)} | {ratio} | {row['rate']:.0f} |")
    return "\n".join(lines)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


if __name__ == "__main__":
    main()
