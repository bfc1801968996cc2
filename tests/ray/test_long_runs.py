"""Faults and changes of a cluster of several nodes: killed replicas, nodes and ingresses, updates.

Clients send requests all the time and check every answer. Wrong ones are never allowed; lost ones
only where a process with requests was killed, and at most those that were on their way.
"""

import os
import signal
import time

import psutil
import pytest

from shoal.errors import Unavailable
from shoal.ray.cluster import Cluster
from tests.chaos.schedule import long_run
from tests.ray.cluster import Application, Clients, wait_for, write_model

pytestmark = [long_run, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(150)]

CLIENTS = 9


@pytest.fixture(scope="module")
def nodes():
    """Ray's cluster: a head with the ingress, and five nodes for one replica each."""
    from ray.cluster_utils import Cluster as Nodes

    import ray

    made = Nodes(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "include_dashboard": False, "labels": {"place": "head"}},
    )
    workers = [made.add_node(num_cpus=1, labels={"place": "worker"}) for _ in range(5)]
    made.wait_for_nodes()
    yield made, workers
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def cluster(nodes):
    """Our connection to it."""
    connected = Cluster(nodes[0].address)
    yield connected
    connected.close()


@pytest.fixture
def ports(free_ports):
    return free_ports(2)


@pytest.fixture
def repository(tmp_path):
    write_model(tmp_path, "double")
    write_model(tmp_path, "triple", factor=3)
    return tmp_path


@pytest.fixture
def document(repository, ports):
    return {
        "repository": str(repository),
        "groups": [
            {
                "max_replicas": 3,
                "cpus": 1,
                "labels": {"place": "worker"},
                "drain_secs": 1.0,
                "options": ["--model-control-mode=explicit", "--load-model=double"],
                "scaling": {"interval_secs": 0.3, "down_delay_secs": 3},
            }
        ],
        "ingress": {
            "host": "127.0.0.1",
            "http_port": ports[0],
            "grpc_port": ports[1],
            "metrics_port": 0,
            "node_labels": {"place": "head"},
        },
    }


@pytest.fixture
def start(cluster, document, ports):
    """Starts an application with changes of its group; it is deleted when the test ends."""
    names = []

    def begin(**changes):
        name = f"shoal{len(names)}"
        names.append(name)
        cluster.start(changed(document, **changes), name)
        return Application(name, *ports)

    yield begin
    for name in names:
        cluster.delete(name)


def changed(document, **changes):
    (group,) = document["groups"]
    return {**document, "groups": [{**group, **changes}]}


def test_from_one_replica_to_three_and_back(start):
    application = start()
    application.wait_for_replicas(1)
    with Clients(application, "double", CLIENTS) as clients:
        application.wait_for_replicas(3)
        clients.wait_for_answers(200)
    with Clients(application, "double", 1, pause_secs=0.1) as few:
        application.wait_for_replicas(1)
        few.wait_for_answers(50)
    for one in (clients, few):
        assert one.counts["lost"] == one.counts["wrong"] == 0, one.errors


@pytest.mark.parametrize("what", ["replica", "server"])
def test_a_killed_replica_is_replaced(start, repository, what):
    application = start(min_replicas=3)
    before = application.wait_for_replicas(3)
    with Clients(application, "double", CLIENTS) as clients:
        clients.wait_for_answers(100)
        if what == "replica":
            killed = application.actor_pids("default")[0]
        else:
            killed = server_pids(repository)[0]
        os.kill(killed, signal.SIGKILL)
        began = time.monotonic()
        after = replaced(application, before)
        print(f"a killed {what} was replaced after {time.monotonic() - began:.1f} s")
        clients.wait_for_answers(100)
    print(clients.counts)
    assert len(after.keys() & before.keys()) == 2
    assert_only_in_flight_are_lost(clients)


def test_a_killed_node_is_survived(start, nodes):
    made, workers = nodes
    application = start(min_replicas=3)
    before = application.wait_for_replicas(3)
    with Clients(application, "double", CLIENTS) as clients:
        clients.wait_for_answers(100)
        busy = next(one for one in workers if replicas_of(one))
        workers.remove(busy)
        made.remove_node(busy, allow_graceful=False)
        workers.append(made.add_node(num_cpus=1, labels={"place": "worker"}))
        began = time.monotonic()
        replaced(application, before)
        print(f"the replica of a killed node was replaced after {time.monotonic() - began:.1f} s")
        clients.wait_for_answers(100)
    print(clients.counts)
    assert_only_in_flight_are_lost(clients)


def test_a_killed_ingress_loses_no_request(start):
    application = start(min_replicas=2)
    two = application.wait_for_replicas(2)
    assert application.call("POST", "/v2/repository/models/triple/load")[0] == 200
    with Clients(application, "double", CLIENTS) as clients:
        clients.wait_for_answers(50)
        (killed,) = application.actor_pids("Ingress")
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: application.actor_pids("Ingress") not in ([killed], []), "a new ingress")
        began = time.monotonic()
        assert application.wait_for_replicas(3).keys() > two.keys()
        print(f"a third replica served {time.monotonic() - began:.1f} s after the new ingress")
        clients.wait_for_answers(100)
    assert clients.counts["lost"] == clients.counts["wrong"] == 0, clients.errors
    # The third one has had the call from before.
    index = application.call("POST", "/v2/repository/index")[1]
    assert {"name": "triple", "version": "1", "state": "READY"} in index


def test_a_killed_haproxy_is_started_again(start):
    application = start(min_replicas=2)
    application.wait_for_replicas(2)
    with Clients(application, "double", CLIENTS) as clients:
        clients.wait_for_answers(50)
        (pid,) = haproxy_pids(application)
        os.kill(pid, signal.SIGKILL)
        clients.wait_for_answers(100)
    assert clients.counts["wrong"] == 0
    assert haproxy_pids(application) != [pid]


def test_a_new_config_replaces_replicas_one_after_the_other(start, cluster, document):
    application = start(min_replicas=2, max_replicas=2)
    before = application.wait_for_replicas(2)
    with Clients(application, "double", CLIENTS) as clients:
        clients.wait_for_answers(50)
        # The ingress and HAProxy are replaced, too: they have more slots then.
        update = changed(document, min_replicas=2, max_replicas=3, exit_timeout_secs=20)
        cluster.start(update, application.name)
        wait_for(
            lambda: (
                len(application.serving()) >= 2 and not application.serving().keys() & before.keys()
            ),
            "all replicas are replaced",
        )
        clients.wait_for_answers(100)
    assert clients.counts["lost"] == clients.counts["wrong"] == 0, clients.errors


def test_a_config_that_cannot_start_leaves_the_old_replicas(start, cluster, document):
    application = start(min_replicas=2, max_replicas=2)
    before = application.wait_for_replicas(2)
    options = ["--model-control-mode=explicit", "--load-model=no_such_model"]
    broken = changed(document, min_replicas=2, max_replicas=2, options=options)
    with Clients(application, "double", CLIENTS) as clients:
        clients.wait_for_answers(50)
        with pytest.raises(Unavailable, match="no_such_model"):
            cluster.start(broken, application.name)
        clients.wait_for_answers(100)
    assert clients.counts["lost"] == clients.counts["wrong"] == 0, clients.errors
    assert application.serving().keys() == before.keys()
    whole = changed(document, min_replicas=2, max_replicas=2)
    cluster.start(whole, application.name)
    application.wait_for_replicas(2)


def test_a_model_is_updated_on_all_replicas(start, repository):
    application = start(min_replicas=2, max_replicas=2)
    application.wait_for_replicas(2)
    with Clients(application, "double", CLIENTS, factors=(2, 5)) as clients:
        clients.wait_for_answers(50)
        write_model(repository, "double", factor=5)
        assert application.call("POST", "/v2/repository/models/double/load")[0] == 200
        clients.factors = {5}  # of requests that are sent from now on
        clients.wait_for_answers(100)
    assert clients.counts["lost"] == clients.counts["wrong"] == 0, clients.errors


def replaced(application, before):
    """Wait until as many as before serve, with a new one among them."""
    return wait_for(
        lambda: (
            len(now := application.serving()) == len(before) and now.keys() - before.keys() and now
        ),
        "the killed replica is replaced",
    )


def assert_only_in_flight_are_lost(clients):
    assert clients.counts["wrong"] == 0
    assert clients.counts["lost"] <= CLIENTS, clients.errors
    # HAProxy closes a connection that was used before, so that clients may send again.
    assert {status for status, _ in clients.errors} <= {0, 502}, clients.errors


def processes():
    for process in psutil.process_iter():
        try:
            yield process, process.cmdline()
        except psutil.Error:
            continue


def server_pids(repository):
    """The processes of the servers of a repository."""
    return [process.pid for process, words in processes() if str(repository) in words]


def haproxy_pids(application):
    """The process that listens at the port of an application."""
    return [
        connection.pid
        for connection in psutil.net_connections("tcp4")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr.port == application.http_port
    ]


def replicas_of(node):
    """The replicas on a node."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    words = [child.cmdline()[:1] for child in raylet.children()]
    return [one for one in words if one and "ServeReplica" in one[0]]
