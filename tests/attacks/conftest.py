"""A server in a process of its own, a well-behaved neighbour, and what an attack costs the server.

The verdict is CPU seconds and the neighbour's answers, never wall-clock time, so that a busy machine
cannot fail a test. How long the neighbour had to wait is measured inside the server
(measured_server.py): it is the CPU time for which the event loop was kept from its connections.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import mmap
import re
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from shoal.wire.proto import messages
from tests.support.fakes import WAIT_SECS

# No request may keep the event loop from its connections for longer.
MOST_STALL_SECS = 0.1
INFER = "/inference.GRPCInferenceService/ModelInfer"
_APP = """
from typing import Annotated

import numpy as np
import numpy.typing as npt

import shoal


@shoal.model
def double(numbers: Annotated[npt.NDArray[np.float32], (4,)]) -> npt.NDArray[np.float32]:
    return numbers * 2


@shoal.model
def large(count: int) -> npt.NDArray[np.uint8]:
    return np.zeros(count, np.uint8)
"""


class AttackedServer:
    """A `shoal serve` process with the models `double` and `large`."""

    def __init__(self, folder, *options):
        app = folder / "attacked.py"
        app.write_text(_APP)
        program = Path(__file__).with_name("measured_server.py")
        ports = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
        figures = folder / "figures"
        figures.write_bytes(bytes(16))
        with figures.open("r+b") as file:
            self._longest = memoryview(mmap.mmap(file.fileno(), 16)).cast("d")
        self._log: deque[str] = deque(maxlen=200)
        self._reader: threading.Thread | None = None
        self.process = subprocess.Popen(
            [sys.executable, program, figures, "serve", str(app), *ports, *options],
            stderr=subprocess.PIPE,
            text=True,
        )
        self._usage = psutil.Process(self.process.pid)
        try:
            found = {
                kind: int(self._wait_for(rf"listening for {kind} on \S+:(\d+)").group(1))
                for kind in ("http", "grpc", "metrics")
            }
            self._wait_for("the server is")
        except BaseException:
            self.stop()
            raise
        self.http_port, self.grpc_port = found["http"], found["grpc"]
        self.metrics_port = found["metrics"]
        self._reader = threading.Thread(target=self._log.extend, args=(self.process.stderr,))
        self._reader.start()
        self.forget_stalls()

    def _wait_for(self, pattern):
        for line in self.process.stderr:
            self._log.append(line)
            match = re.search(pattern, line)
            if match:
                return match
        raise AssertionError(f"no line matches {pattern!r} in:\n{''.join(self._log)}")

    @property
    def cpu_secs(self):
        """The CPU time of the server so far."""
        times = self._usage.cpu_times()
        return times.user + times.system

    def check_stalls(self):
        """Nothing has kept the event loop from its connections for too long."""
        loop, process = self._longest
        print(f"the event loop stood still for {loop:.3f} s of CPU, with threads {process:.3f} s")
        assert loop <= MOST_STALL_SECS, f"the event loop stood still for {loop:.3f} s of CPU"
        # The figure with threads is printed only: on a busy machine they may run for long, without
        # the interpreter lock, while the loop's thread waits for a core.

    def forget_stalls(self):
        """Let `check_stalls` begin anew."""
        self._longest[0] = self._longest[1] = 0.0

    @property
    def resident_bytes(self):
        """The memory of the server now."""
        return self._usage.memory_info().rss

    @property
    def peak_bytes(self):
        """The most memory it ever had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) << 10

    def stop(self):
        self.process.kill()
        self.process.wait(WAIT_SECS)
        if self._reader is not None:
            self._reader.join(WAIT_SECS)
        self.process.stderr.close()


def server_cpu_secs(server):
    """The CPU time that the server has used so far."""
    return server.cpu_secs


class Neighbour:
    """Asks over HTTP and gRPC, again and again, in the background; the answers are checked.

    `encryption` is the context of HTTPS; gRPC is plain. `headers` are sent with every request.
    """

    def __init__(self, server, encryption=None, headers=None):
        self._encryption = encryption
        self._headers = headers or {}
        self.answers = {"http": 0, "grpc": 0}
        self.longest_secs = 0.0  # to be printed; a busy machine makes it long
        self._faults = []
        self._server = server
        server.forget_stalls()
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, args=(protocol, client), daemon=True)
            for protocol, client in (("http", self._over_http), ("grpc", self._over_grpc))
        ]
        for thread in self._threads:
            thread.start()

    def check(self):
        """Every answer so far was right, none had to wait for another client's request, and the
        server answers still, on both ports."""
        with self._changed:
            before = dict(self.answers)

            def more():
                return all(self.answers[each] >= before[each] + 2 for each in before)

            done = self._changed.wait_for(lambda: more() or self._faults, WAIT_SECS)
            assert done, "the neighbour got no answer any more"
        assert not self._faults, self._faults[:3]
        self._server.check_stalls()

    @property
    def asked(self):
        """How many answers it got."""
        return sum(self.answers.values())

    def stop(self):
        self._stopped.set()
        for thread in self._threads:
            thread.join(WAIT_SECS)

    def _run(self, protocol, client):
        try:
            with client() as ask:
                number = 0
                while not self._stopped.is_set():
                    number += 1
                    start = time.monotonic()
                    answer = ask(number)
                    if answer != [2.0 * number] * 4:
                        raise AssertionError(f"asked {number}, got {answer}")
                    with self._changed:
                        self.answers[protocol] += 1
                        self.longest_secs = max(self.longest_secs, time.monotonic() - start)
                        self._changed.notify_all()
                    self._stopped.wait(0.002)
        except Exception as error:  # noqa: BLE001 - `check` tells of it
            with self._changed:
                self._faults.append(error)
                self._changed.notify_all()

    @contextlib.contextmanager
    def _over_http(self):
        address = ("127.0.0.1", self._server.http_port)
        line = http.client.HTTPConnection(*address, timeout=WAIT_SECS)
        if self._encryption is not None:
            line = http.client.HTTPSConnection(
                *address, timeout=WAIT_SECS, context=self._encryption
            )

        def ask(number):
            entry = {"name": "numbers", "datatype": "FP32", "shape": [4], "data": [number] * 4}
            body = json.dumps({"inputs": [entry]})
            line.request("POST", "/v2/models/double/infer", body, self._headers)
            return json.loads(line.getresponse().read())["outputs"][0]["data"]

        with contextlib.closing(line):
            yield ask

    @contextlib.contextmanager
    def _over_grpc(self):
        with grpc.insecure_channel(f"127.0.0.1:{self._server.grpc_port}") as line:
            call = line.unary_unary(INFER)

            def ask(number):
                answer = messages.ModelInferResponse.FromString(
                    call(request(number), timeout=WAIT_SECS, metadata=list(self._headers.items()))
                )
                return np.frombuffer(answer.raw_output_contents[0], np.float32).tolist()

            yield ask


def request(number):
    """An inference of `double`."""
    made = messages.ModelInferRequest(model_name="double")
    made.inputs.add(name="numbers", datatype="FP32", shape=[4])
    made.raw_input_contents.append(np.full(4, number, np.float32).tobytes())
    return made.SerializeToString()


@pytest.fixture
def serve(tmp_path):
    """Start a server with some options."""
    started = []

    def start(*options):
        server = AttackedServer(tmp_path, *options)
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A server with the defaults, which all attacks on these share."""
    attacked = AttackedServer(tmp_path_factory.mktemp("attacked"))
    yield attacked
    attacked.stop()


@pytest.fixture
def neighbour(server):
    """A client of `server` that keeps asking; `check` asserts that all its answers were right."""
    asking = Neighbour(server)
    yield asking
    asking.stop()
