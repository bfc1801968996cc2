"""A real HAProxy before small servers: what it accepts, and who gets which requests."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import grpc
import pytest

from shoal.errors import Unavailable
from shoal.ray.config import from_dict
from shoal.ray.haproxy import HAProxy, find_program
from shoal.ray.haproxy_config import SERVICE, Endpoint, Layout, config_text
from shoal.testing.server import wait_until
from shoal.wire.proto import messages
from tests.ray.fake_replicas import FakeReplica
from tests.support import tls

GROUPS = {
    "one group": [{}],
    "groups": [{"name": "gpu", "models": ["-f", "resnet", "b%3"]}, {"name": "a_sequences"}],
    "models only": [{"name": "a", "models": ["m"]}, {"name": "b", "models": ["n"]}],
    "many": [{"max_replicas": 300}],
}
INGRESS = {
    "plain": {},
    "by model": {"balance": "model", "sequence_header": "X-Session_id"},
    "HTTP only": {"grpc_port": 0, "metrics_port": 0},
    "IPv6": {"host": "::"},
    "TLS": {"tls_certificate": "cert.pem", "tls_key": "key.pem"},
}


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("ingress", INGRESS)
def test_haproxy_accepts_the_config(haproxy_program, tmp_path, groups, ingress):
    config = from_dict({"repository": "/m", "groups": GROUPS[groups], "ingress": INGRESS[ingress]})
    pem = ""
    if config.ingress.tls_key:
        tls.issue(tmp_path, 1)
        pem = tmp_path / "both.pem"
        pem.write_text((tmp_path / "cert.pem").read_text() + (tmp_path / "key.pem").read_text())
    layout = Layout(config, "unix@/c", "unix@/g", "/s", str(pem))
    first = config.groups[0].name
    text = config_text(layout, {first: {2: Endpoint("fe80::1", 80, 81)}})
    (tmp_path / "haproxy.cfg").write_text(text)
    ran = subprocess.run(
        [haproxy_program, "-c", "-f", str(tmp_path / "haproxy.cfg")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "[WARNING]" not in ran.stderr


def test_a_program_that_is_not_there():
    with pytest.raises(Unavailable, match=r"ingress.haproxy is '/no/haproxy', which is no program"):
        find_program("/no/haproxy")


# ---- a process


class Site:
    """A config and the HAProxy that runs with it."""

    def __init__(self, program, folder, ports, **document):
        self.folder = folder
        self.http_port, self.grpc_port = ports
        self._program = program
        self._document = {"repository": "/m", **document}
        self._document["ingress"] = {
            "host": "127.0.0.1",
            "http_port": self.http_port,
            "grpc_port": self.grpc_port,
            "metrics_port": 0,
            **document.get("ingress", {}),
        }
        self.haproxy = self.ingress()

    def ingress(self, **document):
        """An HAProxy object, as a new ingress makes it."""
        config = from_dict({**self._document, **document})
        control = f"unix@{self.folder}/control.sock"
        layout = Layout(config, control, control, str(self.folder / "haproxy.sock"))
        return HAProxy(layout, self._program, self.folder, ends_with=os.getpid())

    def connect(self):
        """A connection that is closed after a `with` block."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=20)
        return contextlib.closing(connection)

    def listens(self):
        """Whether it accepts connections."""
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.http_port)) == 0

    def post(self, path="/v2/models/m/infer", headers=None):
        """The status and the document of an answer."""
        with self.connect() as connection:
            connection.request("POST", path, b"{}", headers or {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def name(self, **arguments):
        """Who answered."""
        status, document = self.post(**arguments)
        assert status == 200, document
        return document["name"]

    def names(self, count=20, **arguments):
        """Who answered several requests."""
        return {self.name(**arguments) for _ in range(count)}


@pytest.fixture
def make_site(haproxy_program, short_path, free_ports):
    sites = []

    def make(**document):
        site = Site(haproxy_program, short_path, free_ports(2), **document)
        sites.append(site)
        return site

    yield make
    for site in sites:
        pid = site.haproxy.pid
        if pid:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def short_path():
    """A folder whose path a socket can have."""
    with tempfile.TemporaryDirectory(prefix="shoal") as folder:
        yield Path(folder)


@pytest.fixture
def replicas():
    made = [FakeReplica("a"), FakeReplica("b")]
    yield made
    for one in made:
        one.stop()


def addresses(replicas):
    return [one.address for one in replicas]


def test_replicas_come_and_go_without_a_lost_request(make_site, replicas):
    site = make_site(groups=[{"max_replicas": 2}])
    site.haproxy.start()
    assert site.post() == (503, {"error": "no replica is ready; send the request again later"})
    a, b = replicas
    assert site.haproxy.apply([a.address]) == []
    assert site.names() == {"a"}
    site.haproxy.apply(addresses(replicas))
    assert site.names() == {"a", "b"}
    site.haproxy.apply([b.address], [a.address])  # drains
    assert site.names() == {"b"}
    site.haproxy.apply(addresses(replicas))  # it did not leave after all
    assert site.names() == {"a", "b"}
    site.haproxy.apply([b.address])
    assert site.names() == {"b"}


def test_a_request_in_flight_is_answered_after_its_replica_left(make_site, replicas):
    a, b = replicas
    site = make_site()
    site.haproxy.start()
    site.haproxy.apply([a.address])
    a.gate.clear()
    connection = http.client.HTTPConnection("127.0.0.1", site.http_port, timeout=20)
    connection.request("POST", "/x", b"{}")
    a.held.acquire()
    site.haproxy.apply([b.address], [a.address])
    site.haproxy.apply([b.address])
    assert site.names(3) == {"b"}
    a.gate.set()
    assert json.loads(connection.getresponse().read())["name"] == "a"
    connection.close()


def test_a_replica_that_is_not_ready_gets_nothing_until_it_is(make_site, replicas):
    a = replicas[0]
    site = make_site(groups=[{"max_replicas": 2}])
    site.haproxy.start()
    site.haproxy.apply(addresses(replicas))
    a.ready = False
    wait_until(lambda: site.names() == {"b"}, "only b is ready")
    a.ready = True
    wait_until(lambda: site.names() == {"a", "b"}, "a is ready again")


def test_a_replica_that_cannot_be_connected_to_loses_no_request(make_site, replicas):
    a = replicas[0]
    site = make_site(groups=[{"max_replicas": 2}])
    site.haproxy.start()
    site.haproxy.apply(addresses(replicas))
    a.stop()
    assert site.names(50) == {"b"}


def test_a_new_ingress_takes_over_the_same_process(make_site, replicas):
    a, b = replicas
    site = make_site(groups=[{"max_replicas": 2}])
    site.haproxy.start()
    site.haproxy.apply(addresses(replicas))
    before = site.haproxy.pid
    second = site.ingress()
    second.start()
    assert second.pid == before
    assert site.names() == {"a", "b"}
    second.apply([a.address], keep=None)  # b was not heard of yet
    assert site.names() == {"a", "b"}
    second.apply([a.address], keep=[b.address])  # it joins
    assert site.names() == {"a", "b"}
    second.apply([a.address])
    assert site.names() == {"a"}
    second.apply([b.address], [a.address])
    third = site.ingress()
    third.start()  # it knows which one drains
    third.apply(addresses(replicas), keep=None)
    assert site.names() == {"a", "b"}


def test_another_config_goes_on_with_the_replicas(make_site, replicas):
    site = make_site(groups=[{"max_replicas": 2}])
    site.haproxy.start()
    site.haproxy.apply(addresses(replicas))
    before = site.haproxy.pid
    second = site.ingress(groups=[{"max_replicas": 7}])
    second.start()
    assert second.pid != before
    assert site.names() == {"a", "b"}  # at once, at the same ports
    second.apply(addresses(replicas))
    assert site.names() == {"a", "b"}
    assert len(second._slots["default"]) == 2
    _wait_for_end(before)
    site.haproxy = second


def test_a_connection_that_is_idle_while_the_config_changes_is_usable(make_site, replicas):
    site = make_site()
    site.haproxy.start()
    site.haproxy.apply(addresses(replicas[:1]))
    before = site.haproxy.pid
    with site.connect() as connection:
        assert _name(connection) == "a"
        site.haproxy = site.ingress(groups=[{"max_replicas": 7}])
        site.haproxy.start()
        assert _name(connection) == "a"  # and the old process closes it afterwards
        _wait_for_end(before)


def test_it_answers_what_it_has_before_it_ends(make_site, replicas):
    (a, _) = replicas
    site = make_site()
    site.haproxy.start()
    site.haproxy.apply([a.address])
    pid = site.haproxy.pid
    with site.connect() as idle, site.connect() as busy:
        assert _name(idle) == "a"
        a.gate.clear()
        busy.request("POST", "/x", b"{}")
        a.held.acquire()
        stopping = threading.Thread(target=site.haproxy.stop)
        stopping.start()
        wait_until(lambda: not site.listens(), "it takes no connections")
        a.gate.set()
        assert json.loads(busy.getresponse().read())["name"] == "a"
        stopping.join()
        _wait_for_end(pid)  # although a client keeps a connection


def test_a_config_that_cannot_run_leaves_the_old_one(make_site, replicas, free_ports):
    site = make_site()
    site.haproxy.start()
    site.haproxy.apply(addresses(replicas[:1]))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        second = site.ingress(
            ingress={"host": "127.0.0.1", "http_port": port, "grpc_port": 0, "metrics_port": 0}
        )
        with pytest.raises(Unavailable, match=f"port {port} is not free at .*proxy_location"):
            second.start()
    assert not (site.folder / "haproxy.new").exists()  # or the old process would have had to pause
    assert site.names() == {"a"}


def test_it_starts_again_with_the_replicas_that_are_known(make_site, replicas):
    site = make_site(groups=[{"max_replicas": 2}])
    site.haproxy.start()
    pid = site.haproxy.pid
    os.kill(pid, signal.SIGKILL)
    _wait_for_end(pid)
    with pytest.raises(Unavailable, match="HAProxy does not answer at its socket"):
        site.haproxy.apply(addresses(replicas))
    site.haproxy.start(addresses(replicas))
    assert site.names() == {"a", "b"}


def test_replicas_without_a_slot_are_named(make_site):
    made = [FakeReplica(str(number)) for number in range(5)]
    site = make_site()
    site.haproxy.start()
    assert site.haproxy.apply(addresses(made)) == ["4"]
    assert site.haproxy.apply(addresses(made[1:])) == []
    assert site.names(30) == {"1", "2", "3", "4"}
    for one in made:
        one.stop()


def test_a_replica_that_dies_with_a_request_is_an_error_that_says_so(make_site, free_ports):
    site = make_site()
    site.haproxy.start()
    program = (
        "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen();"
        "print(s.getsockname()[1], flush=True)\n"
        "while True:\n c, _ = s.accept(); d = c.recv(999)\n"
        " if d.startswith(b'POST'): raise SystemExit\n"
        " c.sendall(b'HTTP/1.1 200 OK\\r\\ncontent-length: 0\\r\\nconnection: close\\r\\n\\r\\n')"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        port = int(process.stdout.readline())
        fake = FakeReplica("x")
        site.haproxy.apply([fake.address._replace(http_port=port)])
        assert site.post() == (
            502,
            {"error": "the replica that had the request has ended; send the request again"},
        )
        fake.stop()


def test_sequences_stay_with_their_replica(make_site, replicas):
    site = make_site(groups=[{"max_replicas": 2}])
    site.haproxy.start()
    site.haproxy.apply(addresses(replicas))
    by_sequence = {n: site.names(5, headers={"X-Sequence": str(n)}) for n in range(20)}
    assert all(len(names) == 1 for names in by_sequence.values())
    assert {name for names in by_sequence.values() for name in names} == {"a", "b"}


def test_models_stay_with_their_replica_unless_it_is_busier_than_others(make_site, replicas):
    site = make_site(groups=[{"max_replicas": 2}], ingress={"balance": "model"})
    site.haproxy.start()
    site.haproxy.apply(addresses(replicas))
    paths = [f"/v2/models/m{number}/infer" for number in range(20)]
    by_model = {path: Counter(site.name(path=path) for _ in range(5)) for path in paths}
    assert {name for names in by_model.values() for name in names} == {"a", "b"}
    assert sum(max(names.values()) for names in by_model.values()) > 0.8 * 5 * len(paths)
    for one in replicas:
        one.gate.clear()
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(site.connect()).request("POST", paths[0], b"{}")
        wait_until(lambda: sum(one.held._value for one in replicas) == 8, "all have arrived")
        # The model's own has up to half again as much as the average, which is four.
        assert 1 <= min(one.held._value for one in replicas) <= 3
        for one in replicas:
            one.gate.set()


def test_groups_get_the_requests_of_their_models(make_site):
    a, b = FakeReplica("a", "gpu"), FakeReplica("b", "others")
    site = make_site(
        groups=[{"name": "gpu", "models": ["-i", "resnet", "x+y"]}, {"name": "others"}]
    )
    site.haproxy.start()
    site.haproxy.apply([a.address, b.address])
    for path, name in (
        ("/v2/models/resnet/infer", "a"),
        ("/v2/models/resnet/versions/1/infer", "a"),
        ("/v2/models/x%2By/infer", "a"),
        ("/v2/models/-i/infer", "a"),
        ("/v2/models/RESNET/infer", "b"),
        ("/v2/models/resnet2/infer", "b"),
        ("/v1/chat/completions", "b"),
    ):
        assert site.name(path=path) == name
    assert site.name(path="/v2/models/resnet/infer", headers={"x-sequence": "1"}) == "a"
    with grpc.insecure_channel(f"127.0.0.1:{site.grpc_port}") as channel:
        for count in (1, 100, 20_000, 1_000_000):  # HAProxy's buffer has 16 kB
            for parameters in (0, 1):
                request = messages.ModelInferRequest(model_name="resnet")
                request.raw_input_contents.append(b"x" * count)
                request.inputs.add(name="i")
                if parameters:
                    request.parameters["p"].int64_param = 1
                assert _call(channel, "ModelInfer", request) == b"a"
                request.model_name = "resnet2"
                assert _call(channel, "ModelInfer", request) == b"b"
        ready = messages.ModelReadyRequest(name="resnet")
        assert _call(channel, "ModelReady", ready) == b"a"
        assert _call(channel, "ServerLive", messages.ServerLiveRequest()) == b"b"
        stream = channel.stream_stream(f"{SERVICE}ModelStreamInfer")
        assert list(stream(iter([request.SerializeToString()] * 2), timeout=20)) == [b"b"] * 2
        request.model_name = "resnet"
        assert list(stream(iter([request.SerializeToString()] * 2), timeout=20)) == [b"a"] * 2
    a.stop()
    b.stop()


def test_it_ends_with_ray(haproxy_program, short_path, free_ports):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as raylet:
        folder = short_path / "own"
        folder.mkdir()
        site = Site(haproxy_program, folder, free_ports(2))
        haproxy = HAProxy(site.haproxy._layout, haproxy_program, folder, raylet.pid)
        haproxy.start()
        pid = haproxy.pid
    _wait_for_end(pid)
    wait_until(lambda: not folder.exists(), "its folder is removed")


def _name(connection):
    """Who answers."""
    connection.request("POST", "/x", b"{}")
    return json.loads(connection.getresponse().read())["name"]


def _wait_for_end(pid):
    def has_ended():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(has_ended, f"process {pid} ends")


def _call(channel, method, request):
    return channel.unary_unary(SERVICE + method)(request.SerializeToString(), timeout=20)
