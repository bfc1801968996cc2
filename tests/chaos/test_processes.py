"""Processes that are killed or stand still: models' own and the server's."""

from __future__ import annotations

import time

from shoal.testing.server import wait_until
from tests.chaos.checker import Checker
from tests.chaos.faults import kill, model_processes, paused
from tests.chaos.models import EACH_ISOLATED, KILLED
from tests.chaos.schedule import PAUSE_SECS, rounds

NEIGHBOUR = "onnx"


@EACH_ISOLATED
def test_a_killed_model_process_costs_only_requests_in_flight(serve, settled, chance, isolated):
    server = serve(isolated, NEIGHBOUR)
    before = settled(server, isolated, NEIGHBOUR)
    with Checker(server, isolated, NEIGHBOUR) as checker:
        checker.tolerate(isolated, *KILLED)
        for _ in rounds(2):
            kill(chance.choice(model_processes(server)))
            checker.wait_for_answers(5, NEIGHBOUR)
            checker.wait_for_answers(5, isolated)  # it was started again
    checker.check()
    server.check_holds_no_more_than(before)
    server.checked_stop()


@EACH_ISOLATED
def test_a_model_process_that_stands_still_delays_its_own_requests(serve, chance, isolated):
    server = serve(isolated, NEIGHBOUR)
    with Checker(server, isolated, NEIGHBOUR) as checker:
        for _ in rounds():
            with paused(chance.choice(model_processes(server))):
                time.sleep(PAUSE_SECS)
                checker.wait_for_answers(5, NEIGHBOUR)
            checker.wait_for_answers(5)
    checker.check()
    server.checked_stop()


def test_a_server_that_stands_still_loses_nothing(serve):
    server = serve("python", NEIGHBOUR, "thread")
    with Checker(server, "python", NEIGHBOUR, "thread") as checker:
        for _ in rounds():
            with paused(server.process.pid):
                time.sleep(PAUSE_SECS)
            checker.wait_for_answers(5)
            with paused(server.process.pid, *model_processes(server)):
                time.sleep(PAUSE_SECS)
            checker.wait_for_answers(5)
    checker.check()
    server.checked_stop()


@EACH_ISOLATED
def test_model_processes_end_with_a_server_that_is_killed(serve, isolated):
    server = serve(isolated)
    assert model_processes(server)
    kill(server.process.pid)
    server.process.wait()
    wait_until(lambda: not server.members(), "the model processes have ended")
