"""A real Ray, shortly: an application from its start to its end. `make chaos` has the long runs."""

import contextlib
import os
import signal

import numpy as np
import psutil
import pytest

from shoal.client import Client, ConnectionFailed
from tests.ray.cluster import Application, Clients, start_ray, wait_for, write_model

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of Ray, which has many
    pytest.mark.timeout(300),  # Ray starts ten processes, which a busy machine takes minutes for
]


@pytest.fixture
def repository(tmp_path):
    write_model(tmp_path, "double")
    write_model(tmp_path, "triple", factor=3)
    return tmp_path


def test_from_start_to_end(repository, free_ports):
    http_port, grpc_port = free_ports(2)
    document = {
        "repository": str(repository),
        "groups": [
            {
                "max_replicas": 2,
                "cpus": 0.5,
                "drain_secs": 0.5,
                "options": ["--model-control-mode=explicit", "--load-model=double"],
                "scaling": {"interval_secs": 0.3, "down_delay_secs": 600},
            }
        ],
        "ingress": {
            "host": "127.0.0.1",
            "http_port": http_port,
            "grpc_port": grpc_port,
            "metrics_port": 0,
        },
    }
    cluster = start_ray()
    try:
        cluster.start(document, "short")
        application = Application("short", http_port, grpc_port)
        before = application.wait_for_replicas(1)
        with Clients(application, "double", 6) as clients, contextlib.ExitStack() as stack:
            two = application.wait_for_replicas(2)
            assert set(before) < set(two)
            clients.wait_for_answers(50)
            assert clients.counts["lost"] == clients.counts["wrong"] == 0, clients.errors

            # A control call reaches both, and the replica that replaces one of them.
            assert application.call("POST", "/v2/repository/models/triple/load")[0] == 200
            killed = application.actor_pids("default")[0]
            direct = [
                stack.enter_context(Client(f"{scheme}://127.0.0.1:{http_port}"))
                for scheme in ("shoal+ray", "shoal+ray+grpc")
            ]
            assert _lost_calls(direct, 3) == 0
            os.kill(killed, signal.SIGKILL)
            assert _lost_calls(direct, 15) <= 2  # each client may have had one there
            three = wait_for(
                lambda: len(new := application.serving()) == 2 and new.keys() - two.keys() and new,
                "the killed replica is replaced",
            )
            assert len(three.keys() & two.keys()) == 1
            assert _lost_calls(direct, 3) == 0
            clients.wait_for_answers(50)
        # Only requests that the killed one had at that moment.
        assert clients.counts["wrong"] == 0
        assert clients.counts["lost"] <= 6, clients.errors
        # HAProxy closes a connection that was used before, so that clients may send again.
        assert {status for status, _ in clients.errors} <= {0, 502}
        for path in ("double", "triple"):
            index = application.call("POST", "/v2/repository/index")[1]
            assert {"name": path, "version": "1", "state": "READY"} in index
        # Ray Serve and the system notice the end of the killed one when they get to it.
        wait_for(
            lambda: cluster.describe("short")["groups"]["default"]["states"] == {"RUNNING": 2},
            "Ray Serve counts two replicas",
        )
        servers = wait_for(lambda: len(found := _servers(repository)) == 2 and found, "two servers")
        cluster.delete("short")
        assert all(not process.is_running() for process in servers)
    finally:
        cluster.close()


def _lost_calls(clients, count):
    """Have clients call replicas directly and check the answers; how many got none."""
    lost = []
    for number in range(count):
        for client in clients:
            try:
                answer = client.infer("double", {"X": np.array([number], np.int32)})
                assert answer["Y"] == 2 * number
            except ConnectionFailed as error:
                lost.append(str(error))
    assert all("closed the connection before it answered" in text for text in lost), lost
    return len(lost)


def _servers(repository):
    """The processes of the servers of a repository."""
    return [process for process in psutil.process_iter() if str(repository) in _words(process)]


def _words(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []
