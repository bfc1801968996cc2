"""Web pages must not drive the server: neither from another origin nor by rebinding a name."""

from __future__ import annotations

import http.client
import json

import numpy as np
import pytest

from shoal.testing.server import ADDRESS, HttpResponse, running_server
from shoal.wire.json_objects import JsonObjects, StreamError
from tests.support import onnx_models
from tests.support.client import Infer, outputs
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import add_onnx

STRANGER = "https://stranger.example"
FRIEND = "https://friend.example"
HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    add_onnx(folder, "sum", onnx_models.add_sub("INT32"), "max_batch_size: 8")
    return folder


@pytest.fixture(scope="module")
def running(repository):
    with running_server(repository, model_control_mode="explicit", load_model=("sum",)) as server:
        yield server


def add_sub(number=0):
    row = np.arange(16, dtype=np.int32)[None] + number
    infer = Infer(binary_data_output=True)
    return infer.add("INPUT0", row, binary=True).add("INPUT1", row, binary=True)


def infer(server, headers):
    return add_sub().send(server, "sum", headers)


def own(server):
    return f"http://{server.http_address}"


# ---- other origins


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/models/sum/infer", b"{}"),
        ("/v2/models/sum/generate", b"{}"),
        ("/v2/repository/index", b""),
        ("/v2/repository/models/sum/load", b""),
        ("/v2/repository/models/sum/unload", b""),
        ("/v2/systemsharedmemory/region/r/register", b'{"key":"/r","byte_size":1}'),
        ("/v2/systemsharedmemory/unregister", b""),
        ("/v2/cudasharedmemory/unregister", b""),
        ("/v2/trace/setting", b'{"trace_rate":"1"}'),
        ("/v2/logging", b'{"log_verbose_level":1}'),
        ("/v1/embeddings", b"{}"),
        ("/no/such/path", b""),
    ],
)
@pytest.mark.parametrize(
    "browser",
    [
        {"Origin": STRANGER},
        {"Origin": "null"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "something new"},
        {"Origin": STRANGER, "Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"},
    ],
    ids=str,
)
def test_pages_of_other_origins_change_nothing(running, path, body, browser):
    answer = running.post(path, body, browser)
    assert answer.status == 403, answer
    assert b"--cors" in answer.body
    assert running.states("sum") == {"1": "READY"}


def test_the_error_says_what_to_do(running):
    assert running.post("/v2/repository/models/sum/unload", b"", {"Origin": STRANGER}).error == (
        "a web page of 'https://stranger.example' sent this request, and only the server's own "
        "pages may do that; start the server with --cors=https://stranger.example to allow it"
    )


def test_a_long_origin_is_not_repeated(running):
    answer = running.post("/v2/models/sum/infer", b"{}", {"Origin": "https://" + "x" * 5000})
    assert answer.status == 403
    assert len(answer.body) < 500


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
def test_methods_that_no_route_has(running, method):
    answer = running.call(method, "/v2", headers={"Origin": STRANGER}).response()
    assert answer.status == 403


def test_reading_is_left_to_the_browsers_own_rules(running):
    answer = running.get("/v2", {"Origin": STRANGER, "Sec-Fetch-Site": "cross-site"})
    assert answer.status == 200
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "browser",
    [
        {},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "OWN"},
        {"Origin": "OWN", "Sec-Fetch-Site": "same-origin"},
        {"Origin": STRANGER, "Sec-Fetch-Site": "same-origin"},  # a proxy has changed Host
    ],
    ids=str,
)
def test_its_own_pages_and_programs_are_served(running, browser):
    headers = {name: own(running) if value == "OWN" else value for name, value in browser.items()}
    assert outputs(infer(running, headers))["OUTPUT1"].tolist() == [[0] * 16]


def test_a_page_of_another_port_or_scheme_is_another_origin(running):
    for origin in (f"http://{ADDRESS}:1", f"http://{ADDRESS}", own(running) + "/", "http://"):
        assert infer(running, {"Origin": origin}).status == 403, origin
    headers = {"Origin": own(running), "Sec-Fetch-Site": "same-site"}
    assert infer(running, headers).status == 403


def test_origins_that_the_operator_allows(repository):
    with running_server(repository, cors=(FRIEND,)) as server:
        friend = {"Origin": FRIEND, "Sec-Fetch-Site": "cross-site"}
        assert outputs(infer(server, friend))["OUTPUT1"].tolist() == [[0] * 16]
        assert infer(server, {"Origin": STRANGER}).status == 403
        assert infer(server, {"Origin": own(server)}).status == 200
        assert infer(server, {**friend, "Host": "rebound.example"}).status == 403
    with running_server(repository, cors=("*",)) as server:
        assert infer(server, {"Origin": STRANGER}).status == 200
        assert infer(server, {"Sec-Fetch-Site": "cross-site"}).status == 200


# ---- rebinding


def rebound(host):
    """What a page sends whose name suddenly resolves to this machine."""
    return {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}


def test_a_rebound_name_is_refused(running):
    answer = infer(running, rebound("rebound.example:8000"))
    assert answer.status == 403
    assert answer.error == (
        "a web page reached this server as 'rebound.example:8000', which is not one of its names; "
        "start the server with --http-allowed-hosts=rebound.example to allow it"
    )


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:8000", "localhost.", "shoal.localhost:1"),
        *("127.0.0.1:8000", "10.1.2.3", "[::1]:8000", "[fe80::1]"),
    ],
)
def test_names_of_this_machine_and_addresses(running, host):
    assert infer(running, rebound(host)).status == 200
    assert running.get("/", {**HTML, "Host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        *("", "rebound.example", "localhost.rebound.example", "127.0.0.1.rebound.example"),
        *("127.0.0.1@rebound.example", "[::1].rebound.example", "1.2.3.4.5", "notlocalhost"),
        *("0x7f000001", "[localhost]", "localhost:80:80", "[::1", "::1", "127.0.0.1/x"),
    ],
)
def test_what_only_looks_like_them(running, host):
    for answer in (
        infer(running, rebound(host)),
        running.get("/v2/console", {"Host": host}),
        running.get("/console/console.js", {"Host": host}),
        running.get("/", {**HTML, "Host": host}),
    ):
        assert answer.status == 403, (host, answer)
        assert "--http-allowed-hosts" in answer.error


def test_programs_may_use_any_name(running):
    service = {"Host": "shoal.default.svc.cluster.local:8000"}
    assert infer(running, service).status == 200
    assert running.get("/v2", service).status == 200
    assert running.get("/", service).json["server"] == "shoal"


def test_names_that_the_operator_allows(repository):
    hosts = ("shoal.example,gpu-box:9000", "Other.example")
    with running_server(repository, http_allowed_hosts=hosts) as server:
        for host in ("shoal.example", "SHOAL.example:8000", "gpu-box:9000", "other.example."):
            assert infer(server, rebound(host)).status == 200, host
            assert server.get("/v2/console", {"Host": host}).status == 200
        for host in ("gpu-box", "gpu-box:8000", "rebound.example"):
            assert infer(server, rebound(host)).status == 403, host
    with running_server(repository, http_allowed_hosts=("*",)) as server:
        assert infer(server, rebound("any.example")).status == 200


def test_the_console_needs_no_option_at_an_address(running):
    assert b"<html" in running.get("/", HTML).body
    assert running.get("/v2/console").status == 200


# ---- the fast path


def test_templates_do_not_let_pages_in(running):
    """What a program repeats takes the fast path; the same body from a page does not get in."""
    body, needed = add_sub().body()
    connection = http.client.HTTPConnection(ADDRESS, running.server.http_port, timeout=WAIT_SECS)

    def send(headers):
        connection.request("POST", "/v2/models/sum/infer", body, {**needed, **headers})
        return HttpResponse(connection.getresponse())

    for _ in range(8):
        assert send({}).status == 200
    for browser in ({"Origin": STRANGER}, rebound("rebound.example"), {"Sec-Fetch-Site": "x"}):
        for _ in range(8):
            assert send(browser).status == 403
            assert send({}).status == 200
            assert send({"Origin": own(running)}).status == 200
    connection.close()


def test_a_page_that_may_call_takes_the_fast_path(running):
    """Its head was checked when the template was found, and the same bytes are the same head.

    However many others were refused: these say nothing about it.
    """
    fast_path = running.server.ports.application.fast_path
    found, taken = fast_path.find, []

    def find(head, data):
        pattern = found(head, data)
        if pattern is not None:
            taken.append(head.fields[b"origin"])
        return pattern

    only_here = {"X-Only-Here": "1"}  # no other test has left a pattern for this head
    fast_path.find = find
    try:
        for _ in range(20):
            assert infer(running, {"Origin": STRANGER, **only_here}).status == 403
        for _ in range(4):
            assert infer(running, {"Origin": own(running), **only_here}).status == 200
            assert infer(running, {"Origin": STRANGER, **only_here}).status == 403
    finally:
        fast_path.find = found
    assert set(taken) == {own(running).encode()}


def test_errors_below_v1_have_their_own_format(running):
    answer = running.post("/v1/completions", b"{}", {"Origin": STRANGER})
    assert answer.status == 403
    assert "--cors" in json.loads(answer.body)["error"]["message"]


def test_the_tcp_port_ends_a_connection_that_speaks_http():
    """Otherwise the body of any page's POST would be a question."""
    objects = JsonObjects(1000)
    objects.feed(b'POST / HTTP/1.1\r\nHost: x\r\n\r\n{"text":"a","question":"b"}\n')
    with pytest.raises(StreamError, match=r"found 'POST / HTTP/1\.1'") as end:
        objects.take()
    assert end.value.final
