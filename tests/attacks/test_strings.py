"""Millions of short strings, of which each costs far more to read than to send; and large inputs in
shared memory, which cost nothing to send."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import struct
import uuid
from multiprocessing.shared_memory import SharedMemory

import grpc
import numpy as np
import pytest

from shoal.wire.proto import messages
from tests.attacks.conftest import INFER, AttackedServer, Neighbour, server_cpu_secs
from tests.support.fakes import WAIT_SECS
from tests.support.raw_grpc import RawGrpc
from tests.support.repositories import add_model

MIB = 1 << 20
STREAM = INFER.replace("ModelInfer", "ModelStreamInfer")
# What 1 MB of strings may cost, with the neighbour's requests meanwhile.
MOST_CPU_SECS = 0.25 + 0.1
CONFIG = """
backend: "identity"
input {{ name: "IN" data_type: TYPE_{0} dims: [ -1 ] }}
output {{ name: "OUT" data_type: TYPE_{0} dims: [ -1 ] }}
"""
STRINGS = {
    "empty": b"\0\0\0\0" * (MIB // 4),
    "short": b"\1\0\0\0a\2\0\0\0bc" * (MIB // 11),
}
COUNTS = {"empty": MIB // 4, "short": MIB // 11 * 2}
IN_MEMORY = 900_000  # strings; a million is the limit


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacked")
    repository = folder / "models"
    add_model(repository, "texts", CONFIG.format("STRING"))
    add_model(repository, "bytes", CONFIG.format("UINT8"))
    addresses = ("--http-address=127.0.0.1", "--grpc-address=127.0.0.1")
    made = AttackedServer(folder, str(repository), *addresses)
    yield made
    made.stop()


@pytest.fixture
def region(server):
    """64 MiB of zeros: 16 million empty strings."""
    system = SharedMemory(create=True, size=64 * MIB, name=f"shoal-{uuid.uuid4().hex}")
    status, answer = post(
        server,
        "/v2/systemsharedmemory/region/zeros/register",
        json.dumps({"key": system.name, "offset": 0, "byte_size": 64 * MIB}).encode(),
    )
    assert status == 200, answer
    yield system
    post(server, "/v2/systemsharedmemory/region/zeros/unregister", b"")
    system.close()
    system.unlink()


@pytest.fixture
def attacked(server):
    """The server, with a neighbour that must notice nothing."""
    neighbour = Neighbour(server)
    neighbour.check()
    yield server
    neighbour.check()
    neighbour.stop()


def post(server, path, body, headers=None):
    line = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=WAIT_SECS)
    with contextlib.closing(line):
        line.request("POST", path, body, headers or {})
        response = line.getresponse()
        return response.status, response.read()


def binary(content, count, output_as_json=False):
    """The body and headers of a request with strings, as bytes after the JSON."""
    entry = {"name": "IN", "datatype": "BYTES", "shape": [count]}
    entry["parameters"] = {"binary_data_size": len(content)}
    parameters = {"binary_data_output": not output_as_json}
    head = json.dumps({"inputs": [entry], "parameters": parameters}).encode()
    return head + content, {"Inference-Header-Content-Length": str(len(head))}


def message(content, count, model="texts", datatype="BYTES"):
    made = messages.ModelInferRequest(model_name=model)
    made.inputs.add(name="IN", datatype=datatype, shape=[count])
    made.raw_input_contents.append(content)
    return made.SerializeToString()


def in_memory(count, model="texts", datatype="BYTES", size=None, to_memory=False):
    """A request whose input is the region."""
    size = 4 * count if size is None else size
    place = {"shared_memory_region": "zeros", "shared_memory_byte_size": size}
    entry = {"name": "IN", "datatype": datatype, "shape": [count], "parameters": place}
    output = {"name": "OUT", "parameters": place if to_memory else {"binary_data": True}}
    body = json.dumps({"inputs": [entry], "outputs": [output]}).encode()
    return f"/v2/models/{model}/infer", body


@pytest.mark.parametrize("output_as_json", [False, True], ids=["binary", "json"])
@pytest.mark.parametrize("kind", STRINGS)
def test_one_megabyte_over_http(attacked, kind, output_as_json):
    content, count = STRINGS[kind], COUNTS[kind]
    body, headers = binary(content, count, output_as_json)
    before = server_cpu_secs(attacked)
    status, answer = post(attacked, "/v2/models/texts/infer", body, headers)
    cpu_secs = server_cpu_secs(attacked) - before
    print(f"{cpu_secs:.2f} s of CPU")
    assert status == 200
    if output_as_json:
        assert len(json.loads(answer)["outputs"][0]["data"]) == count
    else:
        assert answer.endswith(content)
    assert cpu_secs < MOST_CPU_SECS


@pytest.mark.parametrize(
    ("content", "count"),
    [
        (STRINGS["empty"], 1 << 40),  # more than there are
        (STRINGS["empty"], COUNTS["empty"] - 1),
        (STRINGS["empty"][:-4] + b"\1\0\0\0", COUNTS["empty"]),  # the last one is not there
    ],
    ids=["many", "few", "cut"],
)
def test_strings_that_are_refused(attacked, content, count):
    body, headers = binary(content, count)
    before = server_cpu_secs(attacked)
    status, answer = post(attacked, "/v2/models/texts/infer", body, headers)
    assert status == 400
    assert b"string" in answer
    assert server_cpu_secs(attacked) - before < MOST_CPU_SECS


@pytest.mark.parametrize("kind", STRINGS)
def test_one_megabyte_over_grpc(attacked, kind):
    content, count = STRINGS[kind], COUNTS[kind]
    before = server_cpu_secs(attacked)
    with grpc.insecure_channel(f"127.0.0.1:{attacked.grpc_port}") as line:
        answer = line.unary_unary(INFER)(message(content, count), timeout=WAIT_SECS)
    output = messages.ModelInferResponse.FromString(answer).raw_output_contents[0]
    cpu_secs = server_cpu_secs(attacked) - before
    print(f"{cpu_secs:.2f} s of CPU")
    assert output == content
    assert cpu_secs < MOST_CPU_SECS


def test_the_requests_of_a_stream_stay_in_order(attacked):
    """The large ones are read and written on threads; the small ones behind them wait."""
    content, count = STRINGS["short"], COUNTS["short"]
    one = struct.pack("<I", 3) + b"one"
    sent = [message(content, count), message(one, 1), message(content, 7), message(one, 1)]
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{attacked.grpc_port}", options) as line:
        answers = list(line.stream_stream(STREAM)(iter(sent), timeout=WAIT_SECS))
    seen = [messages.ModelStreamInferResponse.FromString(answer) for answer in answers]
    outputs = [b"".join(each.infer_response.raw_output_contents) for each in seen]
    assert outputs == [content, one, b"", one]
    assert "expecting 7" in seen[2].error_message


def test_compressed_strings_have_a_limit(attacked):
    """64 KB that become 16 million strings."""
    content = bytes(60 * MIB)
    body, headers = binary(content, 15 * MIB)
    packed = gzip.compress(body, 9)
    before = server_cpu_secs(attacked)
    headers["Content-Encoding"] = "gzip"
    status, answer = post(attacked, "/v2/models/texts/infer", packed, headers)
    assert status == 400
    assert b"at most 1000000 are read if compressed" in answer
    with RawGrpc(attacked.grpc_port) as raw:
        packed = gzip.compress(message(content, 15 * MIB), 9)
        answer = raw.call(INFER, packed, encoding="gzip")
    assert answer.status == 3
    assert "at most 1000000 are read if compressed" in answer.text
    assert server_cpu_secs(attacked) - before < 2 * (MOST_CPU_SECS + 0.2)  # with decompression


def test_strings_in_shared_memory_have_a_limit(attacked, region):
    before = server_cpu_secs(attacked)
    status, answer = post(attacked, *in_memory(16 * MIB))
    assert status == 400
    assert b"at most 1000000 are read from shared memory" in answer
    status, answer = post(attacked, *in_memory(1000, size=64 * MIB))
    assert status == 400
    assert b"unexpected number of string elements" in answer
    assert server_cpu_secs(attacked) - before < 2 * MOST_CPU_SECS  # two of them


def test_strings_in_shared_memory_stall_nobody(attacked, region):
    status, answer = post(attacked, *in_memory(IN_MEMORY))
    assert status == 200
    assert answer.endswith(bytes(4 * IN_MEMORY))
    status, answer = post(attacked, *in_memory(IN_MEMORY, to_memory=True))
    assert status == 200, answer


def test_large_inputs_in_shared_memory_stall_nobody(attacked, region):
    numbers = np.frombuffer(region.buf, np.uint8)
    numbers[:] = 7
    for _ in range(8):  # until the model would run on the event loop
        status, answer = post(attacked, *in_memory(48 * MIB, "bytes", "UINT8", 48 * MIB))
        assert status == 200
    assert answer[-48 * MIB :] == bytes([7]) * (48 * MIB)
    status, answer = post(
        attacked, *in_memory(48 * MIB, "bytes", "UINT8", 48 * MIB, to_memory=True)
    )
    assert status == 200, answer
    del numbers


@pytest.mark.parametrize("missing", [0, 1, -1], ids=["right", "too-few", "too-many"])
def test_typed_strings_over_grpc(attacked, missing):
    """Two bytes each: half a million of them."""
    made = messages.ModelInferRequest(model_name="texts")
    count = MIB // 2 - 100
    entry = made.inputs.add(name="IN", datatype="BYTES", shape=[count + missing])
    entry.contents.bytes_contents.extend([b""] * count)
    before = server_cpu_secs(attacked)
    with RawGrpc(attacked.grpc_port) as raw:
        answer = raw.call(INFER, made.SerializeToString())
    cpu_secs = server_cpu_secs(attacked) - before
    print(f"{cpu_secs:.2f} s of CPU")
    assert answer.status == (3 if missing else 0)
    assert cpu_secs < MOST_CPU_SECS + 0.15  # with a response of twice the size of the request
