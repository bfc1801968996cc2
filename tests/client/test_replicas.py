"""`shoal+ray://`: clients that choose a replica for each call, with three servers and an ingress."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    InvalidInput,
    ProtocolError,
    ServerError,
    Unavailable,
)
from shoal.inprocess.loop import LoopThread
from shoal.testing.server import running_server, wait_until
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.replicas import ONE, Caller, Ingress, closed_address, hanging_up, listed
from tests.support.repositories import add_fake

SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 60000000 }\n"


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Three servers whose answers are their numbers."""
    folder = tmp_path_factory.mktemp("models")
    add_fake(folder, "who")
    add_fake(folder, "steps", SEQUENCES)
    with contextlib.ExitStack() as stack:
        made = []
        for number in range(3):
            fake = FakeBackend(
                lambda inputs, _, number=number: [np.full_like(inputs["INPUT0"], number)]
            )
            running = stack.enter_context(running_server(folder, backends=fake.registry()))
            stack.callback(fake.gate.set)
            made.append(SimpleNamespace(fake=fake, running=running))
        yield made


@pytest.fixture(scope="module")
def loop():
    thread = LoopThread("shoal-test-client")
    yield thread
    thread.close(WAIT_SECS)


@pytest.fixture
def ingress(servers):
    made = Ingress()
    made.replicas = [
        listed(f"r{number}", server.running.http_address, server.running.grpc_address)
        for number, server in enumerate(servers)
    ]
    yield made
    if made.replicas is not None:
        made.stop()


@pytest.fixture(
    params=[(kind, protocol) for kind in (Client, AsyncClient) for protocol in ("http", "grpc")],
    ids=lambda param: f"{param[0].__name__}-{param[1]}",
)
def caller(request, ingress, loop):
    kind, protocol = request.param
    url = f"shoal+ray://{ingress.address}"
    made = Caller(kind, loop, url, protocol=protocol, api_key="key", retries=0)
    yield made
    made.do(made.client.close())


# ---- the choice


def test_calls_are_spread(caller, ingress):
    counts = Counter(caller.who() for _ in range(60))
    assert sorted(counts) == [0, 1, 2]
    assert set(ingress.paths) == {"/v2/replicas"}
    assert ingress.keys == {"Bearer key"}
    assert repr(caller.client).endswith(f"://{ingress.address}')")
    assert "shoal+ray" in repr(caller.client)


def test_a_busy_replica_gets_no_more_calls(caller, servers):
    caller.who()
    for server in servers:
        while server.fake.started.acquire(blocking=False):
            pass
        server.fake.gate.clear()
    held = [threading.Thread(target=caller.who) for _ in range(2)]
    try:
        for thread in held:
            thread.start()
        wait_until(lambda: sum(server.fake.started._value for server in servers) == 2)
        (idle,) = [n for n, server in enumerate(servers) if not server.fake.started._value]
        servers[idle].fake.gate.set()
        assert {caller.who() for _ in range(10)} == {idle}
    finally:
        for server in servers:
            server.fake.gate.set()
        for thread in held:
            thread.join()


def test_models_of_groups(caller, ingress):
    groups = (("a", ["who"]), ("b", ["steps"]), ("rest", None))
    for entry, (group, models) in zip(ingress.replicas, groups, strict=True):
        entry.update(group=group, models=models)
    assert {caller.who() for _ in range(10)} == {0}
    assert caller.who("steps", sequence_id=1, sequence_start=True, sequence_end=True) == 1
    assert not caller.do(caller.client.model_ready("unknown"))
    with pytest.raises(ServerError, match="unknown"):
        caller.who("unknown")
    assert caller.do(caller.client.metadata("who"))["name"] == "who"
    assert caller.do(caller.client.config("who"))["name"] == "who"
    assert caller.do(caller.client.infer("who", {"INPUT0": [[1]]}))["OUTPUT0"] == [[0]]


def test_calls_about_the_server_go_to_the_ingress(caller, ingress):
    client, do = caller.client, caller.do
    assert do(client.live())
    assert do(client.ready())
    assert do(client.server_metadata())["name"] == "ingress"
    assert do(client.index()) == [{"name": "who"}]
    assert do(client.statistics()) == [{"name": "who"}]
    assert do(client.trace_settings({"trace_rate": "1"})) == {"trace_rate": "1"}
    assert do(client.log_settings()) == {"log_info": True}
    do(client.load("who"))
    do(client.unload("who"))
    assert ingress.paths[-2:] == [
        f"/v2/repository/models/who/{what}" for what in ("load", "unload")
    ]
    assert not ingress.lists


# ---- the list


def test_the_list_changes(caller, ingress):
    one, two, _ = ingress.replicas
    ingress.replicas = [one, {**two, "state": "joining"}]
    assert {caller.who() for _ in range(10)} == {0}
    ingress.replicas = [{**one, "state": "leaving"}, two]
    caller.read_list()
    assert {caller.who() for _ in range(10)} == {1}


def test_the_list_is_read_again_after_an_idle_time(caller, ingress):
    one, two, _ = ingress.replicas
    ingress.replicas = [one]
    assert caller.who() == 0
    ingress.replicas = [{**one, "state": "leaving"}, two]
    caller.balancer._asked_secs -= 60.0
    assert caller.who() == 1
    assert ingress.lists >= 2


def test_the_ingress_is_away(caller, ingress):
    caller.who()
    ingress.stop()
    caller.read_list()
    assert sorted(Counter(caller.who() for _ in range(60))) == [0, 1, 2]
    with pytest.raises(ConnectionFailed, match=r"\(ingress\)"):
        caller.do(caller.client.live())


def test_a_connection_of_a_replica_that_left_is_closed_after_its_call(caller, ingress, servers):
    one, two, _ = ingress.replicas
    ingress.replicas = [one]
    caller.who()
    fake = servers[0].fake
    while fake.started.acquire(blocking=False):
        pass
    fake.gate.clear()
    found = []
    held = threading.Thread(target=lambda: found.append(caller.who()))
    held.start()
    assert fake.started.acquire(timeout=WAIT_SECS)
    (transport,) = caller.balancer.transports()
    for replica in caller.balancer._replicas.values():
        replica.seen_secs -= 60.0
    ingress.replicas = [two]
    caller.read_list()
    assert caller.who() == 1
    assert not transport_closed(transport)
    fake.gate.set()
    held.join()
    assert found == [0]
    wait_until(lambda: transport_closed(transport))


def transport_closed(transport):
    return transport._pool._closed if hasattr(transport, "_pool") else transport._closed


# ---- failures


def test_a_replica_that_is_not_there(caller, ingress):
    ingress.replicas = [listed("gone", closed_address()), *ingress.replicas[:1]]
    assert [caller.who() for _ in range(20)] == [0] * 20
    assert len(caller.balancer._avoided) <= 1


def test_no_replica_can_be_connected_to(caller, ingress):
    ingress.replicas = [listed(name, closed_address()) for name in ("r8", "r9")]
    with pytest.raises(ConnectionFailed, match=r"none of the replicas .* \(replica r[89]\)"):
        caller.who()
    assert ingress.lists >= 2  # perhaps there would have been others


def test_a_replica_that_is_lost_during_a_call(caller, ingress):
    """The model may have run, so the call is not made again."""
    with hanging_up() as address:
        ingress.replicas = [listed("r7", address)]
        with pytest.raises(ConnectionFailed, match=r"\(replica r7\) closed the connection"):
            caller.who()


def test_no_replica_serves(caller, ingress):
    ingress.replicas = [{**entry, "state": "joining"} for entry in ingress.replicas]
    with pytest.raises(Unavailable, match=r"serves model 'who' now \(3 joining\)") as caught:
        caller.who()
    assert caught.value.status == "UNAVAILABLE"
    assert not caller.do(caller.client.model_ready("who"))
    before = ingress.lists
    ingress.replicas = [{**entry, "state": "serving"} for entry in ingress.replicas]
    assert caller.who() in (0, 1, 2)
    assert ingress.lists > before


def test_what_is_no_ingress(caller, ingress, servers, loop):
    ingress.status = 404
    with pytest.raises(ProtocolError, match=f"not an ingress .* 'http://{ingress.address}'"):
        caller.who()
    ingress.status, ingress.replicas = 200, [{"id": "r1"}]
    with pytest.raises(ProtocolError, match="its /v2/replicas cannot be read"):
        caller.who()
    ingress.stop()
    with pytest.raises(ConnectionFailed, match=r"\(ingress\)"):
        caller.who()
    server = Caller(type(caller.client), loop, f"shoal+ray://{servers[0].running.http_address}")
    with pytest.raises(ProtocolError, match="it has no /v2/replicas"):
        server.who()
    server.do(server.client.close())


def test_shared_memory_is_refused(caller):
    region = caller.client.shared_memory("frames", 64)
    enter = region.__aenter__ if hasattr(region, "__aenter__") else region.__enter__
    with pytest.raises(InvalidInput, match="shared memory, which replicas on other machines"):
        caller.do(enter())


def test_a_closed_client(caller):
    caller.who()
    caller.do(caller.client.close())
    with pytest.raises(Exception, match="this client is closed"):
        caller.who()


# ---- sequences and streams


def test_sequences_stay_at_one_replica(caller, ingress, servers):
    caller.who()
    sequences = [caller.client.sequence("steps") for _ in range(6)]
    homes = [answer(caller, sequence) for sequence in sequences]
    for _ in range(3):
        assert [answer(caller, sequence) for sequence in sequences] == homes
    assert [answer(caller, sequence, end=True) for sequence in sequences] == homes
    assert not caller.balancer._sequences
    sequence = caller.client.sequence("steps", 77)
    home = answer(caller, sequence)
    ingress.replicas[home]["state"] = "leaving"
    caller.read_list()
    assert answer(caller, sequence) == home
    caller.do(sequence.close())


def answer(caller, sequence, **arguments):
    return int(caller.do(sequence.infer(ONE, **arguments))["OUTPUT0"][0, 0])


def test_a_sequence_whose_replica_is_lost(caller, ingress):
    with hanging_up() as address:
        ingress.replicas = [listed("r7", address)]
        sequence = caller.client.sequence("steps", 5)
        with pytest.raises(ConnectionFailed, match="sequence 5 of model 'steps' is lost with its"):
            caller.do(sequence.infer(ONE))


def test_a_stream_stays_at_one_replica(caller, ingress):
    if "grpc" not in repr(caller.client):
        with pytest.raises(InvalidInput, match="streams need gRPC"):
            caller.client.stream("who")
        assert len(caller.events("who", {"INPUT0": [[1]]})) == 1
        ingress.replicas = [listed("gone", closed_address()), *ingress.replicas[:1]]
        caller.read_list()
        assert caller.events("who", {"INPUT0": [[1]]})[0]["OUTPUT0"] == 0
        return
    ingress.replicas = [listed("gone", closed_address()), *ingress.replicas]
    stream = caller.open_stream("who")
    try:
        homes = set()
        for _ in range(10):
            caller.do(stream.send(ONE))
            homes.add(int(caller.do(stream.receive())["OUTPUT0"][0, 0]))
        assert len(homes) == 1
        assert [one.calls for one in caller.balancer._replicas.values()].count(1) == 1
        assert {caller.who() for _ in range(20)} == {0, 1, 2} - homes  # it counts as a call
    finally:
        caller.do(stream.close())
    assert not any(one.calls for one in caller.balancer._replicas.values())


def test_a_stream_whose_replica_is_lost(caller, ingress):
    with hanging_up() as address:
        ingress.replicas = [listed("r7", address)]
        if "grpc" not in repr(caller.client):
            with pytest.raises(ConnectionFailed, match=r"\(replica r7\)"):
                caller.events("who", {"INPUT0": [[1]]})
            return
        stream = caller.open_stream("who")
        with pytest.raises(ConnectionFailed, match=r"\(replica r7\)"):
            caller.do(stream.receive())
        caller.do(stream.close())


def test_each_retry_reads_the_list_again_if_there_is_no_replica(ingress, loop, monkeypatch):
    monkeypatch.setattr("shoal.client.steps.FIRST_PAUSE_SECS", 0.001)
    ingress.replicas = []
    for kind in (Client, AsyncClient):
        caller = Caller(kind, loop, f"shoal+ray+grpc://{ingress.address}", retries=1)
        with pytest.raises(Unavailable, match="there is none"):
            caller.who()
        caller.do(caller.client.close())
    assert ingress.lists >= 2 * 3
