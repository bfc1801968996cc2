"""Which replica gets a call: decided without sockets and with a clock set by hand."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from shoal.client import ConnectionFailed, InvalidInput, ProtocolError, Region, Timeout, Unavailable
from shoal.client.address import parse
from shoal.client.codec import CallOptions, InferenceCall, RawResponse, Target
from shoal.client.connecting import Limits, lost, refused
from shoal.client.inputs import tensor
from shoal.client.replica_codec import make
from shoal.client.replicas import (
    Attempt,
    Balancer,
    Replica,
    least_loaded,
    limits_of_replicas,
    read_list,
)
from shoal.client.steps import RoundTrip

INGRESS = parse("shoal+ray://ingress:8000", replicas=True)
REFUSED = refused(parse("r1:1"), ConnectionRefusedError(), None)
LOST = lost(parse("r1:1"), None)


class World:
    """A balancer whose transports are the addresses of replicas."""

    def __init__(self, url="shoal+ray://ingress:8000"):
        self.now = 100.0
        self.balancer = Balancer(
            parse(url, replicas=True), lambda address: address.host, lambda: self.now
        )

    def list(self, *replicas):
        """The hosts whose transports are closed. A replica is `name[:group[:state]]`."""
        entries = []
        for text in replicas:
            name, group, state = (*text.split(":"), "", "")[:3]
            models = [group] if group not in ("", "any") else None
            entries.append(
                entry(name, group=group or "any", state=state or "serving", models=models)
            )
        document = {"version": 1, "replicas": entries}
        return self.balancer.update(read_list(response(document), self.balancer.address))

    def take(self, model="m", **sequence):
        found = Attempt(self.balancer, Target(model, **sequence)).take()
        return None if found is None else found.transport

    def fail(self, error, model="m", **sequence):
        """A call whose replica fails; the replica that gets it next."""
        attempt = Attempt(self.balancer, Target(model, **sequence))
        replica = attempt.take()
        attempt.failed(replica, error)
        self.balancer.release(replica)
        following = attempt.take()
        return None if following is None else following.transport


def entry(id_, *, group="any", state="serving", models=None, port=1):
    return {
        "id": id_,
        "group": group,
        "http": f"{id_}:{port}",
        "grpc": f"{id_}:{port + 1}",
        "metrics": f"{id_}:{port + 2}",
        "state": state,
        "models": models,
        "load": 0.5,
    }


def response(document, status=200):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return RawResponse(status, {}, body)


@pytest.fixture
def world():
    return World()


# ---- the list


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_list_has_the_addresses_of_both_protocols(protocol):
    address = parse(INGRESS.url, protocol, replicas=True)
    (found,) = read_list(response({"replicas": [entry("r1", models=["a"])]}), address)
    assert (found.address.protocol, found.address.host) == (protocol, "r1")
    assert found.address.port == {"http": 1, "grpc": 2}[protocol]
    assert found.models == {"a"}
    assert "replica r1" in found.address.shown


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (response(b"", 404), ProtocolError, "not an ingress .* write 'http://ingress:8000'"),
        (response(b"<html>"), ProtocolError, "not an ingress .* cannot be read"),
        (response({"error": "no"}), ProtocolError, "cannot be read .*replicas"),
        (response({"replicas": None}), ProtocolError, "cannot be read"),
        (response({"replicas": ["r1"]}), ProtocolError, "cannot be read"),
        (response({"replicas": [{"id": "r1"}]}), ProtocolError, "cannot be read .*http"),
        (response({"replicas": [entry("r 1")]}), ProtocolError, "not a server address"),
        (response({"error": "no replica is ready"}, 503), Unavailable, "no replica is ready"),
    ],
)
def test_what_is_no_list(answer, error, text):
    with pytest.raises(error, match=text):
        read_list(answer, INGRESS)


def test_when_the_list_is_read(world):
    balancer = world.balancer
    assert balancer.must_wait
    world.list("r1")
    assert not balancer.must_wait
    assert not balancer.due
    world.now += 1
    assert balancer.due
    world.list("r1")
    assert world.fail(REFUSED) is None  # there is no other one
    world.now += 0.5
    assert balancer.due  # after a failure
    balancer.list_failed(LOST)
    world.now += 0.5
    assert not balancer.due
    world.now += 600
    assert not balancer.must_wait  # the ingress is away: calls go on
    world.list("r1")
    world.now += 600
    assert balancer.must_wait


def test_long_lists_are_read_less_often(world):
    world.list(*(f"r{index}" for index in range(1000)))
    world.now += 4
    assert not world.balancer.due
    world.now += 1
    assert world.balancer.due


def test_a_first_list_that_fails_is_an_error(world):
    world.balancer.list_failed(LOST)
    assert world.balancer.must_wait
    with pytest.raises(ConnectionFailed):
        world.balancer.check()
    world.list("r1")
    world.balancer.list_failed(LOST)
    world.balancer.check()


# ---- the choice


def test_the_least_loaded_one_is_taken(world):
    world.list("r1", "r2", "r3")
    taken = [Attempt(world.balancer, Target("m")).take() for _ in range(6)]
    assert Counter(replica.transport for replica in taken) == {"r1": 2, "r2": 2, "r3": 2}
    world.balancer.release(taken[3])
    assert world.take() == taken[3].transport


def test_ties_are_decided_at_random():
    (listed,) = read_list(response({"replicas": [entry("r1")]}), INGRESS)
    replicas = [Replica(listed, str(index)) for index in range(4)]
    counts = Counter(least_loaded(replicas).transport for _ in range(1000))
    assert len(counts) == 4
    assert min(counts.values()) > 150
    for replica in replicas[:3]:
        replica.calls = 2
    replicas[3].calls = 5
    counts = Counter(least_loaded(replicas).transport for _ in range(1000))
    assert sorted(counts) == ["0", "1", "2"]


def test_a_model_is_served_by_its_group(world):
    world.list("r1:a", "r2:b", "r3", "r4:b:joining")
    assert [world.take(model) for model in ("a", "a", "b", "b", "c", "", "d")] == [
        *("r1", "r1", "r2", "r2", "r3", "r3", "r3")
    ]
    world.list("r1:a", "r2:b:leaving", "r3", "r4:b:joining")
    assert world.take("b") is None
    text = r"no replica of shoal\+ray://ingress:8000 serves model 'b' now \(1 joining, 1 leaving\)"
    error = Attempt(world.balancer, Target("b")).nothing()
    with pytest.raises(Unavailable, match=text):
        raise error
    assert (error.status, error.server_code) == ("UNAVAILABLE", 503)


def test_an_unknown_model_without_a_group_for_the_rest_goes_to_any(world):
    world.list("r1:a")
    assert world.take("unknown") == "r1"  # which says so
    world.list()
    world.now += 20
    world.list()
    assert world.take("a") is None
    assert "there is none" in str(Attempt(world.balancer, Target("a")).nothing())


@pytest.mark.parametrize("state", ["joining", "leaving", "lost"])
def test_only_those_that_serve_are_taken(world, state):
    world.list("r1", f"r2:any:{state}")
    assert {world.take() for _ in range(8)} == {"r1"}


def test_refusals_count_as_calls_until_the_next_list(world):
    """An overloaded replica answers quickly, which must not make it the first choice."""
    world.list("r1", "r2")
    attempt = Attempt(world.balancer, Target("m"))
    refusing = attempt.take()
    attempt.answered(refusing, 503)
    world.balancer.release(refusing)
    other = {"r1": "r2", "r2": "r1"}[refusing.transport]
    assert world.take() == other
    world.list("r1", "r2")
    assert world.take() == refusing.transport


# ---- failures


def test_another_one_gets_a_call_that_was_not_sent(world):
    world.list("r1", "r2")
    first = Attempt(world.balancer, Target("m"))
    broken = first.take()
    other = {"r1": "r2", "r2": "r1"}[broken.transport]
    first.failed(broken, REFUSED)
    assert first.take().transport == other
    world.balancer.release(broken)
    assert {world.take() for _ in range(8)} == {other}  # those of others avoid it, too
    world.now += 5
    assert [world.take() for _ in range(3)] == [broken.transport, other, other]  # one tries it
    first.answered(broken, 200)
    assert world.take() == broken.transport


def test_none_can_be_connected_to(world):
    world.list("r1", "r2")
    attempt = Attempt(world.balancer, Target("m"))
    for _ in range(2):
        replica = attempt.take()
        attempt.failed(replica, REFUSED)
        world.balancer.release(replica)
    assert attempt.take() is None
    with pytest.raises(
        ConnectionFailed, match=r"none of the replicas .* no server answers at r1:1"
    ):
        raise attempt.nothing()
    assert world.take() is not None  # another call tries them again


def test_a_call_that_was_sent_stays_failed(world):
    world.list("r1", "r2")
    for error in (LOST, Timeout("late"), ProtocolError("odd")):
        with pytest.raises(type(error)):
            world.fail(error)


def test_time_for_connections_is_taken_off(world):
    world.list("r1", "r2")
    attempt = Attempt(world.balancer, Target("m"))
    step = RoundTrip(None, 3.0, repeatable=True)
    assert attempt.limited(step) is step
    for left in (2.0, 1.0):
        world.now += 1
        attempt.failed(attempt.take(), REFUSED)
        step = attempt.limited(step)
        assert step.timeout_secs == left
    world.now += 1
    with pytest.raises(ConnectionFailed):
        attempt.limited(step)
    assert limits_of_replicas(Limits(10.0, 5)) == Limits(2.0, 5)
    assert limits_of_replicas(Limits(None, 5)).connect_secs == 2.0
    assert limits_of_replicas(Limits(0.5, 5)).connect_secs == 0.5


# ---- replicas that come and go


def test_transports_are_closed_after_their_last_call(world):
    world.list("r1", "r2:b")
    attempt = Attempt(world.balancer, Target("m"))
    replica = attempt.take()
    world.now += 1
    assert world.list("r3") == []
    assert world.take() == "r3"
    world.now += 10
    assert world.list("r3") == ["r2"]
    assert world.balancer.release(replica) == "r1"
    assert world.balancer.transports() == ["r3"]


def test_a_new_ingress_that_does_not_know_all_replicas_yet(world):
    world.list("r1:a", "r2:a", "r3")
    world.list("r2:a:joining", "r3")
    assert {world.take("a") for _ in range(4)} == {"r1", "r2"}
    world.list("r1:a", "r2:a:joining", "r3")
    assert {world.take("a") for _ in range(4)} == {"r1"}
    world.list("r1:a:leaving", "r3")
    assert world.take("a") is None
    world.now += 20
    world.list("r3")
    assert world.take("a") == "r3"


def test_replicas_without_heartbeats_are_used_if_there_are_no_others(world):
    world.list("r1:any:lost", "r2:any:leaving")
    assert world.take() == "r1"
    world.list("r1:any:lost", "r3")
    assert {world.take() for _ in range(4)} == {"r3"}


# ---- sequences


def test_a_sequence_stays_at_its_replica(world):
    world.list("r1", "r2", "r3")
    first = world.take(sequence=5, start=True)
    for _ in range(5):
        assert world.take(sequence=5) == first
    assert {world.take(sequence=key, start=True) for key in (6, 7)} == {"r1", "r2", "r3"} - {first}
    world.list("r1:any:leaving", "r2:any:leaving", "r3:any:leaving", "r4")
    assert world.take(sequence=5) == first
    assert world.take("other", sequence=5) == "r4"
    attempt = Attempt(world.balancer, Target("m", 5, end=True))
    replica = attempt.take()
    attempt.answered(replica, 503)
    assert world.take(sequence=5) == first  # the end was refused
    attempt.answered(replica, 200)
    assert world.take(sequence=5) == "r4"


def test_a_sequence_that_loses_its_replica(world):
    world.list("r1", "r2")
    world.take(sequence="x", start=True)
    text = "the sequence 'x' of model 'm' is lost with its replica at .*; begin a new sequence"
    for error in (REFUSED, LOST):
        with pytest.raises(ConnectionFailed, match=text):
            world.fail(error, sequence="x")
    with pytest.raises(ConnectionFailed, match=text):
        world.fail(LOST, sequence="x", start=True)  # it may have begun
    with pytest.raises(Timeout, match="late"):
        world.fail(Timeout("late"), sequence="x", start=True)
    world.list("r3")
    world.now += 20
    world.list("r3")
    with pytest.raises(ConnectionFailed, match=r"replica at r\d:1 .* it has ended"):
        world.take(sequence="x")
    assert world.take(sequence="x", start=True) == "r3"


def test_a_sequence_whose_first_request_was_not_sent(world):
    world.list("r1", "r2")
    second = world.fail(REFUSED, sequence=5, start=True)
    assert world.take(sequence=5) == second


def test_sequences_without_an_end_are_forgotten(world, monkeypatch):
    monkeypatch.setattr("shoal.client.replicas._MOST_SEQUENCES", 2)
    world.list("r1")
    for key in (1, 2, 1, 3):
        world.take(sequence=key, start=True)
    assert [key for _, key in world.balancer._sequences] == [1, 3]


# ---- requests


@pytest.mark.parametrize("scheme", ["shoal+ray", "shoal+ray+grpc"])
def test_shared_memory_is_refused(scheme):
    codec = make(parse(f"{scheme}://ingress", replicas=True), {})
    region = Region("frames", 256)
    try:
        given = tensor("x", region.put(b"1234"))
        for call in (
            InferenceCall("m", "", [given]),
            InferenceCall("m", "", [], ["y"], {"y": region.place(8)}),
        ):
            with pytest.raises(InvalidInput, match="'frames' is in shared memory, which replicas"):
                codec.infer(call, CallOptions())
            if "grpc" in scheme:
                with pytest.raises(InvalidInput, match="shared memory"):
                    codec.infer_message(call)
    finally:
        region.close()
    for refused_call in (
        lambda: codec.register("frames", "/key", 8, CallOptions()),
        lambda: codec.unregister("frames", CallOptions()),
        lambda: codec.regions(CallOptions()),
    ):
        with pytest.raises(InvalidInput, match="on this machine"):
            refused_call()
