"""Stopping under load: what the server's kernel has received is answered, on every port.

With `SHOAL_STOPS=50`, as many servers of each kind are stopped; by default one is, to be quick.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
import threading
from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

import shoal
from shoal.frontends.closing import EXIT_TIMEOUT
from shoal.testing import WAIT_SECS
from shoal.testing.server import running_server, wait_until
from shoal.wire.proto import messages
from tests.support.client import Infer, outputs
from tests.support.ensembles import chain
from tests.support.held_model import ONE, ask, check
from tests.support.repositories import add_fake, add_model
from tests.support.stops import (
    GrpcMessages,
    StopCount,
    clients,
    grpc_client,
    http_client,
    line_client,
    to_file,
    to_port,
)

STOPS = int(os.environ.get("SHOAL_STOPS", "1"))
CLIENTS = 64
INFER = "/inference.GRPCInferenceService/ModelInfer"

Ints = npt.NDArray[np.int32]


@shoal.model(batch=16)
def double(x: Ints) -> Ints:
    return x * 2


def http_request(path: str, body: bytes = b"") -> bytes:
    method = b"POST" if body else b"GET"
    return b"%b %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
        method,
        path.encode(),
        len(body),
        body,
    )


INFER_HTTP = http_request(
    "/v2/models/double/infer",
    b'{"inputs":[{"name":"x","datatype":"INT32","shape":[1,1],"data":[1]}]}',
)
QUESTION = b'{"text": "It is red.", "question": "What colour?"}\n'


def infer_message() -> bytes:
    request = messages.ModelInferRequest(model_name="double")
    request.inputs.add(name="x", datatype="INT32", shape=[1, 1])
    request.raw_input_contents.append(np.array([[1]], "<i4").tobytes())
    return request.SerializeToString()


def half_fresh(client, connect, what):
    """Clients with one connection for all requests, and as many with one for each."""
    return [partial(client, connect, what, fresh=fresh) for fresh in (True, False)] * (CLIENTS // 2)


def http(server, _):
    return half_fresh(http_client, to_port(server.http_port), INFER_HTTP)


def https(server, certificates):
    trust = ssl.create_default_context(cafile=certificates / "root.pem")
    return half_fresh(http_client, to_port(server.http_port, trust), INFER_HTTP)


def http_file(server, _):
    return half_fresh(http_client, to_file(server.options.http_unix_socket), INFER_HTTP)


def grpc_own(server, _):
    calls = GrpcMessages(INFER, infer_message())
    some = half_fresh(grpc_client, to_port(server.grpc_port), calls)
    return [partial(each, at_once=1 + number % 3) for number, each in enumerate(some)]


def grpcio(server, _):
    return half_fresh(grpc_client, to_port(server.grpc_port), GrpcMessages(INFER, infer_message()))


def grpc_tls(server, certificates):
    trust = ssl.create_default_context(cafile=certificates / "root.pem")
    trust.set_alpn_protocols(["h2"])
    calls = GrpcMessages(INFER, infer_message())
    return half_fresh(grpc_client, to_port(server.grpc_port, trust), calls)


def grpc_file(server, _):
    calls = GrpcMessages(INFER, infer_message())
    return half_fresh(grpc_client, to_file(server.options.grpc_unix_socket), calls)


def questions(server, _):
    return half_fresh(line_client, to_port(server.tcp_port), QUESTION)


def metrics(server, _):
    return half_fresh(http_client, to_port(server.metrics_port), http_request("/metrics"))


def health(server, _):
    alive = http_request("/v2/health/live")
    return half_fresh(http_client, to_port(server.health_port), alive)


KINDS = (
    *(http, https, http_file, grpc_own, grpcio, grpc_tls, grpc_file),
    *(questions, metrics, health),
)


def options_of(kind, folder, certificates):
    names = {"cert": str(certificates / "own.pem"), "key": str(certificates / "own.key")}
    if kind is https:
        return {f"https_{name}": value for name, value in names.items()}
    if kind is grpc_tls:
        tls = {f"grpc_server_{name}": value for name, value in names.items()}
        return {"grpc_use_ssl": True, **tls}
    if kind in (http_file, grpc_file):
        protocol = kind.__name__.partition("_")[0]
        return {f"{protocol}_unix_socket": str(folder / "s")}
    return {
        grpcio: {"grpc_transport": "grpcio"},
        questions: {"tcp_port": 0, "tcp_address": "127.0.0.1"},
        health: {"health_port": 0},
    }.get(kind, {})


CASES = [
    pytest.param(kind, drain_secs, id=f"{kind.__name__}-{drain_secs:g}")
    for kind in KINDS
    for drain_secs in (0, 0.1)
    if STOPS > 1 or drain_secs == 0 or kind in (http, grpc_own)
]


@pytest.mark.parametrize(("kind", "drain_secs"), CASES)
@pytest.mark.timeout(60 + 10 * STOPS)
def test_what_was_received_is_answered(kind, drain_secs, tmp_path, certificates):
    chance = random.Random(kind.__name__)
    for _ in range(STOPS):
        count = StopCount()
        more = options_of(kind, tmp_path, certificates)
        with running_server(functions=[double], drain_secs=drain_secs, **more) as running:
            server = running.server
            statistics = running.model("double").statistics
            with clients(count, kind(server, certificates)):
                count.wait_for_answers(chance.randrange(CLIENTS, 8 * CLIENTS))
                assert running.run(server.stop())
        assert count.lost == []
        assert count.failed == []
        # grpcio cancels calls where it stops while they arrive, on a machine that is too busy.
        assert count.cancelled == 0 or kind is grpcio
        if kind not in (questions, metrics, health):
            executed = statistics.snapshot()["inference_stats"]["success"]["count"]
            assert executed == count.answered, "a response was lost"


# ---- requests that are being executed


def begin_stop(running):
    """Stop, without waiting for it."""
    stopping = asyncio.run_coroutine_threadsafe(running.server.stop(), running._loop.loop)
    wait_until(running.server.engine.exiting, "the server exits")
    return stopping


def test_later_steps_of_an_accepted_request_are_served(repository, fake):
    for name in ("first", "second"):
        add_fake(repository, name, ONE)
    add_model(repository, "both", chain("first", "second"))
    fake.gate.clear()
    with running_server(repository, backends=fake.registry()) as running:
        call = Infer().add("IN", np.array([[7]], np.int32)).call(running, "both")
        assert fake.started.acquire(timeout=WAIT_SECS)
        stopping = begin_stop(running)
        fake.gate.set()
        response = call.response()
        assert outputs(response)["OUT"].tolist() == [[7]]
        assert response.headers["connection"] == "close"
        assert stopping.result(WAIT_SECS)


@shoal.model
def count(upto: int) -> Iterator[int]:
    for number in range(upto):
        yield number
        assert counting.wait(WAIT_SECS)


counting = threading.Event()


def test_a_stream_goes_on_to_its_end():
    counting.clear()
    with running_server(functions=[count]) as running:
        call = running.call("POST", "/v2/models/count/generate_stream", {"upto": 3})
        response = call._connection.getresponse()
        first = response.readline()
        stopping = begin_stop(running)
        counting.set()
        events = (first + response.read()).split(b"\n\n")
        call.disconnect()
        assert [json.loads(each[5:])["output"] for each in events if each] == [0, 1, 2]
        assert stopping.result(WAIT_SECS)


def test_what_outlasts_the_exit_timeout_gets_an_error(repository, fake):
    add_fake(repository, "held", ONE)
    late = pytest.raises(TimeoutError, match="did not stop within its exit timeout")
    with (
        late,
        running_server(
            repository, backends=fake.registry(), exit_timeout_secs=0, tcp_port=0
        ) as running,
    ):
        check(ask(running, 1), 1)  # so that the last request takes the fast path
        fake.gate.clear()
        calls = [ask(running, 2)]
        assert fake.started.acquire(timeout=WAIT_SECS)
        assert fake.started.acquire(timeout=WAIT_SECS)
        calls.append(ask(running, 3))
        running.wait_for_pending("held", 1)
        assert not running.run(running.server.stop())
        for call in calls:
            response = call.response()
            assert (response.status, response.error) == (503, EXIT_TIMEOUT)
            assert response.headers["connection"] == "close"
    fake.gate.set()  # not before: the second stop would find nothing left to wait for


@pytest.mark.parametrize("port", ["http_port", "health_port"])
def test_health_while_requests_finish(repository, fake, port, monkeypatch):
    """From SIGTERM to the end: not ready, but alive."""
    monkeypatch.setattr("shoal.ports.LINGER_SECS", WAIT_SECS)
    add_fake(repository, "held", ONE)
    fake.gate.clear()
    with running_server(repository, backends=fake.registry(), health_port=0) as running:
        call = ask(running, 1)
        assert fake.started.acquire(timeout=WAIT_SECS)
        connect = to_port(getattr(running.server, port))
        probes = [connect() for _ in range(2)]
        stopping = begin_stop(running)
        paths = {"/v2/health/live": b"200", "/v2/health/ready": b"503"}
        for probe, (path, status) in zip(probes, paths.items(), strict=True):
            with probe:
                probe.sendall(http_request(path))
                assert probe.recv(1 << 16).startswith(b"HTTP/1.1 " + status)
        fake.gate.set()
        check(call, 1)
        assert stopping.result(WAIT_SECS)
