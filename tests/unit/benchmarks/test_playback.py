"""Requests that are played back without sockets get the responses that clients get."""

from __future__ import annotations

import dataclasses

import pytest
from benchmarks import playback
from benchmarks.peers import repository
from benchmarks.peers.base import WrongAnswer

from shoal.testing.server import running_server

REQUESTS = 64


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    workload = playback.CASES["http-1"].workload
    repository.write_all(folder, workload, "onnxruntime", "model.onnx", workload.model_path)
    with running_server(folder) as made:
        yield made


async def play(server, case, count):
    with playback.player(server, case) as player:
        await player.settle()
        before = served(server)
        return await player.play(count), served(server) - before


def served(server):
    (reading,) = server.engine.statistics("add_sub")
    return int(reading["inference_stats"]["success"]["count"])


@pytest.mark.parametrize("name", ["http-1", "http-4", "grpc-1", "grpc-16", "json-64"])
def test_every_request_is_served(running, name):
    cpu_us, count = running.run(play(running.server, playback.CASES[name], REQUESTS))
    assert count == REQUESTS
    assert cpu_us > 0


@pytest.mark.parametrize("name", ["http-4", "grpc-16"])
def test_a_wrong_response_is_noticed(running, name):
    case = playback.CASES[name]
    workload = dataclasses.replace(case.workload)
    workload.__dict__["outputs"] = {"OUTPUT0": case.workload.outputs["OUTPUT1"]}
    case = dataclasses.replace(case, workload=workload)
    with pytest.raises(WrongAnswer, match="OUTPUT0"):
        running.run(play(running.server, case, REQUESTS))
