"""Faults of all kinds, one after the other in random order, under the same traffic."""

from __future__ import annotations

import time

from tests.chaos import models
from tests.chaos.checker import Checker
from tests.chaos.faults import (
    address_space_left,
    connect,
    kill,
    model_processes,
    no_descriptors_left,
    paused,
    reset,
)
from tests.chaos.schedule import long_run, rounds
from tests.support.repositories import touch

NAMES = ("onnx", "thread", "python", "onnx_isolated")
SPARE = "spare"  # reloaded and corrupted; the checker does not ask it


def kill_a_model(server, repository, chance):
    kill(chance.choice(model_processes(server)))


def pause_a_model(server, repository, chance):
    with paused(chance.choice(model_processes(server))):
        time.sleep(chance.uniform(0.1, 1.0))


def pause_the_server(server, repository, chance):
    with paused(server.process.pid):
        time.sleep(chance.uniform(0.1, 1.0))


def take_descriptors(server, repository, chance):
    with no_descriptors_left(server):
        for line in [connect(server.http_port) for _ in range(chance.randint(1, 20))]:
            line.close()


def take_memory(server, repository, chance):
    with address_space_left(server, 64 << 20):
        time.sleep(chance.uniform(0.1, 0.5))


def vanish(server, repository, chance):
    for _ in range(chance.randint(1, 20)):
        line = connect(chance.choice([server.http_port, server.grpc_port]))
        line.sendall(b"POST /v2/models/onnx/infer HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
        reset(line)


def reload(server, repository, chance):
    file = repository / SPARE / "1" / "model.onnx"
    whole = file.read_bytes()
    corrupt = chance.random() < 0.5
    file.write_bytes(whole[: len(whole) // 2] if corrupt else whole)
    touch(file)
    assert (server.load(SPARE).status == 200) is not corrupt
    file.write_bytes(whole)
    touch(file)
    assert server.load(SPARE).status == 200


FAULTS = (
    kill_a_model,
    pause_a_model,
    pause_the_server,
    take_descriptors,
    take_memory,
    vanish,
    reload,
)


@long_run
def test_one_fault_after_the_other(serve, settled, repository, chance):
    models.add(repository, SPARE)
    server = serve(*NAMES)
    before = settled(server, *NAMES)
    with Checker(server, *NAMES) as checker:
        for name in ("python", "onnx_isolated"):
            checker.tolerate(name, *models.KILLED)
        for _ in rounds(len(FAULTS)):
            fault = chance.choice(FAULTS)
            print(fault.__name__)
            fault(server, repository, chance)
            checker.wait_for_answers(2)
    checker.check()
    server.check_holds_no_more_than(before)
    server.checked_stop()
