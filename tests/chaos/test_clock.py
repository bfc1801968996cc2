"""A wall clock that is set forwards and backwards: what is measured or awaited does not notice."""

from __future__ import annotations

import mmap
import time
from pathlib import Path

import numpy as np
import pytest

from tests.chaos.checker import WIDTH, Checker
from tests.chaos.schedule import long_run, rounds
from tests.support import onnx_models, sequences
from tests.support.client import Infer, outputs
from tests.support.repositories import add_onnx

PROGRAM = Path(__file__).with_name("stepped_clock.py")
HOUR = 3600.0
STEPS = (-HOUR, HOUR, -30 * 24 * HOUR, 0.5, -0.5, 365 * 24 * HOUR, 0.0)
# A request waits for others this long, unless a batch is full.
WAITING = "max_batch_size: 64 dynamic_batching { max_queue_delay_microseconds: 20000 }"


@pytest.fixture
def offset_file(tmp_path):
    """By how many seconds the server's wall clock is wrong: one float64."""
    file = tmp_path / "offset"
    file.write_bytes(bytes(8))
    return file


@pytest.fixture
def wall_clock(offset_file):
    """The same, to be set by the test."""
    with offset_file.open("r+b") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 8)).cast("d")


def test_traffic_while_the_clock_steps(serve, repository, offset_file, wall_clock):
    add_onnx(repository, "waiting", onnx_models.plus(1, WIDTH), WAITING)
    server = serve("onnx", "thread", "python", program=(str(PROGRAM), str(offset_file)))
    names = ("onnx", "thread", "python", "waiting")
    begun = time.monotonic_ns()
    with Checker(server, *names) as checker:
        for _ in rounds():
            for step in STEPS:
                wall_clock[0] = step
                checker.wait_for_answers(2)
    checker.check()
    took_ns = time.monotonic_ns() - begun
    for entry in server.statistics().values():
        for name, stat in entry["inference_stats"].items():
            assert stat["ns"] <= stat["count"] * took_ns, (entry["name"], name, stat)
    server.checked_stop()


@pytest.mark.parametrize("step", [HOUR, pytest.param(-HOUR, marks=long_run)])
def test_a_sequence_does_not_end_because_the_clock_steps(
    serve, repository, offset_file, wall_clock, step
):
    config = sequences.total_config("oldest { max_candidate_sequences: 4 }")
    add_onnx(repository, "total", sequences.running_total(), config)
    server = serve(program=(str(PROGRAM), str(offset_file)))
    one = np.ones((1, 1), np.int32)
    for number in range(1, 4):
        infer = Infer(sequence_id=7, sequence_start=number == 1).add("INPUT", one).want("OUTPUT")
        answer = server.call("POST", "/v2/models/total/infer", infer.body()[0])
        assert outputs(answer)["OUTPUT"].tolist() == [[number]]
        wall_clock[0] += step
    server.checked_stop()


@long_run
def test_responses_show_the_new_time(serve, offset_file, wall_clock):
    server = serve("onnx", program=(str(PROGRAM), str(offset_file)))
    wall_clock[0] = 365 * 24 * HOUR
    assert server.get("/v2/console").json["time_ms"] > (time.time() + 364 * 24 * HOUR) * 1000
    server.checked_stop()
