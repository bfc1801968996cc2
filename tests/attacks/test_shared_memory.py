"""A client that truncates its shared memory harms nobody but itself.

The server runs in a process of its own: it used to be killed by SIGBUS.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import urllib.request
import uuid
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from shoal.testing.server import wait_until

SIZE = 64 << 10  # several pages: those behind the new end are gone
COUNT = SIZE // 4
APP = """
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

import shoal

HERE = Path(__file__).parent


@shoal.model
def add_one(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return numbers + 1


@shoal.model
def slow(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    (HERE / "runs").touch()
    while not (HERE / "go").exists():
        time.sleep(0.002)
    return numbers + 1
"""


class Server:
    """A server process that all attacks share."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "app.py").write_text(APP)
        program = "import sys; from shoal.cli.main import main; sys.exit(main())"
        flags = ["--http-port=0", "--grpc-port=0", "--metrics-port=0", "--execution=threads"]
        flags += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, "serve", str(folder / "app.py"), *flags], stderr=log
            )
        self.addresses = {
            name: f"127.0.0.1:{self._wait_for(rf'listening for {name} on .*:([0-9]+)')[1]}"
            for name in ("http", "grpc", "metrics")
        }
        self._wait_for("the server is")

    def _wait_for(self, pattern):
        log = self.folder / "log"
        return wait_until(lambda: re.search(pattern, log.read_text()), pattern)


class Attacked:
    """The server, and a client of it. The model 'slow' waits until `let_go`."""

    def __init__(self, server, kit):
        self.process = server.process
        self.kit = kit
        self._metrics = f"http://{server.addresses['metrics']}/metrics"
        self.url = server.addresses[kit.__name__.rpartition(".")[2]]
        self.client = kit.InferenceServerClient(self.url)
        self._go, self._runs = server.folder / "go", server.folder / "runs"
        for mark in (self._go, self._runs):
            mark.unlink(missing_ok=True)

    def wait_for_run(self):
        """Until 'slow' has begun."""
        wait_until(self._runs.exists, "a run of 'slow'")

    def let_go(self):
        """Let 'slow' end, and every later call of it in this test."""
        self._go.touch()

    def plain(self, number):
        """An input that does not use shared memory."""
        tensor = self.kit.InferInput("numbers", [4], "FP32")
        tensor.set_data_from_numpy(np.full(4, number, np.float32))
        return [tensor]

    def shared(self, name="tensors"):
        tensor = self.kit.InferInput("numbers", [COUNT], "FP32")
        tensor.set_shared_memory(name, SIZE)
        return [tensor]

    def to_shared(self, name="tensors"):
        output = self.kit.InferRequestedOutput("output")
        output.set_shared_memory(name, SIZE)
        return [output]

    def begin(self, model, inputs, outputs=None):
        """A call whose outcome, a result or an error, comes later."""
        outcome = []

        def run():
            try:
                # NVIDIA's clients cannot be shared by threads.
                with self.kit.InferenceServerClient(self.url) as client:
                    outcome.append(client.infer(model, inputs, outputs=outputs))
            except InferenceServerException as error:
                outcome.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread, outcome

    def pending(self):
        """How many calls wait for the model 'slow'."""
        with urllib.request.urlopen(self._metrics) as response:
            text = response.read().decode()
        return float(re.search(r'pending_request_count\{model="slow".* (\S+)', text)[1])

    def check(self):
        """The server still answers, and answers right."""
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}"
        answer = self.client.infer("add_one", self.plain(41)).as_numpy("output")
        assert answer.tolist() == [42] * 4


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Server(tmp_path_factory.mktemp("attacked"))
    yield made
    made.process.kill()
    made.process.wait()


@pytest.fixture(params=[tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def attacked(request, server):
    made = Attacked(server, request.param)
    yield made
    made.let_go()
    made.client.close()


@pytest.fixture
def region(attacked):
    """Registered as `tensors`; the test truncates it."""
    system = SharedMemory(create=True, size=SIZE, name=f"shoal-{uuid.uuid4().hex}")
    attacked.client.register_system_shared_memory("tensors", system.name, SIZE)
    yield system
    attacked.client.unregister_system_shared_memory("tensors")
    system.close()
    system.unlink()


def truncate(region, size=0):
    os.ftruncate(region._fd, size)


def error_of(call):
    thread, outcome = call
    thread.join(60)
    assert isinstance(outcome[0], InferenceServerException), outcome
    return str(outcome[0])


def test_whole_regions_are_read_and_written(attacked, region):
    np.frombuffer(region.buf, np.float32)[:] = np.arange(COUNT)
    attacked.client.infer("add_one", attacked.shared(), outputs=attacked.to_shared())
    assert (np.frombuffer(region.buf, np.float32) == np.arange(COUNT) + 1).all()


def test_before_the_request(attacked, region):
    truncate(region)
    for inputs, outputs in (
        (attacked.shared(), None),
        (attacked.plain(1), attacked.to_shared()),
    ):
        with pytest.raises(InferenceServerException, match=r"truncated: it has 0 of .* bytes"):
            attacked.client.infer("add_one", inputs, outputs=outputs)
    attacked.check()


@pytest.mark.parametrize("left", [0, 4096, SIZE - 4])
def test_between_request_and_execution(attacked, region, left):
    """A call that waits in the queue reads its inputs when its turn comes."""
    first = attacked.begin("slow", attacked.plain(1))
    attacked.wait_for_run()
    second = attacked.begin("slow", attacked.shared())
    wait_until(lambda: attacked.pending() == 1, "the second call waits")
    truncate(region, left)
    attacked.let_go()
    assert f"truncated: it has {left} of" in error_of(second)
    first[0].join(60)
    assert first[1][0].as_numpy("output").tolist() == [2] * 4  # the neighbour in the queue
    attacked.check()


def test_between_execution_and_output(attacked, region):
    call = attacked.begin("slow", attacked.plain(1), attacked.to_shared())
    attacked.wait_for_run()
    truncate(region)
    attacked.let_go()
    assert "truncated: it has 0 of" in error_of(call)
    attacked.check()


def test_a_region_that_is_truncated_again_and_again(attacked, region):
    """At moments that nobody chose: each call is answered, with a result or an error."""
    stop = threading.Event()

    def flicker():
        while not stop.is_set():
            truncate(region)
            truncate(region, SIZE)

    thread = threading.Thread(target=flicker)
    thread.start()
    errors = []
    try:
        for _ in range(200):
            try:
                attacked.client.infer("add_one", attacked.shared(), outputs=attacked.to_shared())
            except InferenceServerException as error:
                errors.append(str(error))
    finally:
        stop.set()
        thread.join()
    assert all("truncated" in error for error in errors), errors
    attacked.check()


def test_a_region_larger_than_the_machine(attacked):
    """A request may name a region of any size; memory is used only for one that runs."""
    system = SharedMemory(create=True, size=1 << 40)
    try:
        attacked.client.register_system_shared_memory("huge", system.name, 1 << 40)
        tensor = attacked.kit.InferInput("other", [1 << 38], "FP32")
        tensor.set_shared_memory("huge", 1 << 40)
        with pytest.raises(InferenceServerException, match="other"):
            attacked.client.infer("add_one", [tensor])
        tensor = attacked.kit.InferInput("numbers", [1 << 38], "FP32")
        tensor.set_shared_memory("huge", 1 << 40)
        with pytest.raises(InferenceServerException, match="--http-max-body-size"):
            attacked.client.infer("add_one", [tensor])
        attacked.check()
    finally:
        attacked.client.unregister_system_shared_memory("huge")
        system.close()
        system.unlink()
