"""Isolated models in a running server: crashes under load, restarts, and what is left behind."""

from __future__ import annotations

import queue
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import numpy as np
import psutil
import pytest

from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.client import Infer, outputs
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import add_model, add_onnx

FRAIL = b"""
import os, signal
import numpy as np
import numpy.typing as npt
import shoal

Numbers = npt.NDArray[np.int32]

@shoal.model(batch=4)
def frail(INPUT0: Numbers) -> Numbers:
    if (INPUT0 == -1).any():
        os.kill(os.getpid(), signal.SIGSEGV)
    return 2 * INPUT0
"""
ISOLATED = 'parameters { key: "isolation" value { string_value: "process" } }\n'
ANY_PORT = (
    "--http-address=127.0.0.1",
    "--http-port=0",
    "--allow-grpc=false",
    "--allow-metrics=false",
)


@pytest.fixture(autouse=True)
def short_rests(monkeypatch):
    monkeypatch.setattr("shoal.link.supervisor._FIRST_REST_SECS", 0.01)
    monkeypatch.setattr("shoal.link.supervisor._LONGEST_REST_SECS", 0.01)


def add_frail(repository, config=ISOLATED):
    return add_model(repository, "frail", 'backend: "function"\n' + config, {"1/model.py": FRAIL})


def ask(running, model, number):
    return Infer().add("INPUT0", np.array([[number]], np.int32)).send(running, model)


def test_a_crash_under_load_costs_its_own_batch_and_nothing_of_another_model(repository):
    add_frail(repository)
    add_onnx(repository, "solid", onnx_models.identity("INT32"))
    answers = {"frail": queue.SimpleQueue(), "solid": queue.SimpleQueue()}
    crashes = {(0, 10), (1, 30)}  # by client and request

    def client(running, model, number):
        for turn in range(40):
            sent = -1 if model == "frail" and (number, turn) in crashes else 40 * number + turn
            answers[model].put((sent, ask(running, model, sent)))

    with running_server(repository) as running:
        threads = [
            threading.Thread(target=client, args=(running, model, number))
            for model in answers
            for number in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECS)
        got = {
            model: [asked.get(timeout=WAIT_SECS) for _ in range(120)]
            for model, asked in answers.items()
        }
        for model, factor in (("solid", 1), ("frail", 2)):
            for sent, response in got[model]:
                if response.status == 200:
                    (result,) = outputs(response).values()
                    assert result.item() == factor * sent
        failed = [(sent, response) for sent, response in got["frail"] if response.status != 200]
        assert all(response.status == 200 for _, response in got["solid"])
        assert sum(sent == -1 for sent, _ in failed) == 2
        assert len(failed) <= 2 * 4  # a batch for each crash
        for _, response in failed:
            assert response.status == 500
            assert "its process ended: signal 11 (segmentation fault)" in response.error
        counted = running.statistics("frail")["inference_stats"]
        assert counted["fail"]["count"] == len(failed)
        assert counted["success"]["count"] == 120 - len(failed)


def test_the_model_is_not_ready_until_a_process_runs_again(repository, monkeypatch):
    monkeypatch.setattr("shoal.link.supervisor._FIRST_REST_SECS", 1000.0)
    monkeypatch.setattr("shoal.link.supervisor._LONGEST_REST_SECS", 1000.0)
    add_frail(repository)
    with running_server(repository) as running:
        assert running.get("/v2/models/frail/ready").status == 200
        for _ in range(2):
            assert ask(running, "frail", -1).status == 500
        wait_until(lambda: running.get("/v2/models/frail/ready").status == 400, "it is not ready")
        response = ask(running, "frail", 1)
        assert response.status == 503
        assert "model 'frail' has no process now" in response.error


def test_a_process_that_hangs_is_killed_and_replaced(repository):
    hanging = FRAIL.replace(b"os.kill(os.getpid(), signal.SIGSEGV)", b"signal.pause()")
    limit = 'parameters { key: "execution_timeout_ms" value { string_value: "200" } }\n'
    config = 'backend: "function"\n' + ISOLATED + limit
    add_model(repository, "frail", config, {"1/model.py": hanging})
    with running_server(repository) as running:
        response = ask(running, "frail", -1)
        assert response.status == 504
        assert "an execution took longer than 200 ms" in response.error
        assert ask(running, "frail", 1).status == 200
        assert running.metric("shoal_process_restarts_total", model="frail", version="1") == 1


def children():
    return psutil.Process().children()


def test_the_default_of_the_server_applies_where_the_config_says_nothing(repository):
    add_frail(repository, "")
    add_model(
        repository,
        "inside",
        'backend: "function"\n' + ISOLATED.replace("process", "none"),
        {"1/model.py": FRAIL.replace(b"def frail", b"def inside")},
    )
    before = children()
    with running_server(repository, default_isolation="process") as running:
        assert ask(running, "frail", 2).status == ask(running, "inside", 2).status == 200
        assert len(children()) - len(before) == 1
    assert children() == before


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            'parameters { key: "isolation" value { string_value: "thread" } }',
            r"parameters\['isolation'\]: found 'thread'. Write none or process",
        ),
        (
            'platform: "ensemble"\n' + ISOLATED,
            "an ensemble has no instances that could run in a process",
        ),
    ],
)
def test_configs_that_cannot_be_isolated(repository, config, reason):
    add_onnx(repository, "m", onnx_models.identity("INT32"), config)
    with running_server(repository, exit_on_error=False) as running:
        (row,) = running.index()
        assert re.search(reason, row["reason"])


def test_loading_and_unloading_leaves_nothing_behind(repository):
    add_frail(repository)
    with running_server(repository, model_control_mode="explicit") as running:
        process = psutil.Process()

        def held():
            return process.num_fds(), process.num_threads(), len(children())

        counts = []
        for _ in range(4):
            assert running.load("frail").status == 200
            assert ask(running, "frail", 3).status == 200
            assert running.unload("frail").status == 200
            wait_until(lambda: running.states("frail").get("1") == "UNAVAILABLE", "it is unloaded")
            counts.append(held())
        wait_until(lambda: held() <= counts[0], f"as much as after the first time: {counts}")


# ---- a server of its own


class Command:
    """`shoal serve` in a process, with what it has written to stderr."""

    def __init__(self, *words):
        program = "import sys; from shoal.cli.main import main; sys.exit(main())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, "serve", *map(str, words), *ANY_PORT],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log = ""

    def url(self):
        """The base URL, once the server is ready."""
        port = ""
        for line in self.process.stderr:
            self.log += line
            if found := re.search(r"listening for http on \S+:(\d+)", line):
                port = found.group(1)
            if "the server is" in line:
                return f"http://127.0.0.1:{port}"
        raise AssertionError(self.log)

    def end(self):
        self.log += self.process.communicate(timeout=WAIT_SECS)[1]
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def post(url, model, *numbers):
    body, headers = Infer().add("INPUT0", np.array([numbers], np.int32), binary=True).body()
    request = urllib.request.Request(f"{url}/v2/models/{model}/infer", body, headers)
    with urllib.request.urlopen(request, timeout=WAIT_SECS) as response:
        return response.read()


def test_a_killed_server_leaves_no_process_and_no_shared_memory(repository):
    add_frail(repository)
    with Command(repository) as command:
        url = command.url()
        post(url, "frail", *range(20_000))
        (child,) = psutil.Process(command.process.pid).children()
        mapped = [part.path for part in child.memory_maps() if "shoal" in part.path]
        assert mapped
        assert all(path.startswith("/memfd:") for path in mapped)  # such memory has no name
        command.process.send_signal(signal.SIGKILL)
        command.process.wait(WAIT_SECS)
        child.wait(WAIT_SECS)


CRASHING = b"""
import ctypes
import numpy as np
import numpy.typing as npt
import shoal

@shoal.model(batch=4)
def crashing(INPUT0: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    if INPUT0.flat[0] == -1:
        ctypes.string_at(0)
    return INPUT0
"""


@pytest.mark.parametrize("execution", ["loop", "threads"])
def test_a_crash_without_isolation_names_the_model_that_was_running(repository, execution):
    config = 'backend: "function"\nparameters { key: "execution" value { string_value: "%s" } }'
    add_model(repository, "crashing", config % execution, {"1/model.py": CRASHING})
    with Command(repository) as command:
        url = command.url()
        post(url, "crashing", 1)
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            post(url, "crashing", -1)
        assert command.end() == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in command.log
    current = command.log[command.log.index("Current thread") :]
    assert "in model 'crashing' version 1 was running" in current.partition("\n\n")[0]
