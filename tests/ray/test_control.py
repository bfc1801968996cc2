"""Control calls before two real servers."""

import contextlib
import http.client
import itertools
import json
import socket
import tempfile
import time
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from shoal.access.entry import digest_of
from shoal.client.address import parse
from shoal.client.codec import RawResponse
from shoal.client.replicas import read_list
from shoal.errors import Unavailable
from shoal.inprocess.loop import LoopThread
from shoal.ray.config import from_dict
from shoal.ray.control import Control
from shoal.ray.directory import Directory, ReplicaAddress, State
from shoal.ray.haproxy_config import SERVICE
from shoal.testing import WAIT_SECS
from shoal.testing.server import running_server
from shoal.wire.proto import messages
from tests.support import onnx_models
from tests.support.keys import bearer, key_of, write_keys
from tests.support.repositories import add_onnx

pytestmark = pytest.mark.one_process  # calls of the test reach servers in this process


class Cluster:
    """Servers, and the control service of an ingress before them."""

    def __init__(self, folder, servers, document):
        self.directory = Directory(time.monotonic)
        self.stored = []
        self.control = Control(from_dict(document), self.directory, self.stored.append)
        self.loop = LoopThread("control")
        self.paths = folder / "control.sock", folder / "grpc.sock"
        self.loop.run(self.control.serve(*self.paths, owner="o"), WAIT_SECS)
        for id_, server in servers.items():
            self.join(id_, server)

    def join(self, id_, server, calls=0, group="default", key=""):
        made = server.server
        ports = made.http_port, made.grpc_port, made.metrics_port
        address = ReplicaAddress(id_, group, "127.0.0.1", *ports)
        self.directory.heartbeat(address, {"rate": 1.23456}, calls, key)
        self.loop.run(self.control.join(address), WAIT_SECS)

    def call(self, method, path, document=None, headers=None):
        connection = http.client.HTTPConnection("localhost", timeout=WAIT_SECS)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(self.paths[0]))
        with contextlib.closing(connection):
            body = b"" if document is None else json.dumps(document).encode()
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            content = answer.read()
        self.headers = answer.headers
        is_json = "json" in answer.headers.get("content-type", "")
        return answer.status, json.loads(content) if is_json and content else content

    def call_by_grpc(self, name, /, metadata=(), **fields):
        kind = getattr(messages, f"{name}Request")
        with grpc.insecure_channel(f"unix:{self.paths[1]}") as channel:
            method = channel.unary_unary(SERVICE + name)
            body = kind(**fields).SerializeToString()
            answer = method(body, timeout=WAIT_SECS, metadata=tuple(metadata))
        return getattr(messages, f"{name}Response").FromString(answer)

    def close(self):
        self.loop.run(self.control.close(), WAIT_SECS)
        self.loop.close(WAIT_SECS)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Two with the model `sum`; only the first one has `other`."""
    with contextlib.ExitStack() as stack:
        found = {}
        for id_ in ("a", "b"):
            folder = tmp_path_factory.mktemp(id_)
            add_onnx(folder, "sum", onnx_models.add_sub("INT32"), "max_batch_size: 8")
            if id_ == "a":
                add_onnx(folder, "other", onnx_models.add_sub("INT32"), "max_batch_size: 8")
            made = running_server(folder, model_control_mode="explicit")
            found[id_] = stack.enter_context(made)
        yield found


@pytest.fixture
def make_cluster():
    with tempfile.TemporaryDirectory(prefix="shoal") as folder, contextlib.ExitStack() as stack:
        count = 0

        def make(servers, **document):
            nonlocal count
            count += 1
            place = Path(folder) / str(count)
            place.mkdir()
            cluster = Cluster(place, servers, {"repository": "/m", **document})
            stack.callback(cluster.close)
            return cluster

        yield make


@pytest.fixture
def cluster(make_cluster, servers):
    yield make_cluster(servers)
    for server in servers.values():
        for model in ("sum", "other"):
            server.unload(model)


INPUT = [1, 2] + [0] * 14
REQUEST = {
    "inputs": [
        {"name": name, "datatype": "INT32", "shape": [1, 16], "data": INPUT}
        for name in ("INPUT0", "INPUT1")
    ]
}


def test_a_model_is_loaded_and_unloaded_on_all(cluster, servers):
    assert cluster.call("POST", "/v2/repository/models/sum/load")[0] == 200
    assert [server.states("sum") for server in servers.values()] == [{"1": "READY"}] * 2
    ready = {"name": "sum", "version": "1", "state": "READY"}
    assert ready in cluster.call("POST", "/v2/repository/index")[1]
    cluster.call_by_grpc("RepositoryModelUnload", model_name="sum")
    assert [server.states("sum")["1"] for server in servers.values()] == ["UNAVAILABLE"] * 2


def test_what_fails_on_one_is_an_error_that_names_it(cluster, servers):
    status, document = cluster.call("POST", "/v2/repository/models/other/load")
    assert status >= 400
    assert document["error"].startswith("failed on 1 of 2 replicas; make the call again. b: ")
    with pytest.raises(grpc.RpcError) as caught:
        cluster.call_by_grpc("RepositoryModelLoad", model_name="other")
    assert "failed on 1 of 2 replicas; make the call again. b: " in caught.value.details()
    assert cluster.control.calls.last == 0
    # One that fails everywhere alike is as from one server.
    over_http = cluster.call("POST", "/v2/repository/models/none/load")
    own = servers["a"].load("none")
    assert over_http == (own.status, own.json)


def test_statistics_and_index_are_those_of_all(cluster, servers):
    cluster.call("POST", "/v2/repository/models/sum/load")
    for count, server in enumerate(servers.values(), 1):
        for _ in range(count):
            assert server.post("/v2/models/sum/infer", REQUEST).status == 200
    (model,) = cluster.call("GET", "/v2/models/sum/stats")[1]["model_stats"]
    assert model["inference_count"] == 3
    assert model["inference_stats"]["success"]["count"] == 3
    (by_grpc,) = cluster.call_by_grpc("ModelStatistics", name="sum").model_stats
    assert by_grpc.inference_count == 3
    assert by_grpc.inference_stats.success.ns == model["inference_stats"]["success"]["ns"]
    assert by_grpc.version == "1"
    rows = cluster.call_by_grpc("RepositoryIndex").models
    assert {(row.name, row.state) for row in rows} >= {("sum", "READY")}
    servers["b"].unload("sum")
    index = cluster.call("POST", "/v2/repository/index")[1]
    (row,) = [row for row in index if row["name"] == "sum"]
    assert row["state"] == "UNAVAILABLE"


def test_metrics_and_console_are_those_of_all(cluster):
    cluster.call("POST", "/v2/repository/models/sum/load")
    status, text = cluster.call("GET", "/metrics")
    assert status == 200
    families = {one.name: one for one in text_string_to_metric_families(text.decode())}
    samples = families["nv_inference_request_success"].samples
    assert {sample.labels["replica"] for sample in samples} == {"a", "b"}
    state = cluster.call("GET", "/v2/console")[1]
    assert [row["name"] for row in state["machine"]["processes"]] == ["replica-a", "replica-b"]


def test_settings_reach_all(cluster, servers):
    status, _ = cluster.call("POST", "/v2/logging", {"log_verbose_level": 3})
    assert status == 200
    assert [s.get("/v2/logging").json["log_verbose_level"] for s in servers.values()] == [3, 3]
    assert cluster.call("GET", "/v2/logging")[1]["log_verbose_level"] == 3
    request = messages.LogSettingsRequest()
    request.settings["log_verbose_level"].uint32_param = 0
    cluster.call_by_grpc("LogSettings", settings=request.settings)
    assert [s.get("/v2/logging").json["log_verbose_level"] for s in servers.values()] == [0, 0]
    assert len(cluster.control.calls.since(0)) == 1  # the second one replaced the first
    assert cluster.call_by_grpc("LogSettings").settings["log_verbose_level"].uint32_param == 0


def test_a_replica_that_joins_gets_what_the_others_had(make_cluster, servers, cluster):
    one = make_cluster({"a": servers["a"]})
    one.call("POST", "/v2/repository/models/sum/load")
    one.call_by_grpc("RepositoryModelLoad", model_name="other")
    with pytest.raises(Unavailable, match=r"RepositoryModelLoad failed: .*other"):
        one.join("b", servers["b"])
    assert servers["b"].states("sum") == {"1": "READY"}
    assert [one.id for one in one.directory.serving()] == ["a"]
    one.call("POST", "/v2/repository/models/other/unload")
    one.join("b", servers["b"])
    assert [one.id for one in one.directory.serving()] == ["a", "b"]

    # The next ingress finds the calls, and repeats none for replicas that have had them.
    second = make_cluster({})
    second.control.calls.load(one.stored[-1])
    servers["b"].unload("sum")
    second.join("a", servers["a"], calls=3)
    second.join("b", servers["b"], calls=3)
    assert servers["b"].states("sum") == {"1": "UNAVAILABLE"}
    second.directory.forget("b")
    second.join("b", servers["b"], calls=0)
    assert servers["b"].states("sum") == {"1": "READY"}


def test_a_group_gets_the_calls_of_its_models(make_cluster, servers, cluster):
    groups = [{"name": "default", "models": ["sum"]}, {"name": "others"}]
    one = make_cluster({"a": servers["a"]}, groups=groups)
    assert one.call("POST", "/v2/repository/models/sum/load")[0] == 200
    status, document = one.call("POST", "/v2/repository/models/other/load")
    assert (status, document) == (503, {"error": "no replica is ready; see /v2/replicas"})


def test_without_replicas(make_cluster):
    empty = make_cluster({})
    expected = "no replica is ready; see /v2/replicas"
    assert empty.call("GET", "/metrics") == (503, {"error": expected})
    with pytest.raises(grpc.RpcError) as caught:
        empty.call_by_grpc("RepositoryIndex")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == expected
    assert empty.call("GET", "/v2/replicas") == (200, {"version": 0, "replicas": []})


def test_a_replica_that_cannot_be_reached(cluster, servers, free_ports):
    ports = free_ports(3)
    cluster.directory.heartbeat(ReplicaAddress("c", "default", "127.0.0.1", *ports), {})
    cluster.directory.joined("c")
    status, document = cluster.call("POST", "/v2/repository/models/sum/load")
    assert status == 503
    assert "failed on 1 of 3 replicas" in document["error"]
    assert "c: the replica cannot be reached" in document["error"]
    assert cluster.call("GET", "/v2/models/sum/stats")[0] == 200  # of those that answer
    assert cluster.call_by_grpc("ModelStatistics", name="sum").model_stats[0].name == "sum"


def test_the_addresses(cluster, servers):
    status, document = cluster.call("GET", "/v2/replicas")
    assert status == 200
    first = document["replicas"][0]
    assert first == {
        "id": "a",
        "group": "default",
        "http": servers["a"].http_address,
        "grpc": servers["a"].grpc_address,
        "metrics": servers["a"].metrics_address,
        "state": State.SERVING.value,
        "models": None,
        "rate": 1.2346,
    }
    response = RawResponse(200, {}, json.dumps(document).encode())
    for scheme, protocol in (("shoal+ray", "http"), ("shoal+ray+grpc", "grpc")):
        listed = read_list(response, parse(f"{scheme}://ingress", replicas=True))
        found = {one.id: one.address.authority for one in listed}
        assert found == {id_: getattr(one, f"{protocol}_address") for id_, one in servers.items()}
        assert {(one.group, one.models, one.state) for one in listed} == {
            ("default", None, "serving")
        }


@pytest.fixture
def run_keyed(tmp_path):
    """Starts a server that requires keys, with these entries."""
    add_onnx(tmp_path / "models", "sum", onnx_models.add_sub("INT32"), "max_batch_size: 8")
    with contextlib.ExitStack() as stack:
        numbers = itertools.count()

        def run(**entries):
            keys = write_keys(tmp_path / f"keys{next(numbers)}", **entries)
            return stack.enter_context(
                running_server(
                    tmp_path / "models",
                    model_control_mode="explicit",
                    api_keys=keys,
                    api_key_header="X-Key",
                )
            )

        yield run


@pytest.fixture
def keyed(run_keyed):
    return run_keyed(app={}, metrics={"apis": ["metrics"]})


@pytest.mark.parametrize("header", ["authorization", "x-key"])
def test_calls_are_repeated_after_their_key_has_ended(make_cluster, run_keyed, monkeypatch, header):
    admin = {"apis": ["model-repository", "logging"]}
    one = make_cluster(
        {"first": run_keyed(admin=admin)}, groups=[{"options": ["--api-key-header=X-Key"]}]
    )
    key = {header: bearer("admin")["authorization"] if header != "x-key" else key_of("admin")}
    assert one.call("POST", "/v2/repository/models/sum/load", headers=key)[0] == 200
    request = messages.LogSettingsRequest()
    request.settings["log_verbose_level"].uint32_param = 0
    one.call_by_grpc("LogSettings", settings=request.settings, metadata=key.items())
    assert key_of("admin") not in one.stored[-1].decode()
    # The replica has told its server a key of its own, and the ingress with its heartbeats.
    monkeypatch.setenv("SHOAL_PARENT_KEY_SHA256", digest_of(b"own").hex())
    second = run_keyed(admin2=admin)
    with pytest.raises(Unavailable, match="does not know the key"):
        one.join("second", second, key="wrong")
    one.directory.forget("second")
    one.join("second", second, key="own")
    status, index = one.call(
        "POST", "/v2/repository/index", headers={"authorization": "Bearer own"}
    )
    assert status == 200  # of the second one, which alone has this key
    assert index == [{"name": "sum", "version": "1", "state": "READY"}]


def test_the_addresses_need_a_key_where_replicas_do(make_cluster, keyed, free_ports):
    one = make_cluster({"k": keyed})
    status, document = one.call("GET", "/v2/replicas")
    own = keyed.get("/v2")
    assert (status, document) == (own.status, own.json)
    assert status == 401
    assert one.headers["www-authenticate"] == own.headers["www-authenticate"]
    assert one.call("GET", "/v2/replicas", headers=bearer("metrics"))[0] == 403
    status, document = one.call("GET", "/v2/replicas", headers=bearer("app"))
    assert status == 200
    assert [row["id"] for row in document["replicas"]] == ["k"]
    # Nobody can check the key of a client while no replica answers.
    alone = make_cluster({})
    place = ReplicaAddress("x", "default", "127.0.0.1", *free_ports(3))
    alone.directory.heartbeat(place, {})
    assert alone.call("GET", "/v2/replicas", headers=bearer("app"))[0] == 503


def test_the_addresses_of_a_group_without_keys_need_none(make_cluster, keyed, servers):
    groups = [{"name": "default", "models": ["sum"]}, {"name": "keyed"}]
    one = make_cluster({"a": servers["a"]}, groups=groups)
    one.join("k", keyed, group="keyed")
    document = one.call("GET", "/v2/replicas")[1]
    assert [row["id"] for row in document["replicas"]] == ["a"]
    document = one.call("GET", "/v2/replicas", headers=bearer("app"))[1]
    assert [row["id"] for row in document["replicas"]] == ["a", "k"]


def test_a_client_behind_the_ingress_may_not_send_model_files(cluster):
    """Its requests come from this machine, but it may be anywhere."""
    connection = http.client.HTTPConnection("localhost", timeout=WAIT_SECS)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(cluster.paths[0]))
    body = {"parameters": {"config": "{}", "file:1/model.py": "eA=="}}
    with contextlib.closing(connection):
        connection.request(
            "POST",
            "/v2/repository/models/m/load",
            json.dumps(body),
            {"X-Forwarded-For": "10.0.0.1"},  # from HAProxy
        )
        answer = connection.getresponse()
        assert "may not upload model files" in json.loads(answer.read())["error"]
    assert answer.status == 403
