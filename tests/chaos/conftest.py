"""What the chaos tests share: servers that are stopped at the end, and the order of the tests."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos import models, schedule
from tests.chaos.checker import Checker
from tests.chaos.server import ChaosServer


def pytest_collection_modifyitems(items):
    """In `make chaos` the order is random, by the seed, and the minutes are divided."""
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    schedule.divide_among(len(ours))
    if schedule.MINUTES:
        others = [item for item in items if item not in ours]
        random.Random(schedule.SEED).shuffle(ours)
        items[:] = others + ours


@pytest.fixture
def chance(request):
    """Random choices of a test, which follow from the seed and its name."""
    return random.Random(f"{schedule.SEED} {request.node.name}")


@pytest.fixture
def repository(tmp_path):
    """The repository of the test's server."""
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def serve(tmp_path, repository):
    """Start a server of some models, by their names in tests.chaos.models."""
    started = []

    def start(*names, options=(), paths=(), **more):
        for name in names:
            models.add(repository, name)
        mode = "--model-control-mode=explicit"
        paths = [str(path) for path in (repository, *paths)]
        server = ChaosServer(tmp_path, *paths, mode, "--load-model=*", *options, **more)
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def settled():
    """What a server holds after some traffic, when all connections have ended."""

    def measure(server, *names):
        with Checker(server, *names):
            pass
        server.wait_for_no_connections()
        return server.held()

    return measure
