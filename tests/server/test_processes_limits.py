"""A server of several processes has one set of limits, quotas and metrics."""

from __future__ import annotations

import contextlib
import http.client
import json
import re

import pytest

from shoal.access.entry import KeyEntry, digest_of
from shoal.access.key_file import add_key
from shoal.testing import WAIT_SECS
from shoal.testing.server import wait_until
from tests.chaos.server import ADDRESS, ChaosServer

MOST_CONNECTIONS = 8
REQUESTS = 5
MEMORY = "shoal_server_process_resident_memory_bytes"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    (folder / "models").mkdir()
    keys = folder / "keys"
    for name, limits in (
        ("few", {"requests_per_second": 0.0001, "burst": REQUESTS}),
        ("many", {}),
        ("some", {"models": ("a*",)}),
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


def metric(server, name, text=None):
    """The samples of a family, by the text of their labels."""
    found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text or server.metrics(), re.MULTILINE)
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


def test_the_metrics_are_those_of_the_whole_server(server):
    """Also of a front end that has ended, as far as it had reported."""
    before = metric(server, "shoal_key_requests_total").get('key="many"', 0)
    refused = metric(server, "shoal_connections_refused_total")
    with contextlib.ExitStack() as held:
        lines = [connect(server, held) for _ in range(MOST_CONNECTIONS)]
        assert {get(line, "/v2", "many")[0] for line in lines} == {200}
        assert metric(server, "shoal_connections")['protocol="http"'] == MOST_CONNECTIONS
        spread = metric(server, "shoal_server_process_connections")
        assert set(spread) == {'process="frontend-0"', 'process="frontend-1"'}
        assert sum(spread.values()) == MOST_CONNECTIONS
        assert metric(server, "shoal_connections_limit") == {"": MOST_CONNECTIONS}
        counted = {'key="many"': before + MOST_CONNECTIONS}
        assert counted.items() <= metric(server, "shoal_key_requests_total").items()
    server.replace_one("frontend")
    wait_until(
        lambda: len(metric(server, "shoal_server_process_connections")) == 2, "it has reported"
    )
    assert counted.items() <= metric(server, "shoal_key_requests_total").items()
    assert metric(server, "shoal_connections_refused_total") == refused


def test_each_process_has_its_own_figures_and_all_of_them_are_one_sum(server):
    names = {f'process="{name}"' for name in ("supervisor", "engine", "frontend-0", "frontend-1")}

    def complete():
        text = server.metrics()
        return text if set(metric(server, MEMORY, text)) == names else None

    text = wait_until(complete, "all processes have been read")
    memory = metric(server, MEMORY, text)
    assert metric(server, "process_resident_memory_bytes", text)[""] == sum(memory.values())
    cpu = metric(server, "shoal_server_process_cpu_seconds_total", text)
    assert set(cpu) == names
    # Added up in another order, which may change the last digit.
    assert metric(server, "process_cpu_seconds_total", text)[""] >= sum(cpu.values()) - 1e-6 > 0


def test_the_console_has_the_errors_of_all_front_ends(server):
    """Numbered once, whoever asks, and only those that the key permits."""

    def console(after, key="many"):
        with contextlib.ExitStack() as held:
            status, text = get(connect(server, held), f"/v2/console?errors_after={after}", key)
            assert status == 200
            return json.loads(text)

    newest = max([error["number"] for error in console(0)["errors"]], default=0)
    for _ in range(6):
        with contextlib.ExitStack() as held:
            assert get(connect(server, held), "/v2/models/none", "many")[0] == 404
    states = [console(newest) for _ in range(6)]
    assert len({state["server"]["started_ms"] for state in states}) == 1
    errors = states[0]["errors"]
    assert [(error["model"], error["status"], error["count"]) for error in errors] == [
        ("none", "404", 6)
    ]
    assert all(state["errors"] == errors for state in states)
    assert console(errors[0]["number"])["errors"] == []
    assert console(newest, "some")["errors"] == []
    machine = states[0]["machine"]
    processes = {one["name"]: one for one in machine["processes"]}
    assert set(processes) == {"supervisor", "engine", "frontend-0", "frontend-1"}
    assert len({one["pid"] for one in processes.values()}) == 4
    assert sum(one["resident_bytes"] for one in machine["processes"]) > 0
    assert processes["engine"]["connections"] is None
    assert sum(processes[f"frontend-{number}"]["connections"] for number in (0, 1)) >= 1


def test_the_log_has_one_line_for_what_all_front_ends_do(server):
    wait_until(lambda: '"the server is ' in server.log, "the start is complete")
    for line in ("listening for http on", "Started HTTPService at", '"the server is '):
        assert server.log.count(line) == 1, line
