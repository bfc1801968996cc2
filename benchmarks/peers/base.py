"""What every peer has: an environment, a way to start, endpoints, a way to stop.

    install() --> start(workload) --> Running(targets, family) --> stop()

A peer's own file defines what pip installs, which command serves a workload, and the address and
encoding of its endpoints; the rest is here. A server is ready when each of its endpoints has given
the expected response once.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks import environments
from benchmarks.environments import Unavailable
from benchmarks.forms import Exchange
from benchmarks.places import LOGS, ROOT, WORK
from benchmarks.processes import Family
from benchmarks.workloads import JSON, LOADS, Array, Workload

READY_WITHIN_SECS = 60.0
ASK_EVERY_SECS = 0.02
ANSWER_WITHIN_SECS = 60.0
GRPC_PATH = "/inference.GRPCInferenceService/ModelInfer"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WrongAnswer(Exception):
    """A response is not what the model computes."""


@dataclass(frozen=True)
class Target:
    """One endpoint of a running server and the request that is sent to it."""

    protocol: str  # "http" or "grpc"
    port: int
    path: str
    exchange: Exchange
    v2_model: str = ""  # set where perf_analyzer can ask for this model
    statistics_port: int = 0  # where that model's statistics are, over HTTP
    paths: tuple[str, ...] = ()  # of all models, if requests go to several in turn

    def ask(self, workload: Workload) -> int:
        """Send the request once and check the response; the number of bytes in its body.

        Raises WrongAnswer, or OSError if there is no server.
        """
        body, answer = self._call()
        fault = workload.fault(answer)
        if fault:
            raise WrongAnswer(fault)
        return body

    def served(self) -> int:
        """How many requests to its model the server has answered, by its own statistics."""
        url = f"http://127.0.0.1:{self.statistics_port}/v2/models/{self.v2_model}/stats"
        with urllib.request.urlopen(url, timeout=10) as response:
            models = json.load(response)["model_stats"]
        return int(models[0]["inference_stats"]["success"]["count"])

    def _call(self) -> tuple[int, dict[str, Array]]:
        if self.protocol == "grpc":
            return self._call_grpc()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_WITHIN_SECS)
        with contextlib.closing(connection):
            connection.request("POST", self.path, self.exchange.body, self.exchange.headers)
            response = connection.getresponse()
            data = response.read()
            if response.status != 200:
                raise WrongAnswer(f"status {response.status}: {data[:200]!r}")
            fields = {name.lower(): value for name, value in response.getheaders()}
        return len(data), self.exchange.read(data, fields)

    def _call_grpc(self) -> tuple[int, dict[str, Array]]:
        import grpc

        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            call = channel.unary_unary(self.path, lambda data: data, lambda data: data)
            try:
                metadata = [
                    (name, value)
                    for name, value in self.exchange.headers.items()
                    if name == "authorization"
                ]
                data: bytes = call(
                    self.exchange.body[5:], timeout=ANSWER_WITHIN_SECS, metadata=metadata
                )
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.UNAVAILABLE:
                    raise OSError(error.details()) from None
                raise WrongAnswer(f"{error.code().name}: {error.details()}") from None
        return len(data) + 5, self.exchange.read(data, {})


@dataclass
class Running:
    """A started server."""

    family: Family
    targets: list[Target]
    ready_secs: float = 0.0
    answer_bytes: dict[str, int] = field(default_factory=dict)  # by protocol


class Peer:
    """A server to compare. A subclass sets the names and fills in `launch` and `targets`."""

    name = ""
    title = ""
    requirements: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()  # whose versions the report names
    settings = ""  # how it is configured, in a sentence for the report
    light_workers = 1  # processes for models that take no time; others get one per core
    takes_json = False  # it takes part in workloads whose tensors are JSON
    speaks_v2 = False  # KServe v2 over HTTP and gRPC, with statistics
    most_copies = 1  # of the model that it can serve in one server
    computes = True  # else it is no server, but what the machine allows one at a given rate

    @property
    def environment(self) -> str:
        """The folder of its virtual environment; variants of one peer share it."""
        return self.name

    def install(self) -> None:
        """Create its environment. Raises Unavailable with the reason."""
        needed = (*self.requirements, *environments.RUNTIME, *environments.PICTURES)
        self.python = environments.ensure(self.environment, needed)

    def versions(self) -> dict[str, str]:
        """What is installed, for the report."""
        return environments.versions(self.environment, (*self.packages, "onnxruntime"))

    def leaves_out(self, workload: Workload) -> str:
        """Why this peer skips a workload; empty if it does not."""
        if workload.encoding == JSON and not self.takes_json:
            return "JSON tensors are compared with other peers"
        if workload.method != LOADS and not self.speaks_v2:
            return "this workload needs KServe v2 over HTTP and gRPC"
        if workload.copies > self.most_copies:
            return f"it is set up for at most {self.most_copies} models"
        return ""

    def launch(self, workload: Workload, ports: list[int], folder: Path) -> list[str]:
        """The command that serves `workload`; files it needs are written to `folder`."""
        raise NotImplementedError

    def targets(self, workload: Workload, ports: list[int]) -> list[Target]:
        """Its endpoints."""
        raise NotImplementedError

    def workers(self, workload: Workload) -> int:
        """How many processes, or replicas, compute."""
        return CORES if workload.compute_bound else self.light_workers

    def variables(self, workload: Workload, ports: list[int]) -> dict[str, str]:
        """The environment of its processes: settings of the services, and this tree."""
        return {
            "PYTHONPATH": str(ROOT),
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "BENCH_MODEL": str(workload.model_path),
            "BENCH_PICTURE": "1" if workload.picture else "0",
            "BENCH_PORT": str(ports[0]),
            "BENCH_WORKERS": str(self.workers(workload)),
            "BENCH_THREADS": "1",
            "BENCH_JSON": "1" if workload.encoding == JSON else "0",
            "OMP_NUM_THREADS": "1",  # numpy's and OpenCV's own pools would only be in the way
        }

    def start(self, workload: Workload) -> Running:
        """Serve `workload` on free local ports; its endpoints have responded when this returns.

        Raises Unavailable with the end of the server's output; no process of it is left then.
        """
        ports = free_ports(3)
        folder = WORK / self.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        line = self.launch(workload, ports, folder)
        log = LOGS / f"{self.name}-{workload.name}.log"
        begun = time.perf_counter()
        family = Family(line, self.variables(workload, ports), folder, log)
        running = Running(family, self.targets(workload, ports))
        try:
            for target in running.targets:
                for path in target.paths:
                    self._wait(workload, replace(target, path=path), family, begun)
                running.answer_bytes[target.protocol] = self._wait(workload, target, family, begun)
        except BaseException:
            self.stop(running)
            raise
        running.ready_secs = time.perf_counter() - begun
        return running

    def stop(self, running: Running) -> None:
        """End the server and everything it started."""
        running.family.end()

    def _wait(self, workload: Workload, target: Target, family: Family, begun: float) -> int:
        """Repeat the request until the response is right; its number of bytes."""
        reason = "no answer"
        while time.perf_counter() - begun < READY_WITHIN_SECS:
            if family.head.poll() is not None:
                code = family.head.returncode
                raise Unavailable(f"it ended with status {code}: {family.last_words()}")
            try:
                return target.ask(workload)
            except (OSError, http.client.HTTPException) as error:
                reason = str(error)
            except WrongAnswer as error:  # some servers open their port before the model is there
                reason = str(error)
            time.sleep(ASK_EVERY_SECS)
        raise Unavailable(
            f"{target.protocol} gave no right answer within {READY_WITHIN_SECS:.0f} s "
            f"({reason}): {family.last_words()}"
        )


def free_ports(count: int) -> list[int]:
    """Ports that are free now; all are held until the last is found, so that they differ."""
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(count):
            one = held.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            ports.append(one.getsockname()[1])
        return ports


@contextlib.contextmanager
def serving(peer: Peer, workload: Workload) -> Iterator[Running]:
    """A started server that is stopped afterwards, whatever happens."""
    running = peer.start(workload)
    try:
        yield running
    finally:
        peer.stop(running)
