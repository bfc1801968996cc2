"""What only holds for models in processes of their own: isolation, crashes, parallel work."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from shoal.backends.python.process.parent import CHILD, PythonProcess
from shoal.core.tensor import Tensor
from shoal.errors import BackendFailure, Internal
from shoal.link.link import Link
from shoal.link.process import ChildProcess
from shoal.link.supervisor import ProcessState
from shoal.testing.server import wait_until
from tests.support.fakes import WAIT_SECS, make_request

COUNTING = """
import os, time

class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        first = int(value(requests[0])[0, 0])
        if first == -1:
            os._exit(7)
        if first == -2:
            time.sleep(60)
        self.count += 1
        return [answer([[self.count, os.getpid()]]) for _ in requests]
"""
UNHEALTHY = (
    "Failed to process the request(s) for model instance 'm_0_0', message: Stub process 'm_0_0' is "
    "not healthy."
)


def test_it_runs_elsewhere(processes, ask):
    model = processes.load(COUNTING)
    pid = ask(model, 1).outputs[0].array[0, 1]
    assert pid == model.executor.pid != os.getpid()


def test_a_crash_fails_only_the_requests_in_flight(processes, ask, request_of):
    model = processes.load(COUNTING)
    ask(model, 1)
    request, collector = request_of(-1)
    model.run(request)
    error = collector.wait().error
    assert isinstance(error, BackendFailure)
    assert error.message.startswith(UNHEALTHY)
    assert "it exited with status 7" in error.message
    assert ask(model, 1).outputs[0].array[0, 0] == 1  # a new process, waited for


def test_a_kill_is_noticed_without_a_request(processes, ask):
    model = processes.load(COUNTING)
    first = model.executor.pid
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: model.executor.pid not in (None, first), "the process is started again")
    assert ask(model, 1).outputs[0].array[0, 1] == model.executor.pid


def test_a_process_that_keeps_crashing_backs_off(processes, request_of, monkeypatch):
    monkeypatch.setattr("shoal.link.supervisor._FIRST_REST_SECS", 1000.0)
    monkeypatch.setattr("shoal.link.supervisor._LONGEST_REST_SECS", 1000.0)
    model = processes.load(COUNTING)
    for _ in range(2):
        request, collector = request_of(-1)
        model.run(request)
        assert collector.wait().error.message.startswith(UNHEALTHY)
    wait_until(lambda: model.executor.state is ProcessState.RESTING, "it rests")
    assert not model.loaded.ready()
    request, collector = request_of(1)
    model.run(request)
    assert collector.wait().error.message == UNHEALTHY


def kill_twice(executor):
    """End its process, and the next one: then it rests."""
    first = executor.pid
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: executor.pid not in (None, first), "the process is started again")
    os.kill(executor.pid, signal.SIGKILL)
    wait_until(lambda: executor.state is ProcessState.RESTING, "it rests")


def test_while_one_rests_the_others_do_its_work(processes, request_of, ask, monkeypatch):
    monkeypatch.setattr("shoal.link.supervisor._FIRST_REST_SECS", 1000.0)
    model = processes.load(COUNTING, count=2)
    first, second = model.executors
    assert model.loaded.process_restarts() == 0
    kill_twice(first)
    assert model.loaded.process_restarts() == 2
    assert ask(model, 1).outputs[0].array[0, 1] == second.pid
    assert model.loaded.ready()
    kill_twice(second)
    request, collector = request_of(1)
    model.run(request)
    assert collector.wait().error.message == UNHEALTHY
    assert not model.loaded.ready()


def test_the_sequences_of_one_are_not_for_another(processes, request_of, monkeypatch):
    monkeypatch.setattr("shoal.link.supervisor._FIRST_REST_SECS", 1000.0)
    model = processes.load(COUNTING, more="sequence_batching { }", count=2)
    for _ in range(2):
        request, collector = request_of(-1)
        model.run(request)
        collector.wait()
    wait_until(lambda: model.executor.state is ProcessState.RESTING, "it rests")
    request, collector = request_of(1)
    model.run(request)
    assert collector.wait().error.message == UNHEALTHY


def test_it_is_closed_while_it_rests(processes, request_of, monkeypatch):
    monkeypatch.setattr("shoal.link.supervisor._FIRST_REST_SECS", 1000.0)
    model = processes.load(COUNTING)
    for _ in range(2):
        request, collector = request_of(-1)
        model.run(request)
        collector.wait()
    wait_until(lambda: model.executor.state is ProcessState.RESTING, "it rests")
    processes.close(model)
    assert model.executor.state is ProcessState.CLOSED
    assert model.loaded.process_restarts() == 2, "a counter does not fall"


def test_several_instances_work_at_the_same_time(processes, request_of):
    model = processes.load(
        """
        import os, pathlib, time

        class TritonPythonModel:
            def execute(self, requests):
                folder = pathlib.Path(pb_utils.get_model_dir())
                (folder / str(os.getpid())).touch()
                deadline = time.monotonic() + 20
                while len([p for p in folder.iterdir() if p.name.isdecimal()]) < 2:
                    assert time.monotonic() < deadline, "the other one never came"
                    time.sleep(0.001)
                return [answer([[os.getpid()]])]
        """,
        count=2,
        settings={"execution": "auto"},
    )
    made = [request_of(1), request_of(2)]
    threads = [
        threading.Thread(target=model.run, args=(request,), kwargs={"on": index})
        for index, (request, _) in enumerate(made)
    ]
    for thread in threads:
        thread.start()
    pids = {collector.wait().outputs[0].array.item() for _, collector in made}
    for thread in threads:
        thread.join(WAIT_SECS)
    assert pids == {executor.pid for executor in model.executors}


def test_one_instance_runs_in_the_server_by_default(processes, ask):
    model = processes.load(COUNTING, settings={"execution": "auto"})
    assert ask(model, 1).outputs[0].array[0, 1] == os.getpid()


def test_memory_of_large_tensors_is_used_again(processes):
    model = processes.load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                return [answer(value(r) + 1) for r in requests]
        """
    )
    array = np.zeros((1, 300_000), np.int32)
    for number in range(30):
        request, collector = make_request(Tensor.from_array("IN", array + number), rows=1)
        model.run(request)
        assert collector.wait().outputs[0].array[0, -1] == number + 1
    link = model.executor.serving._link
    assert len(link._pool._lent) + sum(map(len, link._pool._idle.values())) <= 4
    assert len(link._views._memory) <= 4


def test_signals_to_the_whole_group_are_the_servers_business(processes, ask):
    model = processes.load(COUNTING)
    pid = model.executor.pid
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGTERM)
    assert ask(model, 1).outputs[0].array[0, 1] == pid


def test_programs_a_model_starts_can_be_ended(processes, ask):
    model = processes.load(
        """
        import multiprocessing, time

        class TritonPythonModel:
            def execute(self, requests):
                worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
                worker.start()
                worker.terminate()
                worker.join(10)
                return [answer([[worker.exitcode]])]
        """
    )
    assert ask(model, 1).outputs[0].array.item() == -signal.SIGTERM


def test_processes_that_a_model_forks_cannot_call_the_server(processes, request_of):
    model = processes.load(
        """
        import multiprocessing

        def ask(queue):
            request = pb_utils.InferenceRequest(
                model_name="other", inputs=[], requested_output_names=[]
            )
            queue.put(request.exec().error().message())

        class TritonPythonModel:
            def execute(self, requests):
                forks = multiprocessing.get_context("fork")
                queue = forks.SimpleQueue()
                worker = forks.Process(target=ask, args=(queue,))
                worker.start()
                error = pb_utils.TritonError(queue.get())
                worker.join(10)
                return [pb_utils.InferenceResponse(error=error)]
        """
    )
    request, collector = request_of(1)
    model.run(request)
    assert "this process was forked by the model" in collector.wait().error.message


def test_finalize_runs_before_the_process_ends(processes, ask):
    model = processes.load(
        """
        import pathlib

        class TritonPythonModel:
            def execute(self, requests):
                return [answer([[1]])]

            def finalize(self):
                (pathlib.Path(pb_utils.get_model_dir()) / "finalized").touch()
        """
    )
    ask(model, 1)
    pid = model.executor.pid
    processes.close(model)
    assert (processes.folder / "m" / "1" / "finalized").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_model_that_never_finalizes_is_ended(processes, monkeypatch):
    monkeypatch.setattr("shoal.backends.model_process._STOP_SECS", 0.2)
    model = processes.load(
        """
        import time

        class TritonPythonModel:
            def execute(self, requests): ...
            def finalize(self):
                time.sleep(600)
        """
    )
    processes.close(model)


def test_it_does_not_outlive_the_server(processes, request_of):
    """However the server ends, and whatever the model is doing then."""
    file = processes.write(COUNTING) / "model.py"
    process = ChildProcess(CHILD, "a model", start_secs=WAIT_SECS)
    arguments = {"model_name": "m", "model_instance_name": "m_0_0"}
    process.link.send("serve", str(file), str(file.parent), arguments, ["OUT"], False)
    heard = []
    while "started" not in heard:
        heard += [kind for kind, _ in process.link.receive()]
    (tensor,) = request_of(-2)[0].inputs.values()
    entry = (1, ("", 0, 0, 0, False), {}, [], process.link.pack([tensor]), None)
    process.link.send("execute", [(2, [entry])])
    process.link.close()
    assert process._process.wait(WAIT_SECS) == 1


def test_an_interpreter_that_does_not_come_up(processes, tmp_path, monkeypatch):
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\nexec sleep 600\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(sleeper))
    with pytest.raises(Internal, match="ended before the model was initialised"):
        processes.load(COUNTING, settings={"stub-timeout-seconds": "0.2"})


def test_a_process_that_ends_before_it_gets_its_model(processes, tmp_path, monkeypatch):
    ended = tmp_path / "python"
    ended.write_text("#!/bin/sh\nexit 3\n")
    ended.chmod(0o755)
    send = Link.send

    def late(link, *message, **options):
        wait_until(lambda: link._channel._closed, "the process has ended")
        send(link, *message, **options)

    monkeypatch.setattr("sys.executable", str(ended))
    monkeypatch.setattr(Link, "send", late)
    with pytest.raises(Internal, match=r"before the model was initialised: .* status 3"):
        processes.load(COUNTING)


def test_a_process_that_ends_after_initialize_is_restarted(processes, ask, monkeypatch):
    monkeypatch.setattr("shoal.link.supervisor._FIRST_REST_SECS", 0.01)
    model = processes.load(COUNTING)
    first = model.executor.pid
    wait_started = PythonProcess.wait_started
    unlucky = []

    def ends_at_once(serving):
        wait_started(serving)
        if not unlucky:
            unlucky.append(serving.pid)
            os.kill(serving.pid, signal.SIGKILL)
            wait_until(lambda: serving._pipe_reader._closed, "its end is reported")

    monkeypatch.setattr(PythonProcess, "wait_started", ends_at_once)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: model.executor.pid not in (None, first, *unlucky), "the third one runs")
    assert ask(model, 1).outputs[0].array[0, 1] == model.executor.pid
    assert unlucky


def test_a_process_that_ends_after_initialize_fails_the_load(processes, monkeypatch):
    wait_started = PythonProcess.wait_started

    def ends_at_once(serving):
        wait_started(serving)
        os.kill(serving.pid, signal.SIGKILL)
        wait_until(lambda: serving._pipe_reader._closed, "its end is reported")

    monkeypatch.setattr(PythonProcess, "wait_started", ends_at_once)
    with pytest.raises(Internal, match=r"after it was started: signal 9 \(killed\)"):
        processes.load(COUNTING)


def test_the_process_has_nothing_of_the_servers_libraries(processes, ask):
    model = processes.load(
        """
        import sys

        HEAVY = ("onnxruntime", "google.protobuf", "orjson", "uvloop", "httptools", "psutil")

        class TritonPythonModel:
            def execute(self, requests):
                found = [name for name in HEAVY if name in sys.modules]
                assert not found, found
                return [answer([[len(sys.argv)]])]
        """
    )
    assert ask(model, 1).outputs[0].array.item() == 1


def test_several_batches_go_with_one_message(processes, request_of):
    model = processes.load(COUNTING)
    made = [request_of(n) for n in range(1, 6)]
    model.several(*[[request] for request, _ in made])
    counts = [collector.wait().outputs[0].array[0, 0] for _, collector in made]
    assert counts == [1, 2, 3, 4, 5]  # each was an execution of its own
    reading = model.statistics.read()
    assert reading.execution_count == 5
    assert reading.success_count == 5
    assert reading.compute_infer_ns > 0


def test_responses_do_not_wait_for_a_slow_batch_behind_them(processes, request_of):
    model = processes.load(
        """
        import pathlib, time

        class TritonPythonModel:
            def execute(self, requests):
                go_on = pathlib.Path(pb_utils.get_model_dir()) / "go_on"
                while value(requests[0])[0, 0] and not go_on.exists():
                    time.sleep(0.001)
                return [answer([[1]]) for _ in requests]
        """
    )
    quick, first = request_of(0)
    slow, second = request_of(1)
    runner = threading.Thread(target=model.several, args=([quick], [slow]))
    runner.start()
    first.wait()
    assert not second.answered
    (processes.folder / "m" / "1" / "go_on").touch()
    assert second.wait().error is None
    runner.join(WAIT_SECS)


def test_a_crash_fails_all_that_were_sent_along(processes, request_of):
    model = processes.load(COUNTING)
    made = [request_of(n) for n in (1, -1, 2)]
    model.several(*[[request] for request, _ in made])
    errors = [collector.wait().error for _, collector in made]
    assert [error is not None for error in errors] in ([False, True, True], [True, True, True])
    assert errors[2].message.startswith(UNHEALTHY)
