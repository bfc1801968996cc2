"""A server of several processes has one set of limits, quotas and metrics."""

from __future__ import annotations

import contextlib
import http.client
import re

import pytest

from shoal.access.entry import KeyEntry, digest_of
from shoal.access.key_file import add_key
from shoal.testing import WAIT_SECS
from shoal.testing.server import wait_until
from tests.chaos.server import ADDRESS, ChaosServer

MOST_CONNECTIONS = 8
REQUESTS = 5


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    (folder / "models").mkdir()
    keys = folder / "keys"
    for name, limits in (
        ("few", {"requests_per_second": 0.0001, "burst": REQUESTS}),
        ("many", {}),
    ):
        add_key(keys, KeyEntry(name, digest_of(name.encode()).hex(), apis=("*",), **limits))
    started = ChaosServer(
        folder,
        str(folder / "models"),
        "--frontend-processes=2",
        f"--api-keys={keys}",
        "--keyless-api=health,metrics",
        f"--max-connections={MOST_CONNECTIONS}",
        f"--access-log={folder / 'access.log'}",
    )
    started.folder = folder
    yield started
    started.checked_stop()


def connect(server, held):
    line = http.client.HTTPConnection(ADDRESS, server.http_port, timeout=WAIT_SECS)
    held.callback(line.close)
    line.connect()
    return line


def get(line, path, key=""):
    line.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
    response = line.getresponse()
    return response.status, response.read().decode()


def metric(server, name):
    """The samples of a family, by the text of their labels."""
    found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", server.metrics(), re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def test_connections_are_limited_for_the_whole_server(server):
    with contextlib.ExitStack() as held:
        lines = [connect(server, held) for _ in range(MOST_CONNECTIONS + 4)]
        answers = [get(line, "/v2/health/live") for line in lines]
        assert [status for status, _ in answers].count(200) == MOST_CONNECTIONS
        texts = {text for status, text in answers if status == 503}
        assert len(texts) == 1
        assert f"more than {MOST_CONNECTIONS} connections" in texts.pop()
    wait_until(lambda: server.get("/v2/health/live").status == 200, "there is room again")


def test_a_quota_is_that_of_the_whole_server(server):
    statuses = []
    for _ in range(3 * REQUESTS):
        with contextlib.ExitStack() as held:
            statuses.append(get(connect(server, held), "/v2", "few")[0])
    assert statuses == [200] * REQUESTS + [429] * 2 * REQUESTS
