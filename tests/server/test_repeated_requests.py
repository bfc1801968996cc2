"""Clients repeat themselves, and the server recognises requests by their bytes.

What it remembers is only ever a shortcut to the same answer, so each test says the same thing
several times while something else changes: the data, the model, the headers around it.
"""

import gzip
import json
import struct

import numpy as np
import pytest
from onnx import helper

from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.client import LENGTH_HEADER, Infer, outputs, read_outputs
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import EXECUTION_MODES, add_fake, add_onnx, execution

TIMES = 4


def non_zero():
    """Where the elements are not zero: the output's size depends on the data."""
    return onnx_models.model(
        [helper.make_node("NonZero", ["INPUT0"], ["OUTPUT0"])],
        inputs=[onnx_models.value("INPUT0", "INT32", (4,))],
        outputs=[onnx_models.value("OUTPUT0", "INT64", (1, None))],
    )


@pytest.fixture(scope="module", params=EXECUTION_MODES)
def running(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    mode = execution(request.param)
    batched = "max_batch_size: 8 dynamic_batching { }" + mode
    add_onnx(folder, "sum", onnx_models.add_sub("INT32", dims=(4,)), batched)
    add_onnx(folder, "wide", onnx_models.identity("FP32"), batched)
    add_onnx(folder, "texts", onnx_models.identity("BYTES"), batched)
    add_onnx(folder, "non_zero", non_zero(), mode)
    add_onnx(folder, "picker", onnx_models.picker(), mode)
    with running_server(folder, cors=("https://home.example",)) as server:
        yield server


def sum_of(number, id="", **parameters):
    row = np.arange(4, dtype=np.int32)[None] + number
    infer = Infer(id=id, binary_data_output=True, **parameters)
    return infer.add("INPUT0", row, binary=True).add("INPUT1", row, binary=True)


def check_sum(answer, number):
    got = outputs(answer)
    np.testing.assert_array_equal(got["OUTPUT0"][0], 2 * (np.arange(4) + number))
    assert not got["OUTPUT1"].any()


def test_other_data(running):
    before = running.statistics("sum")["inference_count"]
    for number in range(20):
        check_sum(sum_of(number).send(running, "sum"), number)
    assert running.statistics("sum")["inference_count"] == before + 20


def test_the_same_response_to_the_byte(running):
    answers = [sum_of(5, id="x").send(running, "sum") for _ in range(TIMES)]
    assert len({answer.body for answer in answers}) == 1
    names = [[n for n in answer.headers if n != "date"] for answer in answers]
    assert names == [names[0]] * TIMES


@pytest.mark.parametrize("id", ["a", "", "ü", '"', "\\", "x" * 300, '","inputs":[]', "\x00", "{}"])
def test_other_ids(running, id):
    for number in range(TIMES):
        name = f"{id}{number}" if id else ""
        answer = sum_of(number, id=name).send(running, "sum")
        check_sum(answer, number)
        length = int(answer.headers[LENGTH_HEADER.lower()])
        document = json.loads(answer.body[:length])
        assert document.get("id", "") == name


def test_other_ids_in_an_error(running):
    for number in range(TIMES):
        infer = Infer(id=f"r{number}", binary_data_output=True)
        infer.add("INPUT0", np.array([[number % 2 * 99]], np.int64), binary=True)
        answer = infer.send(running, "picker")
        assert answer.status == (500 if number % 2 else 200)


def test_outputs_whose_size_depends_on_the_data(running):
    rows = [[0, 0, 0, 0], [1, 0, 2, 0], [1, 1, 1, 1], [0, 0, 0, 9], [0, 0, 0, 0], [7, 0, 0, 7]]
    for row in rows * 2:
        infer = Infer(binary_data_output=True)
        infer.add("INPUT0", np.array(row, np.int32), binary=True)
        got = outputs(infer.send(running, "non_zero"))["OUTPUT0"]
        assert got.tolist() == [np.flatnonzero(row).tolist()]


def test_bodies_that_are_shorter_or_longer_than_before(running):
    for _ in range(TIMES):
        check_sum(sum_of(1).send(running, "sum"), 1)
        short, long = sum_of(1), sum_of(1)
        short.blobs[1] = short.blobs[1][:-1]
        long.blobs[1] += b"\0"
        answer = short.send(running, "sum")
        assert answer.status == 400
        assert "expecting 1 additional bytes for model 'sum'" in answer.error
        answer = long.send(running, "sum")
        assert answer.status == 400
        assert answer.error == "unexpected additional input data for model 'sum'"


def test_strings_of_the_same_size_that_no_longer_add_up(running):
    good = struct.pack("<I", 4) + b"text"
    bad = struct.pack("<I", 5) + b"text"
    for _ in range(TIMES):
        for blob, status in ((good, 200), (bad, 400)):
            infer = Infer(binary_data_output=True)
            infer.add("INPUT0", np.array([[b"text"]], object), binary=True)
            infer.blobs = [blob]
            answer = infer.send(running, "texts")
            assert answer.status == status
            if status == 200:
                assert outputs(answer)["OUTPUT0"].tolist() == [[b"text"]]


def test_other_versions_and_models_in_the_path(running):
    for _ in range(TIMES):
        check_sum(sum_of(3).send(running, "sum"), 3)
        check_sum(sum_of(3).send(running, "sum/versions/1"), 3)
        assert sum_of(3).send(running, "sum/versions/2").status == 404
        assert sum_of(3).send(running, "nope").status == 404
        assert sum_of(3).send(running, "wide").status == 400


def test_other_codings_around_the_same_body(running):
    array = np.zeros((1, 4000), np.float32)
    infer = Infer(binary_data_output=True).add("INPUT0", array, binary=True)
    body, headers = infer.body()
    for _ in range(TIMES):
        plain = infer.send(running, "wide")
        assert "content-encoding" not in plain.headers
        packed = infer.send(running, "wide", {"Accept-Encoding": "gzip"})
        assert packed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(packed.body) == plain.body
        sent = headers | {"Content-Encoding": "gzip"}
        unpacked = running.post("/v2/models/wide/infer", gzip.compress(body), sent)
        assert unpacked.body == plain.body
        got = read_outputs(unpacked.headers, unpacked.body)
        np.testing.assert_array_equal(got["OUTPUT0"], array)


def test_other_origins_around_the_same_body(running):
    for _ in range(TIMES):
        home = sum_of(1).send(running, "sum", {"Origin": "https://home.example"})
        assert home.headers["access-control-allow-origin"] == "https://home.example"
        assert "access-control-allow-origin" not in sum_of(1).send(running, "sum").headers


def test_other_forms_of_response(running):
    row = np.arange(4, dtype=np.int32)[None]
    for _ in range(TIMES):
        for parameters in ({"binary_data": True}, {}, {"classification": 2}):
            infer = Infer().add("INPUT0", row, binary=True).add("INPUT1", row, binary=True)
            got = outputs(infer.want("OUTPUT0", **parameters).send(running, "sum"))
            assert list(got) == ["OUTPUT0"]
            if "classification" in parameters:
                assert got["OUTPUT0"].tolist() == [[b"6:3", b"4:2"]]
            else:
                assert got["OUTPUT0"].tolist() == [[0, 2, 4, 6]]


def test_large_bodies(running):
    for number in range(TIMES):
        array = np.full((2, 100_000), number, np.float32)
        infer = Infer(binary_data_output=True).add("INPUT0", array, binary=True)
        np.testing.assert_array_equal(outputs(infer.send(running, "wide"))["OUTPUT0"], array)


# ---- while the models behind them change


@pytest.fixture
def explicit(tmp_path):
    with running_server(tmp_path, model_control_mode="explicit") as server:
        yield server


def ask(running, number=7, width=1):
    array = np.full((1, width), number, np.float32)
    return Infer(binary_data_output=True).add("INPUT0", array, binary=True).send(running, "sum")


def check_plus(answer, value, version="1"):
    assert outputs(answer)["OUTPUT0"].tolist() == [[value]]
    assert f'"model_version":"{version}"'.encode() in answer.body


@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_a_model_that_is_replaced(tmp_path, explicit, mode):
    for number in (1, 2, 3):
        add_onnx(tmp_path, "sum", onnx_models.plus(number), execution(mode), versions=(number,))
        assert explicit.load("sum").status == 200
        for _ in range(TIMES):
            check_plus(ask(explicit), 7 + number, str(number))


def test_a_model_that_is_unloaded_and_loaded_again(tmp_path, explicit):
    add_onnx(tmp_path, "sum", onnx_models.plus(1))
    for _ in range(3):
        assert explicit.load("sum").status == 200
        for _ in range(TIMES):
            check_plus(ask(explicit), 8)
        assert explicit.unload("sum").status == 200
        answer = ask(explicit)
        assert answer.status == 404
        assert answer.error == "Request for unknown model: 'sum' has no available versions"


def test_a_model_that_comes_back_in_another_shape(tmp_path, explicit):
    add_onnx(tmp_path, "sum", onnx_models.plus(1))
    assert explicit.load("sum").status == 200
    for _ in range(TIMES):
        check_plus(ask(explicit), 8)
    add_onnx(tmp_path, "sum", onnx_models.plus(1, width=2))
    assert explicit.load("sum").status == 200
    for _ in range(TIMES):
        answer = ask(explicit)
        assert answer.status == 400
        assert "Expected [-1,2], got [1,1]" in answer.error
        assert outputs(ask(explicit, width=2))["OUTPUT0"].tolist() == [[8, 8]]


def test_a_batch_that_has_become_too_large(tmp_path, explicit):
    add_onnx(tmp_path, "sum", onnx_models.plus(1), "max_batch_size: 4")
    assert explicit.load("sum").status == 200
    infer = Infer(binary_data_output=True)
    infer.add("INPUT0", np.zeros((3, 1), np.float32), binary=True)
    for _ in range(TIMES):
        assert infer.send(explicit, "sum").status == 200
    assert explicit.load("sum", config={"max_batch_size": 2}).status == 200
    for _ in range(TIMES):
        assert "batch-size must be <= 2" in infer.send(explicit, "sum").error


# ---- queues treat them as they treat all others


def test_repeated_requests_expire_are_cancelled_and_refused(tmp_path, fake):
    add_fake(
        tmp_path,
        "held",
        "instance_group { count: 1 kind: KIND_CPU } dynamic_batching { priority_levels: 2 "
        "default_priority_level: 1 default_queue_policy { default_timeout_microseconds: 60000000 "
        "allow_timeout_override: true max_queue_size: 3 } }",
        max_batch_size=1,
    )
    backends = fake.registry()
    with running_server(tmp_path, backends=backends) as running:

        def ask(number, **parameters):
            infer = Infer(id=str(number), binary_data_output=True, **parameters)
            array = np.array([[number]], np.int32)
            return infer.add("INPUT0", array, binary=True).call(running, "held")

        for _ in range(TIMES):  # everything below has been seen before
            for parameters in ({}, {"timeout": 50_000_000}, {"priority": 2}):
                outputs(ask(1, **parameters).response())
            assert ask(1, timeout=100_000).response().status in (200, 503)  # or too late
        while fake.started.acquire(blocking=False):
            pass
        fake.batches.clear()
        fake.gate.clear()
        first = ask(0)
        assert fake.started.acquire(timeout=WAIT_SECS)
        answer = ask(2, timeout=100_000).response()
        assert (answer.status, answer.error) == (503, "Request timeout expired")
        last = ask(3, priority=2)
        running.wait_for_pending("held", 1)
        leaves = ask(4)
        running.wait_for_pending("held", 2)
        leaves.disconnect()
        running.wait_for_pending("held", 1)
        others = []
        for number in (5, 6, 7):
            others.append(ask(number))
            running.wait_for_pending("held", len(others) + 1)
        answer = ask(8).response()
        assert (answer.status, answer.error) == (503, "[request id: 8] Exceeds maximum queue size")
        fake.gate.set()
        for number, call in zip((0, 5, 6, 7, 3), (first, *others, last), strict=True):
            assert outputs(call.response())["OUTPUT0"].tolist() == [[number]]
        assert [int(batch["INPUT0"][0, 0]) for batch in fake.batches] == [0, 5, 6, 7, 3]
