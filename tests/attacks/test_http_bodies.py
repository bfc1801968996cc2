"""Bodies and numbers that cost more to read than to send, over HTTP."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.attacks.conftest import AttackedServer, Neighbour, server_cpu_secs
from tests.support.compressed import gzip_repeated
from tests.support.fakes import WAIT_SECS
from tests.support.onnx_models import model, value
from tests.support.repositories import add_model, add_onnx, parameter

MB = 1_000_000
# What one request of at most 1 MB may cost, the neighbour's requests meanwhile included.
MOST_CPU_SECS = 0.25
# Decompressing 64 MiB is what a legitimate request of that size costs, too.
MOST_CPU_SECS_INFLATED = MOST_CPU_SECS + 0.2
MOST_ERROR_BYTES = 20_000
INFER = "/v2/models/double/infer"
PHOTO_CONFIG = """
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 4, 4 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 3 ] }
""" + parameter("task", "image-classification")
TEXT_CONFIG = """
backend: "identity"
input { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "TEXT_OUT" data_type: TYPE_STRING dims: [ -1 ] }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with all kinds of endpoints whose bodies are JSON or forms, for all attacks."""
    folder = tmp_path_factory.mktemp("attacked")
    repository = folder / "models"
    mean = helper.make_node("ReduceMean", ["INPUT0"], ["OUTPUT0"], axes=[2, 3], keepdims=0)
    photos = model(
        [mean],
        inputs=[value("INPUT0", "FP32", ("batch", 3, 4, 4))],
        outputs=[value("OUTPUT0", "FP32", ("batch", 3))],
        opset=13,
    )
    add_onnx(repository, "photos", photos, PHOTO_CONFIG)
    add_model(repository, "echo", TEXT_CONFIG)
    made = AttackedServer(
        folder,
        str(repository),
        "--model-control-mode=explicit",
        "--load-model=double",
        "--load-model=photos",
        "--load-model=echo",
    )
    yield made
    made.stop()


def reset_peak(server):
    """Let `peak_bytes` begin anew."""
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")


class Attack:
    """One connection; counts what its requests cost."""

    def __init__(self, server):
        self._server = server

    def post(self, path, body, headers=None, most=MOST_CPU_SECS):
        """The status and body of the response, and it must not cost more than `most` CPU seconds.

        A busy machine makes a request cost more, so that it may be repeated.
        """
        costs = []
        while not costs or (min(costs) >= most and len(costs) < 4):
            before = server_cpu_secs(self._server)
            port = self._server.http_port
            with contextlib.closing(
                http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECS)
            ) as line:
                line.request("POST", path, body, headers or {})
                response = line.getresponse()
                answer = response.read()
            costs.append(server_cpu_secs(self._server) - before)
        print(f"{path} {len(body)} bytes: {min(costs):.2f} s of CPU")
        assert min(costs) < most, (costs, response.status, answer[:200])
        return response.status, answer


@pytest.fixture
def attack(server, neighbour):
    attacker = Attack(server)
    yield attacker
    neighbour.check()
    print(f"the neighbour's longest wait: {neighbour.longest_secs * 1000:.0f} ms")


def infer_body(data, shape="[1]", datatype="FP32"):
    head = b'{"inputs":[{"name":"numbers","datatype":"%b","shape":%b,"data":'
    return head % (datatype.encode(), shape.encode()) + data + b"}]}"


def of_size(unit, size, before=b"[", after=b"]"):
    """`unit` again and again, with commas between."""
    return before + (unit + b",") * (size // (len(unit) + 1) - 1) + unit + after


START = infer_body(b"")[: -len(b"}]}")]
# What comes before, what is repeated and how often, and what comes after.
EXPLODING = {
    "lists": (b"[", b"[],", 20 * MB, b"[]]"),
    "objects": (b"[", b"{},", 20 * MB, b"{}]"),
    "members": (b"{", b'"a":1,', 10 * MB, b'"a":1}'),
    "texts": (b"[", b'"",', 20 * MB, b'""]'),
    "lists as data": (START + b"[", b"[],", 20 * MB, b"[]]}]}"),
    "too many numbers": (START + b"[", b"1,", 30 * MB, b"1]}]}"),
    "inputs": (b'{"inputs":[', b'{"name":"a"},', 4_600_000, b'{"name":"a"}]}'),
    "nothing but brackets": (b"", b"[", 60 * MB, b""),
    "a text": (b'{"a":"', b"A", 60 * MB, b'"}'),
    "a text of escapes": (b'{"a":"', b"\\n", 30 * MB, b'"}'),
    "a text of brackets": (b'{"a":"', b"[,{:", 15 * MB, b'"}'),
    "a text of 30 MB and NaN": (b'{"b":NaN,"a":"', b"A", 30 * MB, b'"}'),
    "a text of 15 MB and NaN": (b'{"b":NaN,"a":"', b"A", 15 * MB, b'"}'),
    "a text of 30 MB": (b'{"a":"', b"A", 30 * MB, b'"}'),
    "spaces": (b'{"a":', b" ", 30 * MB, b"1}"),
    "digits": (b'{"a":', b"1", 30 * MB, b"}"),
    "keys": (b'{"inputs":[{', b'"data":1,', 6_600_000, b'"data":1}]}'),
    "short data": (b'{"inputs":[{', b'"data":[1],', 5_400_000, b'"data":[1]}]}'),
    "escaped keys": (b'{"inputs":[{', b'"\\"data":[1],', 4_600_000, b'"\\"data":[1]}]}'),
    "lists and NaN": (b"[NaN,[", b"[],", 20 * MB, b"[]]]"),
}


@pytest.mark.parametrize("kind", EXPLODING)
def test_json_that_explodes_when_it_is_decompressed(server, attack, kind):
    reset_peak(server)
    resident = server.resident_bytes
    packed = gzip_repeated(*EXPLODING[kind])
    assert len(packed) < MB
    status, body = attack.post(INFER, packed, {"Content-Encoding": "gzip"}, MOST_CPU_SECS_INFLATED)
    assert status == 400
    assert len(body) < MOST_ERROR_BYTES
    grown = server.resident_bytes - resident  # before anything else: nothing waits to be freed
    print(f"{grown >> 20} MiB more")
    assert grown < 2 * 64 * 1024**2
    assert server.peak_bytes - resident < 4 * 64 * 1024**2


def test_a_small_compressed_body_is_not_parsed_on_the_loop(attack):
    packed = gzip.compress(of_size(b"[]", 6 * MB), 9)
    assert len(packed) <= 8192
    status, _ = attack.post(INFER, packed, {"Content-Encoding": "gzip"})
    assert status == 400


@pytest.mark.parametrize(
    "path",
    [
        INFER,
        "/v2/models/echo/generate",
        "/v2/models/echo/generate_stream",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/repository/index",
        "/v2/repository/models/echo/unload",
        "/v2/repository/models/echo/load",
        "/v2/systemsharedmemory/region/a/register",
        "/classify",
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/embeddings",
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        of_size(b"[]", MB - 100),
        of_size(b"{}", MB - 100),
        of_size(b'"":[]', MB - 100, b"{", b"}"),
        b'{"a":' + of_size(b"1", MB - 100) + b"}",
        b'{"a":' + b"[" * (MB - 100),
        b'{"%b":1}' % (b"k" * (MB - 100)),
        b'{"id":"%b","TEXT":1,"ready":1,"parameters":[]}' % (b"k" * (MB - 100)),
        b"[NaN," + of_size(b'"\\""', MB - 100) + b"]",
        b'{"a":' + b"9" * (MB - 100) + b"}",
    ],
    ids=["lists", "objects", "members", "numbers", "deep", "key", "id", "escapes", "digits"],
)
def test_json_of_one_megabyte(attack, path, text):
    status, body = attack.post(path, text, {"Content-Type": "application/json"})
    assert 400 <= status <= 501 or b"kkkk" in text, body  # unknown keys are not always an error
    assert len(body) < MOST_ERROR_BYTES


ECHO = {
    "backend": "identity",
    "input": [{"name": "TEXT", "data_type": "TYPE_STRING", "dims": [-1]}],
    "output": [{"name": "TEXT_OUT", "data_type": "TYPE_STRING", "dims": [-1]}],
}
LEVELS = {"priority_levels": 2**64 - 1, "default_priority_level": 2**63}
WARM_UP_INPUT = {"data_type": "TYPE_STRING", "dims": [2**40], "zero_data": True}
WARM_UP = {"name": "a", "batch_size": 1, "inputs": {"TEXT": WARM_UP_INPUT}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k" * MB: 1}, b"characters left out"),
        ({"max_batch_size": 8, "dynamic_batching": LEVELS}, b""),
        ({"instance_group": [{"count": 2**31 - 1}]}, b"at most 4096"),
        (
            {"sequence_batching": {"oldest": {"max_candidate_sequences": 2**31 - 1}}},
            b"at most 1048576",
        ),
        ({"max_batch_size": 2**31 - 1, "sequence_batching": {"direct": {}}}, b"at most 1048576"),
        ({"model_warmup": [WARM_UP]}, b"at most 1073741824 elements"),
    ],
    ids=["key", "levels", "instances", "candidates", "slots", "warm-up"],
)
def test_configs_that_would_take_memory(server, attack, changes, message):
    reset_peak(server)
    peak = server.peak_bytes
    body = json.dumps({"parameters": {"config": json.dumps({**ECHO, **changes})}}).encode()
    status, answer = attack.post("/v2/repository/models/echo/load", body)
    assert status == (500 if message else 200), answer  # a load that fails is an Internal error
    assert message in answer
    assert len(answer) < MOST_ERROR_BYTES
    assert server.peak_bytes - peak < 64 * 1024**2


def test_a_config_of_many_objects(attack):
    body = json.dumps({"parameters": {"config": of_size(b"{}", MB // 2).decode()}}).encode()
    status, answer = attack.post("/v2/repository/models/echo/load", body)
    assert status == 500
    assert b"too many values to be a config" in answer


def form(head, content=b"x"):
    return b"--b\r\n" + head + b"\r\n\r\n" + content + b"\r\n--b--\r\n"


NAME = b'Content-Disposition: form-data; name="image"'


@pytest.mark.parametrize(
    "body",
    [
        form(NAME + b";" * 15_000),
        form(NAME + b'; a="' + b";" * 15_000),
        form(NAME + b'; a="' + b'\\"' * 7_000),
        form(NAME + b"; " * 7_000),
        (b"--b\r\n" + NAME + b";" * 900 + b"\r\n\r\nx\r\n") * 1000 + b"--b--",
        (b"--b\r\n" + NAME + b'; a="' + b";" * 900 + b"\r\n\r\nx\r\n") * 1000 + b"--b--",
        b"".join(b"--b\r\n" + NAME + b"\r\na: b" * 150 + b"\r\n\r\nx\r\n" for _ in range(900))
        + b"--b--",
        b"--b\r\n" * 200_000,
        b"\r\n--" * 250_000,
        b"--b" + b" " * (MB - 100),
        b"--b\r\n" + b"\r" * (MB - 100),
    ],
    ids=[
        "semicolons",
        "quoted",
        "quotes",
        "spaces",
        "parts",
        "quoted-parts",
        "headers",
        "marks",
        "ends",
        "blanks",
        "CR",
    ],
)
def test_form_heads(attack, body):
    status, answer = attack.post(
        "/classify", body, {"Content-Type": "multipart/form-data; boundary=b"}
    )
    assert status == 400, answer


def test_a_content_type_of_60_kilobytes(attack):
    for start in ("multipart/form-data;", 'multipart/form-data; a="', 'multipart/form-data; a="\\'):
        header = start + ";" * 60_000 + "boundary=b"
        status, answer = attack.post("/classify", form(NAME), {"Content-Type": header})
        assert status == 400, answer


@pytest.mark.parametrize("unit", [b"%41", b"a=b&", b"+", b"&"])
def test_form_fields(attack, unit):
    header = {"Content-Type": "application/x-www-form-urlencoded"}
    status, answer = attack.post("/classify", b"top=" + unit * (MB // len(unit) - 2), header)
    assert status == 400, answer


def test_json_at_all_limits(attack):
    """What is accepted costs little as well."""
    numbers = b'{"TEXT":"a","b":' + of_size(b"0.5", MB - 100) + b"}"
    status, _ = attack.post("/v2/models/echo/generate", numbers)
    assert status == 400
    objects = of_size(b'{"a":0.25}', 10 * 49_000, b'{"TEXT":"a","b":', b"}")
    status, _ = attack.post("/v2/models/echo/generate", objects)
    assert status == 400


@pytest.mark.parametrize(
    "head",
    [
        "POST /v2/models/double/infer HTTP/1.1\r\nHost: a\r\nContent-Length: " + "9" * 60_000,
        "POST /v2/models/double/infer HTTP/1.1\r\nHost: a\r\nContent-Length: " + "0" * 60_000,
        "GET /v2/models/double/versions/" + "9" * 8_000 + "/ready HTTP/1.1\r\nHost: a",
        "GET /v2/models/double/versions/" + "0" * 8_000 + "1/ready HTTP/1.1\r\nHost: a",
        "POST /v2/models/double/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n"
        "Inference-Header-Content-Length: " + "0" * 50_000 + "\r\n\r\n{}",
    ],
    ids=["length", "zeros", "version", "zero-version", "header-length"],
)
def test_numbers_of_thousands_of_digits(server, neighbour, head):
    before = server_cpu_secs(server)
    with socket.create_connection(("127.0.0.1", server.http_port), WAIT_SECS) as line:
        line.sendall(head.encode() + b"\r\n\r\n")
        with line.makefile("rb") as lines:
            assert lines.readline().startswith(b"HTTP/1.1 400")
    assert server_cpu_secs(server) - before < MOST_CPU_SECS
    neighbour.check()


def test_legitimate_tensors_of_millions_of_numbers_are_still_read(attack):
    numbers = 4_000_000
    body = infer_body(of_size(b"0.5", numbers * 4), f"[{numbers}]")
    status, answer = attack.post(INFER, body, most=2.0)
    assert status == 400
    assert b"unexpected shape" in answer  # it was read, and the model takes four


def test_the_neighbour_itself_is_served(server):
    asking = Neighbour(server)
    asking.check()
    asking.stop()
    assert np.isfinite(asking.longest_secs)
