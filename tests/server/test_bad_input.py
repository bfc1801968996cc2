"""Requests that are wrong in every way we could think of: a sentence each, and the server goes on."""

import gzip
import http.client
import json
import socket
import struct
import zlib

import numpy as np
import pytest

from shoal.testing import onnx_models
from shoal.testing.client import LENGTH_HEADER, Infer, outputs
from shoal.testing.fakes import WAIT_SECS
from shoal.testing.repositories import EXECUTION_MODES, add_onnx, execution
from shoal.testing.server import running_server, wait_until

MAX_INPUT = 1 << 20
MAX_BODY = 4 << 20
HEAD = "POST /v2/models/sum/infer HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    config = "max_batch_size: 8 dynamic_batching { }" + execution("loop")
    add_onnx(folder, "sum", onnx_models.add_sub("INT32", dims=(2,)), config, versions=(1, 2))
    for datatype in ("FP32", "BYTES", "BOOL", "UINT8", "INT64", "UINT64"):
        add_onnx(folder, f"echo_{datatype}", onnx_models.identity(datatype), config)
    with running_server(
        folder, http_max_input_size=MAX_INPUT, http_max_body_size=MAX_BODY
    ) as server:
        yield server


@pytest.fixture(autouse=True)
def goes_on(running, caplog):
    """Whatever a test did: nothing took the server by surprise, and it serves the next client."""
    yield
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
    assert outputs(good().send(running, "sum"))["OUTPUT0"].tolist() == [[4, 6]]
    assert running.faults == []


def good():
    infer = Infer().add("INPUT0", np.array([[1, 2]], np.int32))
    return infer.add("INPUT1", np.array([[3, 4]], np.int32))


def refused(answer, *texts, status=400):
    assert answer.status == status, answer
    for text in texts:
        assert text in answer.error
    assert len(answer.error.split()) > 3, f"no sentence: {answer.error}"


def one(datatype, shape, data, **more):
    """A request for an echo model, whatever it may hold."""
    entry = {"name": "INPUT0", "datatype": datatype, "shape": shape, "data": data, **more}
    return json.dumps({"inputs": [entry]}).encode()


def binary(datatype, shape, blob, size=None):
    infer = Infer()
    infer.document["inputs"] = [
        {
            "name": "INPUT0",
            "datatype": datatype,
            "shape": shape,
            "parameters": {"binary_data_size": len(blob) if size is None else size},
        }
    ]
    infer.blobs = [blob]
    return infer


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
    body, _ = good().body()
    sent = f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body[:-5]
    received = exchange(running, sent)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b'{"error":"the connection ended before the request did"}' in received


def test_a_truncated_chunked_body(running):
    body, _ = good().body()
    chunk = f"{len(body):x}\r\n".encode() + body[:-5]
    received = exchange(running, f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk)
    assert b'{"error":"the connection ended before the request did"}' in received


def test_a_content_length_that_is_too_short(running):
    """The JSON ends early, and what is left over is no request."""
    body, _ = good().body()
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
    refused(answer, f"exceeds the maximum allowed input size of {MAX_INPUT} bytes")


def test_a_json_tensor_larger_than_allowed(running):
    answer = running.post("/v2/models/echo_FP32/infer", one("FP32", [1, MAX_INPUT], []))
    refused(answer, "exceeds the maximum allowed value", "--http-max-input-size")


def test_a_raw_body_larger_than_allowed(running):
    body = bytes(MAX_INPUT + 4)
    answer = running.post("/v2/models/echo_FP32/infer", body, {LENGTH_HEADER: "0"})
    refused(answer, "Raw input has a byte_size", "--http-max-input-size")


def test_a_binary_tensor_may_be_larger_than_that(running):
    array = np.zeros((1, MAX_INPUT // 2), np.float32)
    infer = Infer(binary_data_output=True).add("INPUT0", array, binary=True)
    assert outputs(infer.send(running, "echo_FP32"))["OUTPUT0"].shape == array.shape


@pytest.mark.parametrize("level", [1, 9])
def test_a_small_body_that_unpacks_to_a_huge_one(running, level):
    bomb = gzip.compress(bytes(64 << 20), level)
    answer = running.post("/v2/models/sum/infer", bomb, {"Content-Encoding": "gzip"})
    refused(answer, f"exceeds the maximum allowed value of {MAX_INPUT} bytes")


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
    body, _ = good().body()
    packed = damage(gzip.compress(body) if coding == "gzip" else zlib.compress(body))
    answer = running.post("/v2/models/sum/infer", packed, {"Content-Encoding": coding})
    refused(answer, "decompress")


# ---- the length of the JSON header


@pytest.mark.parametrize("length", ["1000000", "-1", "99999999999999999999", "-0x1"])
def test_a_header_length_beyond_the_body(running, length):
    body, _ = good().body()
    answer = running.post("/v2/models/sum/infer", body, {LENGTH_HEADER: length})
    refused(answer)


@pytest.mark.parametrize("length", ["", "ten", "1.5", "0x10", "1 2", "١٢"])
def test_a_header_length_that_is_no_number(running, length):
    headers = {LENGTH_HEADER: length.encode().decode("latin-1")}
    answer = running.post("/v2/models/sum/infer", good().body()[0], headers)
    refused(answer, "Unable to parse Inference-Header-Content-Length")


def test_a_header_length_within_the_json(running):
    body, _ = good().body()
    answer = running.post("/v2/models/sum/infer", body, {LENGTH_HEADER: str(len(body) - 3)})
    refused(answer, "failed to parse the request JSON buffer")


def test_a_header_length_beyond_the_json(running):
    infer = good()
    body, _ = infer.body()
    headers = {LENGTH_HEADER: str(len(body) + 2)}
    refused(running.post("/v2/models/sum/infer", body + b"\0\0\0\0", headers))


def test_a_packed_body_with_a_header_length_beyond_it(running):
    body, _ = good().body()
    headers = {LENGTH_HEADER: str(len(body) + 1), "Content-Encoding": "gzip"}
    refused(running.post("/v2/models/sum/infer", gzip.compress(body), headers), "range")


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
    refused(running.post("/v2/models/sum/infer", body))


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
    refused(running.post("/v2/models/sum/infer", body.encode()))


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/models/sum/load"])
def test_other_bodies_nested_ten_thousand_deep(running, path):
    body = f'{{"parameters":{{"config":{DEEP}}},"ready":{DEEP}}}'.encode()
    refused(running.post(path, body))


@pytest.mark.parametrize("deep", [98, 99, 100, 101, 5000])
def test_data_nested_deeper_than_a_hundred(running, deep):
    data = "[" * deep + "1.5" + "]" * deep
    body = one("FP32", [1, 1], 0).replace(b'"data": 0', f'"data": {data}'.encode())
    answer = running.post("/v2/models/echo_FP32/infer", body)
    if deep < 99:
        assert outputs(answer)["OUTPUT0"].tolist() == [[1.5]]
    elif deep > 100:
        refused(answer, "JSON nesting depth exceeds maximum allowed limit (100)")
    else:
        assert answer.status in (200, 400)


# ---- shapes


@pytest.mark.parametrize("as_data", [True, False])
@pytest.mark.parametrize(
    "shape",
    [
        [1, 2**62, 2**62],
        [2**32, 2**32],
        [1, 2**63 - 1],
        [1, 2**64],
        [10**30, 1],
        [0, 2**62, 2**62],
        [1, 2**61],
        [1] * 33,
        [1] * 1000,
        [2**31] * 8,
    ],
)
def test_shapes_whose_product_overflows(running, shape, as_data):
    if as_data:
        answer = running.post("/v2/models/echo_FP32/infer", one("FP32", shape, [1.0]))
    else:
        answer = binary("FP32", shape, bytes(4)).send(running, "echo_FP32")
    assert answer.status in (400, 500)
    assert len(answer.error.split()) > 3


@pytest.mark.parametrize(
    "shape",
    [[1, -1], [-1], [-(2**63)], [1, 1.0], [1, "1"], [1, None], [True, 1], [[1], 1], [1, {}]],
)
def test_dims_that_are_no_sizes(running, shape):
    """A server error by its code, as Triton answers; its clients know no other."""
    answer = running.post("/v2/models/echo_FP32/infer", one("FP32", shape, [1.0]))
    refused(answer, "Unable to parse 'shape'", status=500)


@pytest.mark.parametrize("shape", ["1", 1, None, {}, {"0": 1}])
def test_shapes_that_are_no_lists(running, shape):
    answer = running.post("/v2/models/echo_FP32/infer", one("FP32", shape, [1.0]))
    refused(answer, "Unable to parse 'shape'")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_a_dim_that_is_no_number(running, text):
    body = one("FP32", ["here"], [1.0]).replace(b'"here"', text.encode())
    refused(running.post("/v2/models/echo_FP32/infer", body), "shape", status=500)


@pytest.mark.parametrize("shape", [[], [1], [1, 1, 1], [1, 3]])
def test_shapes_that_the_model_does_not_have(running, shape):
    infer = good()
    infer.document["inputs"][0]["shape"] = shape
    infer.document["inputs"][0]["data"] = [1] * int(np.prod(shape))
    answer = infer.send(running, "sum")
    assert answer.status == 400
    assert "'INPUT0'" in answer.error
    if shape:
        assert "Expected [-1,2], got [" in answer.error


@pytest.mark.parametrize("rows", [0, 9])
def test_rows_that_no_batch_has(running, rows):
    array = np.zeros((rows, 2), np.int32)
    answer = Infer().add("INPUT0", array).add("INPUT1", array).send(running, "sum")
    refused(answer, "[request id: <id_unknown>] inference request batch-size must be ")


def test_inputs_of_different_rows(running):
    infer = Infer(id="r").add("INPUT0", np.zeros((1, 2), np.int32))
    answer = infer.add("INPUT1", np.zeros((2, 2), np.int32)).send(running, "sum")
    refused(answer, "[request id: r] input 'INPUT1' batch size does not match other inputs for")


# ---- inputs and outputs


def test_missing_inputs(running):
    answer = Infer().add("INPUT0", np.zeros((1, 2), np.int32)).send(running, "sum")
    refused(
        answer,
        "expected 2 inputs but got 1 inputs for model 'sum'. Got input(s) ['INPUT0'], but missing "
        "required input(s) ['INPUT1']. Please provide all required input(s).",
    )


def test_extra_inputs(running):
    answer = good().add("INPUT2", np.zeros((1, 2), np.int32)).send(running, "sum")
    refused(answer, "expected 2 inputs but got 3 inputs for model 'sum'")


def test_an_input_of_another_name(running):
    infer = good()
    infer.document["inputs"][1]["name"] = "INPUT7"
    refused(infer.send(running, "sum"), "'INPUT7'", "'sum'")


def test_an_input_twice(running):
    infer = good()
    infer.document["inputs"][1]["name"] = "INPUT0"
    refused(infer.send(running, "sum"), "input 'INPUT0' already exists in request")


@pytest.mark.parametrize("name", [None, 7, ["INPUT0"]])
def test_a_name_that_is_no_text(running, name):
    infer = good()
    infer.document["inputs"][0]["name"] = name
    refused(infer.send(running, "sum"), "Unable to parse 'name'")


def test_a_wrong_datatype(running):
    infer = Infer(id="7").add("INPUT0", np.zeros((1, 2), np.float32))
    answer = infer.add("INPUT1", np.zeros((1, 2), np.int32)).send(running, "sum")
    refused(
        answer,
        "[request id: 7] inference input 'INPUT0' data-type is 'FP32', but model 'sum' expects "
        "'INT32'",
    )


@pytest.mark.parametrize("datatype", ["int32", "TYPE_INT32", "STRING", "", "INT128", 7, None, []])
def test_an_unknown_datatype(running, datatype):
    infer = good()
    infer.document["inputs"][0]["datatype"] = datatype
    refused(infer.send(running, "sum"), "datatype")


@pytest.mark.parametrize("name", ["OUTPUT2", "INPUT0", ""])
def test_an_unknown_output(running, name):
    answer = good().want(name).send(running, "sum")
    refused(answer, f"unexpected inference output '{name}' for model 'sum'")


def test_an_output_twice(running):
    answer = good().want("OUTPUT0").want("OUTPUT0", binary_data=True).send(running, "sum")
    refused(answer, "output 'OUTPUT0' already exists in request")


@pytest.mark.parametrize(
    "parameters",
    [
        {"classification": -1},
        {"classification": "3"},
        {"classification": 1.5},
        {"binary_data": 1},
        {"binary_data": "true"},
        {"shared_memory_region": "r", "shared_memory_byte_size": 8},
        {"shared_memory_region": "r", "classification": 1},
    ],
)
def test_wrong_output_parameters(running, parameters):
    answer = good().want("OUTPUT0", **parameters).send(running, "sum")
    assert answer.status in (400, 404)
    assert len(answer.error.split()) > 3


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
@pytest.mark.parametrize("parameters", [7, [], None, "text"])
def test_tensor_parameters_that_are_no_object(running, kind, parameters):
    infer = good().want("OUTPUT0")
    infer.document[kind][0]["parameters"] = parameters
    refused(infer.send(running, "sum"), f"Unable to parse '{kind}'")


def test_an_input_in_shared_memory_that_nobody_registered(running):
    infer = good()
    del infer.document["inputs"][0]["data"]
    infer.document["inputs"][0]["parameters"] = {
        "shared_memory_region": "region",
        "shared_memory_byte_size": 8,
    }
    answer = infer.send(running, "sum")
    refused(answer, "Unable to find shared memory region: 'region'", status=404)


@pytest.mark.parametrize("parameters", [{}, {"binary_data_size": 8, "shared_memory_region": "r"}])
def test_an_input_from_nowhere_or_from_everywhere(running, parameters):
    infer = good()
    del infer.document["inputs"][0]["data"]
    infer.document["inputs"][0]["parameters"] = parameters
    refused(infer.send(running, "sum"), "Input must set only one of the following fields")


# ---- data


@pytest.mark.parametrize("data", [[], [1], [1, 2, 3], [[1, 2], [3]], [[], []]])
def test_data_longer_or_shorter_than_the_shape(running, data):
    infer = good()
    infer.document["inputs"][0]["data"] = data
    refused(infer.send(running, "sum"), "shape", "INPUT0")


@pytest.mark.parametrize("data", [None, 1, "12", {"0": 1, "1": 2}])
def test_data_that_is_no_list(running, data):
    infer = good()
    infer.document["inputs"][0]["data"] = data
    refused(infer.send(running, "sum"), "Unable to parse 'data'")


@pytest.mark.parametrize(
    ("datatype", "element"),
    [
        *(("INT64", text) for text in ("1.5", '"1"', "null", "true", "NaN", "{}", str(2**63))),
        *(("UINT8", text) for text in ("-1", "1e2", "true", "Infinity")),
        *(("UINT64", text) for text in ("-1", str(2**64))),
        *(("BOOL", text) for text in ("1", '"true"', "null", "NaN")),
        *(("FP32", text) for text in ('"1"', "null", "true", '"NaN"', "{}")),
        *(("BYTES", text) for text in ("1", "null", "true", "NaN", "{}")),
    ],
)
def test_elements_of_another_kind(running, datatype, element):
    body = one(datatype, [1, 1], ["here"]).replace(b'"here"', element.encode())
    refused(running.post(f"/v2/models/echo_{datatype}/infer", body), "'data'", "INPUT0")


@pytest.mark.parametrize(("size", "blob"), [(4, 4), (12, 12), (0, 0)])
def test_binary_data_longer_or_shorter_than_the_shape(running, size, blob):
    answer = binary("FP32", [1, 2], bytes(blob), size).send(running, "echo_FP32")
    refused(
        answer,
        "input byte size mismatch for input 'INPUT0' for model 'echo_FP32'. Expected 8, got "
        f"{size}",
    )


def test_binary_data_that_is_missing(running):
    answer = binary("FP32", [1, 2], bytes(5), 8).send(running, "echo_FP32")
    refused(
        answer,
        "unexpected size for input 'INPUT0', expecting 3 additional bytes for model 'echo_FP32'",
    )


def test_binary_data_that_belongs_to_nobody(running):
    answer = binary("FP32", [1, 2], bytes(12), 8).send(running, "echo_FP32")
    refused(answer, "unexpected additional input data for model 'echo_FP32'")


@pytest.mark.parametrize("size", [-8, "8", 8.0, None, 2**70])
def test_a_binary_size_that_is_none(running, size):
    infer = binary("FP32", [1, 2], bytes(8))
    infer.document["inputs"][0]["parameters"]["binary_data_size"] = size
    refused(infer.send(running, "echo_FP32"))


# ---- BYTES


@pytest.mark.parametrize(
    "element",
    [
        b'"\xff\xfe"',
        b'"\xc3("',
        b'"\xed\xa0\x80"',
        b'"\\ud800"',
        b'"\\udc00x"',
        b'"\\x41"',
        b'"\n"',
    ],
)
def test_invalid_utf_8_in_json(running, element):
    body = one("BYTES", [1, 1], ["here"]).replace(b'"here"', element)
    refused(running.post("/v2/models/echo_BYTES/infer", body), "failed to parse")


def test_invalid_utf_8_beside_a_bare_token(running):
    """The tokens take another reader, which must be as strict."""
    body = one("BYTES", [1, 1], ["here"], extra=0).replace(b": 0", b": NaN")
    refused(
        running.post("/v2/models/echo_BYTES/infer", body.replace(b"here", b"\xff")), "failed to"
    )
    refused(
        running.post("/v2/models/echo_BYTES/infer", body.replace(b"here", b"\\ud800")), "failed to"
    )


def test_bytes_that_are_no_text_for_a_model_of_texts(running):
    """The runtime takes them in, and its Python side cannot give them back."""
    blob = struct.pack("<I", 2) + b"\xff\xfe"
    answer = binary("BYTES", [1, 1], blob).send(running, "echo_BYTES")
    refused(answer, "a string that is not UTF-8", status=500)


@pytest.mark.parametrize(
    ("shape", "blob"),
    [
        ([1, 1], b""),
        ([1, 1], b"\1\0"),
        ([1, 1], b"\5\0\0\0four"),
        ([1, 1], b"\xff\xff\xff\xff"),
        ([1, 2], b"\0\0\0\0"),
        ([1, 2], b"\0\0\0\0\1\0"),
        ([1, 1], b"\0\0\0\0\0\0\0\0"),
        ([1, 0], b"\0\0\0\0"),
        ([1, 1_000_000], b"\0\0\0\0"),
    ],
)
def test_strings_whose_lengths_do_not_add_up(running, shape, blob):
    answer = binary("BYTES", shape, blob).send(running, "echo_BYTES")
    refused(answer, "string", "'INPUT0'")


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
    answer = running.call(method, path, b"{}" if method == "POST" else None).answer()
    refused(answer, "Request for unknown model: 'nope' is not found", status=404)


@pytest.mark.parametrize(("method", "path"), UNKNOWN)
@pytest.mark.parametrize("version", [1, 3, 0, 2**63 - 1])
def test_unknown_versions(running, method, path, version):
    """Version 1 is there, but the policy serves the latest one alone."""
    place = path.replace("nope", f"sum/versions/{version}")
    answer = running.call(method, place, b"{}" if method == "POST" else None).answer()
    refused(answer, f"Request for unknown model: 'sum' version {version} is not found", status=404)


@pytest.mark.parametrize("version", ["-1", "latest", "1.0", "1a", "%31%20", ""])
def test_versions_that_are_no_numbers(running, version):
    answer = running.get(f"/v2/models/sum/versions/{version}/ready")
    assert (answer.status, answer.error) == (404, "Not Found")


def test_a_version_beyond_64_bits(running):
    refused(running.get(f"/v2/models/sum/versions/{2**64}/ready"), "64 bits")


@pytest.mark.parametrize("action", ["infer", "ready", "config"])
@pytest.mark.parametrize(
    "name", ["..", ".", "%2e%2e", "..%2fsum", "..%2f..%2fetc%2fpasswd", "sum%2f1", "%00", "sum%00"]
)
def test_path_tricks_in_model_names(running, name, action):
    method = "POST" if action == "infer" else "GET"
    answer = running.call(method, f"/v2/models/{name}/{action}").answer()
    assert answer.status == 404, answer
    assert "root:" not in answer.body.decode()


@pytest.mark.parametrize(
    "path",
    ["/v2/", "//v2", "/v2/models", "/v2/models//infer", "/v2/../v2", "/v3", "/V2", "/%76%32"],
)
def test_paths_that_nobody_serves(running, path):
    answer = running.get(path)
    assert (answer.status, answer.error) == (404, "Not Found")


# ---- clients that go away


def test_a_client_that_disconnects_mid_body(running):
    place = ("127.0.0.1", running.server.http_port)
    for cut in (1, 60, 5000):
        with socket.create_connection(place, timeout=WAIT_SECS) as client:
            head = f"{HEAD}Content-Length: 100000\r\n\r\n".encode()
            client.sendall((head + bytes(99_999))[: len(head) + cut])
    wait_until(lambda: not running.server._http.open_connections, "every connection is gone")


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
        wait_until(lambda: not server.server._http.open_connections, "every connection is gone")
        assert server.statistics("echo")["inference_stats"]["success"]["count"] == 2
        small = Infer().add("INPUT0", array[:, :2]).send(server, "echo")
        assert outputs(small)["OUTPUT0"].tolist() == [[0, 0]]
