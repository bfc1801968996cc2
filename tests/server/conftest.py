"""What the tests of the running server share: an empty repository and a backend held by the test."""

from __future__ import annotations

import threading

import pytest

from shoal.repository.poller import RepositoryPoller
from shoal.testing.server import running_server
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.held_model import ONE
from tests.support.http_listener import ListenerThread
from tests.support.repositories import add_fake


@pytest.fixture
def repository(tmp_path):
    """An empty model repository."""
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def polls(monkeypatch):
    """Waits until the server has polled its repositories this number of times, from now on."""
    done = threading.Semaphore(0)
    poll_once = RepositoryPoller.poll_once

    def counted(poller):
        try:
            return poll_once(poller)
        finally:
            done.release()

    def wait(count):
        while done.acquire(blocking=False):
            pass
        for _ in range(count):
            assert done.acquire(timeout=WAIT_SECS)

    monkeypatch.setattr(RepositoryPoller, "poll_once", counted)
    return wait


@pytest.fixture
def fake():
    """A backend whose executions the test holds; they continue when the test ends."""
    backend = FakeBackend()
    yield backend
    backend.gate.set()


@pytest.fixture
def running(repository, fake):
    """A server of `repository` in explicit mode, which has loaded nothing yet.

    Files whose tests need another server define a `running` of their own.
    """
    with running_server(
        repository, backends=fake.registry(), model_control_mode="explicit"
    ) as server:
        yield server


@pytest.fixture
def serve_held(tmp_path, fake):
    """Start a server of one fake model, "held", with the config that the test gives."""

    def start(config, instances=ONE, **more):
        add_fake(tmp_path, "held", config + instances, **more)
        return running_server(tmp_path, backends=fake.registry())

    return start


@pytest.fixture(params=["asyncio", "uvloop"])
def http_listener(request):
    """An HTTP listener under each kind of event loop; at its end nothing may be left on the loop."""
    thread = ListenerThread(request.param)
    yield thread
    thread.stop()
