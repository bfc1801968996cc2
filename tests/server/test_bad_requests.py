"""Bodies, lengths, JSON and paths that are wrong: a sentence each, and the server goes on."""

import gzip
import http.client
import socket
import zlib

import numpy as np
import pytest

from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.client import LENGTH_HEADER, Infer, outputs
from tests.support.fakes import WAIT_SECS
from tests.support.refusals import (
    add_models,
    check_refused,
    check_still_serving,
    one_input,
    valid_request,
)
from tests.support.repositories import EXECUTION_MODES, add_onnx, execution

MAX_INPUT = 1 << 20
MAX_BODY = 4 << 20
HEAD = "POST /v2/models/sum/infer HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    add_models(folder)
    with running_server(
        folder, http_max_input_size=MAX_INPUT, http_max_body_size=MAX_BODY
    ) as server:
        yield server


@pytest.fixture(autouse=True)
def still_serving(running, request):
    caplog = request.getfixturevalue("caplog")  # of other processes it sees nothing
    yield
    check_still_serving(running, caplog)


# ---- bodies and lengths


def exchange(running, sent, *, end=True):
    """Send raw bytes on a connection of their own; everything that came back."""
    place = ("127.0.0.1", running.server.http_port)
    with socket.create_connection(place, timeout=WAIT_SECS) as client:
        client.sendall(sent)
        if end:
            client.shutdown(socket.SHUT_WR)
        received = b""
        while piece := client.recv(1 << 16):
            received += piece
        return received


def test_a_truncated_body(running):
    body, _ = valid_request().body()
    sent = f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body[:-5]
    received = exchange(running, sent)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b'{"error":"the connection ended before the request did"}' in received


def test_a_truncated_chunked_body(running):
    body, _ = valid_request().body()
    chunk = f"{len(body):x}\r\n".encode() + body[:-5]
    received = exchange(running, f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk)
    assert b'{"error":"the connection ended before the request did"}' in received


def test_a_content_length_that_is_too_short(running):
    """The JSON ends early, and what is left over is no request."""
    body, _ = valid_request().body()
    sent = f"{HEAD}Content-Length: {len(body) - 5}\r\n\r\n".encode() + body
    received = exchange(running, sent, end=False)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b"failed to parse the request JSON buffer" in received
    assert received.count(b"HTTP/1.1 400 ") == 2


@pytest.mark.parametrize(
    "lines",
    [
        "Content-Length: -1",
        "Content-Length: 12 cats",
        "Content-Length: 1\r\nContent-Length: 2",
        "Content-Length: 99999999999999999999999",
        "Content-Length: 5\r\nTransfer-Encoding: gzip, chunked",
    ],
)
def test_content_lengths_that_are_none(running, lines):
    received = exchange(running, f"{HEAD}{lines}\r\n\r\n".encode(), end=False)
    assert received.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 ", b"HTTP/1.1 501 "))
    assert b'{"error":"' in received


def test_a_body_larger_than_allowed_is_refused_before_it_is_sent(running):
    received = exchange(running, f"{HEAD}Content-Length: {MAX_BODY + 1}\r\n\r\n".encode())
    assert received.startswith(b"HTTP/1.1 413 ")
    assert str(MAX_BODY).encode() in received


def test_a_chunked_body_larger_than_allowed(running):
    piece = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    sent = f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + piece * 65
    assert exchange(running, sent).startswith(b"HTTP/1.1 413 ")


def test_json_larger_than_allowed(running):
    answer = running.post("/v2/models/sum/infer", b" " * (MAX_INPUT + 1))
    check_refused(answer, f"exceeds the maximum allowed input size of {MAX_INPUT} bytes")


def test_a_json_tensor_larger_than_allowed(running):
    answer = running.post("/v2/models/echo_FP32/infer", one_input("FP32", [1, MAX_INPUT], []))
    check_refused(answer, "exceeds the maximum allowed value", "--http-max-input-size")


def test_a_raw_body_larger_than_allowed(running):
    body = bytes(MAX_INPUT + 4)
    answer = running.post("/v2/models/echo_FP32/infer", body, {LENGTH_HEADER: "0"})
    check_refused(answer, "Raw input has a byte_size", "--http-max-input-size")


def test_a_binary_tensor_may_be_larger_than_that(running):
    array = np.zeros((1, MAX_INPUT // 2), np.float32)
    infer = Infer(binary_data_output=True).add("INPUT0", array, binary=True)
    assert outputs(infer.send(running, "echo_FP32"))["OUTPUT0"].shape == array.shape


@pytest.mark.parametrize("level", [1, 9])
def test_a_small_body_that_unpacks_to_a_huge_one(running, level):
    bomb = gzip.compress(bytes(64 << 20), level)
    answer = running.post("/v2/models/sum/infer", bomb, {"Content-Encoding": "gzip"})
    check_refused(answer, f"exceeds the maximum allowed value of {MAX_INPUT} bytes")


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: b"",
        lambda packed: b"not packed at all",
        lambda packed: packed[:-6],
        lambda packed: packed[:20] + b"\xff\xff\xff\xff" + packed[24:],
        lambda packed: packed + b"and more",
    ],
    ids=["empty", "plain", "cut", "damaged", "longer"],
)
def test_packed_bodies_that_are_damaged(running, coding, damage):
    body, _ = valid_request().body()
    packed = damage(gzip.compress(body) if coding == "gzip" else zlib.compress(body))
    answer = running.post("/v2/models/sum/infer", packed, {"Content-Encoding": coding})
    check_refused(answer, "decompress")


# ---- the length of the JSON header


@pytest.mark.parametrize("length", ["1000000", "-1", "99999999999999999999", "-0x1"])
def test_a_header_length_beyond_the_body(running, length):
    body, _ = valid_request().body()
    answer = running.post("/v2/models/sum/infer", body, {LENGTH_HEADER: length})
    check_refused(answer)


@pytest.mark.parametrize("length", ["", "ten", "1.5", "0x10", "1 2", "١٢"])
def test_a_header_length_that_is_no_number(running, length):
    headers = {LENGTH_HEADER: length.encode().decode("latin-1")}
    answer = running.post("/v2/models/sum/infer", valid_request().body()[0], headers)
    check_refused(answer, "Unable to parse Inference-Header-Content-Length")


def test_a_header_length_within_the_json(running):
    body, _ = valid_request().body()
    answer = running.post("/v2/models/sum/infer", body, {LENGTH_HEADER: str(len(body) - 3)})
    check_refused(answer, "failed to parse the request JSON buffer")


def test_a_header_length_beyond_the_json(running):
    infer = valid_request()
    body, _ = infer.body()
    headers = {LENGTH_HEADER: str(len(body) + 2)}
    check_refused(running.post("/v2/models/sum/infer", body + b"\0\0\0\0", headers))


def test_a_packed_body_with_a_header_length_beyond_it(running):
    body, _ = valid_request().body()
    headers = {LENGTH_HEADER: str(len(body) + 1), "Content-Encoding": "gzip"}
    check_refused(running.post("/v2/models/sum/infer", gzip.compress(body), headers), "range")


# ---- JSON


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"null",
        b"[]",
        b"7",
        b'"text"',
        b"{}",
        b'{"inputs":{}}',
        b'{"inputs":[7]}',
        b'{"inputs":[[]]}',
        b'{"inputs":[{}]}',
        b'{"inputs":[]}',
        b'{"inputs":[]} trailing',
        b'{"inputs":[],}',
        b"{'inputs':[]}",
        b"\xff\xfe{\x00}\x00",
        b"\x00",
        b'{"id":7,"inputs":[]}',
        b'{"inputs":null}',
        b"inputs=1&outputs=2",
        b"NaN",
        b'{"inputs":NaN}',
    ],
)
def test_json_that_is_no_request(running, body):
    check_refused(running.post("/v2/models/sum/infer", body))


DEEP = "[" * 10_000 + "]" * 10_000


@pytest.mark.parametrize(
    "body",
    [
        DEEP,
        "[" * 10_000,
        '{"a":' * 10_000,
        f'{{"inputs":{DEEP}}}',
        f'{{"inputs":[],"anything":{DEEP}}}',
        f'{{"inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[1,2],"data":{DEEP}}}]}}',
        f'{{"inputs":[],"parameters":{{"a":{DEEP}}}}}',
        f'{{"inputs":[],"nan":NaN,"a":{DEEP}}}',
    ],
)
def test_json_nested_ten_thousand_deep(running, body):
    check_refused(running.post("/v2/models/sum/infer", body.encode()))


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/models/sum/load"])
def test_other_bodies_nested_ten_thousand_deep(running, path):
    body = f'{{"parameters":{{"config":{DEEP}}},"ready":{DEEP}}}'.encode()
    check_refused(running.post(path, body))


@pytest.mark.parametrize("deep", [98, 99, 100, 101, 5000])
def test_data_nested_deeper_than_a_hundred(running, deep):
    data = "[" * deep + "1.5" + "]" * deep
    body = one_input("FP32", [1, 1], 0).replace(b'"data": 0', f'"data": {data}'.encode())
    answer = running.post("/v2/models/echo_FP32/infer", body)
    if deep < 99:
        assert outputs(answer)["OUTPUT0"].tolist() == [[1.5]]
    elif deep > 100:
        check_refused(answer, "JSON nesting depth exceeds maximum allowed limit (100)")
    else:
        assert answer.status in (200, 400)


# ---- models that are not there

UNKNOWN = [
    ("GET", "/v2/models/nope"),
    ("GET", "/v2/models/nope/config"),
    ("GET", "/v2/models/nope/stats"),
    ("GET", "/v2/models/nope/ready"),
    ("POST", "/v2/models/nope/infer"),
]


@pytest.mark.parametrize(("method", "path"), UNKNOWN)
def test_unknown_models(running, method, path):
    answer = running.call(method, path, b"{}" if method == "POST" else None).response()
    check_refused(answer, "Request for unknown model: 'nope' is not found", status=404)


@pytest.mark.parametrize(("method", "path"), UNKNOWN)
@pytest.mark.parametrize("version", [1, 3, 0, 2**63 - 1])
def test_unknown_versions(running, method, path, version):
    """Version 1 is there, but the policy serves the latest one alone."""
    place = path.replace("nope", f"sum/versions/{version}")
    answer = running.call(method, place, b"{}" if method == "POST" else None).response()
    check_refused(
        answer, f"Request for unknown model: 'sum' version {version} is not found", status=404
    )


@pytest.mark.parametrize("version", ["-1", "latest", "1.0", "1a", "%31%20", ""])
def test_versions_that_are_no_numbers(running, version):
    answer = running.get(f"/v2/models/sum/versions/{version}/ready")
    assert (answer.status, answer.error) == (404, "Not Found")


def test_a_version_beyond_64_bits(running):
    check_refused(running.get(f"/v2/models/sum/versions/{2**64}/ready"), "64 bits")


@pytest.mark.parametrize("action", ["infer", "ready", "config"])
@pytest.mark.parametrize(
    "name", ["..", ".", "%2e%2e", "..%2fsum", "..%2f..%2fetc%2fpasswd", "sum%2f1", "%00", "sum%00"]
)
def test_path_tricks_in_model_names(running, name, action):
    method = "POST" if action == "infer" else "GET"
    answer = running.call(method, f"/v2/models/{name}/{action}").response()
    assert answer.status == 404, answer
    assert "root:" not in answer.body.decode()


@pytest.mark.parametrize(
    "path",
    ["//v2", "/v2/models", "/v2/models//infer", "/v2/../v2", "/v3", "/V2", "/%76%32"],
)
def test_unknown_paths(running, path):
    answer = running.get(path)
    assert (answer.status, answer.error) == (404, "Not Found")


# ---- clients that go away


def test_a_client_that_disconnects_mid_body(running):
    place = ("127.0.0.1", running.server.http_port)
    for cut in (1, 60, 5000):
        with socket.create_connection(place, timeout=WAIT_SECS) as client:
            head = f"{HEAD}Content-Length: 100000\r\n\r\n".encode()
            client.sendall((head + bytes(99_999))[: len(head) + cut])
    wait_until(lambda: not running.server.ports.http.open_connections, "every connection is gone")


@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_a_client_that_disconnects_mid_response(tmp_path, mode):
    """The answer is far larger than what sockets hold, and the client reads a little of it."""
    config = "max_batch_size: 8" + execution(mode)
    add_onnx(tmp_path, "echo", onnx_models.identity("FP32"), config)
    array = np.zeros((1, 8 << 20), np.float32)
    body, headers = Infer(binary_data_output=True).add("INPUT0", array, binary=True).body()
    with running_server(tmp_path) as server:
        for _ in range(2):
            connection = http.client.HTTPConnection(
                "127.0.0.1", server.server.http_port, timeout=WAIT_SECS
            )
            connection.request("POST", "/v2/models/echo/infer", body, headers)
            response = connection.getresponse()
            assert response.status == 200
            assert len(response.read(1000)) == 1000
            response.close()
            connection.close()
        wait_until(
            lambda: not server.server.ports.http.open_connections, "every connection is gone"
        )
        assert server.statistics("echo")["inference_stats"]["success"]["count"] == 2
        small = Infer().add("INPUT0", array[:, :2]).send(server, "echo")
        assert outputs(small)["OUTPUT0"].tolist() == [[0, 0]]
