"""What a client may ask for beside its tensors: outputs, classes, compression, parameters, shapes."""

import gzip
import json
import zlib

import numpy as np
import pytest

from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.client import LENGTH_HEADER, Infer, outputs, read_outputs
from tests.support.fakes import FakeBackend
from tests.support.repositories import EXECUTION_MODES, add_fake, add_onnx, execution

LABELLED = """
max_batch_size: 4
input {{ name: "INPUT0" data_type: TYPE_{datatype} dims: [ 4 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_{datatype} dims: [ 4 ] label_filename: "labels.txt" }}
"""
OPTIONAL = """
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2 ] }
input { name: "BIAS" data_type: TYPE_FP32 dims: [ 1 ] optional: true }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 2 ] }
"""
SCALAR = """
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }
"""
SCALARS = """
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }
"""
RESHAPED = """
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 2, 3 ] reshape { shape: [ 6 ] } }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 3, 2 ] reshape { shape: [ 6 ] } }
"""
RESHAPED_VARIABLE = """
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1, -1 ] reshape { shape: [ -1 ] } }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1, 1 ] reshape { shape: [ -1 ] } }
"""
BATCHED = "max_batch_size: 8 dynamic_batching { }"


@pytest.fixture(scope="module", params=EXECUTION_MODES)
def running(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    mode = execution(request.param)
    labels = {"labels.txt": b"kraken\nwhale\n\nherring of the north\n"}
    for datatype in ("FP32", "FP64", "INT32", "FP16"):
        add_onnx(
            folder,
            f"scores_{datatype}",
            onnx_models.identity(datatype, dims=(4,)),
            LABELLED.format(datatype=datatype) + mode,
            files=labels,
        )
    add_onnx(
        folder, "sum", onnx_models.add_sub("INT32", dims=(4,)), BATCHED + mode, versions=(1, 3)
    )
    add_onnx(folder, "sum of 100%", onnx_models.add_sub("INT32", dims=(4,)), BATCHED + mode)
    add_onnx(folder, "wide", onnx_models.identity("FP32"), BATCHED + mode)
    add_onnx(folder, "optional", onnx_models.default_input(), OPTIONAL + mode)
    add_onnx(folder, "scalar", onnx_models.scalar("FP32"), SCALAR + mode)
    add_onnx(folder, "guessed_scalar", onnx_models.scalar("FP32"), mode)
    add_onnx(folder, "scalars", onnx_models.identity("FP32", dims=()), SCALARS + mode)
    add_onnx(folder, "guessed_scalars", onnx_models.identity("FP32", dims=()), mode)
    add_onnx(folder, "reshaped", onnx_models.identity("INT32", dims=(6,)), RESHAPED + mode)
    add_onnx(folder, "reshaped_variable", onnx_models.identity("INT32"), RESHAPED_VARIABLE + mode)
    add_onnx(folder, "unbatched", onnx_models.identity("INT64", dims=(5,), batch=False), mode)
    with running_server(folder) as server:
        yield server


@pytest.fixture
def seen(running, monkeypatch):
    """The requests as the engine gets them."""
    requests = []
    infer = running.server.engine.infer

    def note(request):
        requests.append(request)
        infer(request)

    monkeypatch.setattr(running.server.engine, "infer", note)
    return requests


def sum_of(start, /, **more):
    row = np.arange(4, dtype=np.int32)[None]
    return Infer(**more).add("INPUT0", row + start).add("INPUT1", row)


# ---- names, ids, versions, outputs


def test_the_response_names_model_and_request(running):
    answer = sum_of(1, id="a request").send(running, "sum")
    document = answer.json
    assert list(document) == ["id", "model_name", "model_version", "outputs"]
    assert (document["id"], document["model_name"]) == ("a request", "sum")
    assert document["model_version"] == "3"
    assert document["outputs"][0] == {
        "name": "OUTPUT0",
        "datatype": "INT32",
        "shape": [1, 4],
        "data": [1, 3, 5, 7],
    }


def test_no_id_is_no_id(running):
    assert "id" not in sum_of(1).send(running, "sum").json


def test_an_id_may_hold_anything(running):
    text = 'ü"\\\n\t\x7f鯨' + "x" * 5000
    assert sum_of(1, id=text).send(running, "sum").json["id"] == text


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "no/such; thing"])
def test_the_content_type_is_ignored(running, content_type):
    answer = sum_of(1).send(running, "sum", {"Content-Type": content_type})
    assert answer.status == 200


@pytest.mark.parametrize("place", ["sum%20of%20100%25", "sum%20of%20100%25/versions/1"])
def test_names_are_decoded(running, place):
    assert sum_of(1).send(running, place).json["model_name"] == "sum of 100%"


def test_outputs_come_as_requested(running):
    got = outputs(sum_of(1).want("OUTPUT1").send(running, "sum"))
    assert list(got) == ["OUTPUT1"]
    both = sum_of(1).want("OUTPUT1", binary_data=True).want("OUTPUT0", binary_data=False)
    assert list(outputs(both.send(running, "sum"))) == ["OUTPUT1", "OUTPUT0"]
    nothing_named = sum_of(1)
    nothing_named.document["outputs"] = []
    assert list(outputs(nothing_named.send(running, "sum"))) == ["OUTPUT0", "OUTPUT1"]


def test_what_is_named_decides_its_own_form(running):
    """`binary_data_output` is for outputs that the request does not name."""
    answer = sum_of(1, binary_data_output=True).want("OUTPUT0").send(running, "sum")
    assert "data" in answer.json["outputs"][0]


# ---- rows


@pytest.mark.parametrize("rows", [1, 2, 7, 8])
def test_a_request_of_several_rows_stays_together(running, rows):
    first = np.arange(rows * 4, dtype=np.int32).reshape(rows, 4)
    got = outputs(Infer().add("INPUT0", first).add("INPUT1", first * 10).send(running, "sum"))
    np.testing.assert_array_equal(got["OUTPUT0"], first * 11)
    np.testing.assert_array_equal(got["OUTPUT1"], first * -9)


def test_requests_of_several_rows_sent_at_once(running):
    """Batches of up to eight rows, made of requests of one to five."""
    sizes = [1, 3, 5, 2, 4, 1, 1, 5, 3] * 4
    calls, expected = [], []
    for number, rows in enumerate(sizes):
        first = np.arange(rows * 4, dtype=np.int32).reshape(rows, 4) + number * 1000
        expected.append(first * 2)
        infer = Infer(binary_data_output=True, id=str(number))
        infer.add("INPUT0", first, binary=True).add("INPUT1", first, binary=number % 2 == 0)
        if number % 3 == 0:
            infer.want("OUTPUT0", binary_data=True)
        calls.append(infer.call(running, "sum"))
    for number, (call, wanted) in enumerate(zip(calls, expected, strict=True)):
        got = outputs(call.response())
        np.testing.assert_array_equal(got["OUTPUT0"], wanted)
        assert ("OUTPUT1" in got) == (number % 3 != 0)


def test_different_shapes_sent_at_once_are_never_mixed(running):
    arrays = [np.full((1 + n % 3, 1 + n % 5), n, np.float32) for n in range(60)]
    calls = [
        Infer(binary_data_output=True).add("INPUT0", array, binary=True).call(running, "wide")
        for array in arrays
    ]
    for call, array in zip(calls, arrays, strict=True):
        np.testing.assert_array_equal(outputs(call.response())["OUTPUT0"], array)


def test_a_model_without_a_batch_dimension(running):
    got = outputs(Infer().add("INPUT0", np.arange(5)).send(running, "unbatched"))
    assert got["OUTPUT0"].tolist() == [0, 1, 2, 3, 4]


# ---- shapes: raw, scalars, reshape, optional inputs


def test_a_raw_body_fills_the_one_variable_dimension(running):
    array = np.arange(7, dtype=np.float32)
    answer = running.post("/v2/models/wide/infer", array.tobytes(), {LENGTH_HEADER: "0"})
    np.testing.assert_array_equal(outputs(answer)["OUTPUT0"], array[None])


def test_an_empty_body_is_a_raw_request_too(running):
    assert outputs(running.post("/v2/models/wide/infer", b""))["OUTPUT0"].shape == (1, 0)


def test_a_raw_body_needs_a_model_of_one_input(running):
    answer = running.post("/v2/models/sum/infer", bytes(16), {LENGTH_HEADER: "0"})
    assert answer.status == 400
    assert "Raw request must only have 1 input" in answer.error


@pytest.mark.parametrize("model", ["scalar", "guessed_scalar"])
def test_a_scalar(running, model):
    assert running.get(f"/v2/models/{model}").json["inputs"][0]["shape"] == [1]
    infer = Infer().add("INPUT0", np.array([2.5], np.float32))
    assert outputs(infer.send(running, model))["OUTPUT0"].tolist() == [2.5]


@pytest.mark.parametrize("model", ["scalars", "guessed_scalars"])
def test_a_batch_of_scalars(running, model):
    """The model sees [2], the client [2, 1]."""
    assert running.get(f"/v2/models/{model}").json["outputs"][0]["shape"] == [-1, 1]
    infer = Infer().add("INPUT0", np.array([[2.5], [3.5]], np.float32))
    assert outputs(infer.send(running, model))["OUTPUT0"].tolist() == [[2.5], [3.5]]


def test_reshape_is_between_client_and_model(running):
    array = np.arange(18, dtype=np.int32).reshape(3, 2, 3)
    got = outputs(Infer().add("INPUT0", array).send(running, "reshaped"))["OUTPUT0"]
    np.testing.assert_array_equal(got, array.reshape(3, 3, 2))
    metadata = running.get("/v2/models/reshaped").json
    assert metadata["inputs"][0]["shape"] == [-1, 2, 3]
    assert metadata["outputs"][0]["shape"] == [-1, 3, 2]


def test_reshape_of_a_variable_dimension(running):
    array = np.arange(10, dtype=np.int32).reshape(2, 1, 5)
    got = outputs(Infer().add("INPUT0", array).send(running, "reshaped_variable"))["OUTPUT0"]
    np.testing.assert_array_equal(got, array.reshape(2, 5, 1))


def test_an_optional_input_may_be_missing(running):
    array = np.array([1, 2], np.float32)
    without = Infer().add("INPUT0", array)
    assert outputs(without.send(running, "optional"))["OUTPUT0"].tolist() == [11, 12]
    given = Infer().add("INPUT0", array).add("BIAS", np.array([0.5], np.float32))
    assert outputs(given.send(running, "optional"))["OUTPUT0"].tolist() == [1.5, 2.5]


def test_only_an_optional_input_may_be_missing(running):
    answer = Infer().add("BIAS", np.array([0.5], np.float32)).send(running, "optional")
    assert answer.status == 400
    assert "missing required input(s) ['INPUT0']" in answer.error


# ---- classification

SCORES = {
    "FP32": ["0.900000:3:herring of the north", "0.250000:1:whale", "0.250000:2"],
    "FP64": ["0.900000:3:herring of the north", "0.250000:1:whale", "0.250000:2"],
    "INT32": ["9:3:herring of the north", "2:1:whale", "2:2"],
}


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("datatype", SCORES)
def test_classes_with_labels(running, datatype, binary):
    row = [0.125, 0.25, 0.25, 0.9] if datatype != "INT32" else [1, 2, 2, 9]
    scores = np.array([row, row[::-1]], {"INT32": np.int32, "FP32": np.float32}.get(datatype))
    infer = Infer().add("INPUT0", scores).want("OUTPUT0", classification=3, binary_data=binary)
    answer = infer.send(running, f"scores_{datatype}")
    got = outputs(answer)["OUTPUT0"]
    assert got.shape == (2, 3)
    assert [text.decode() for text in got[0]] == SCORES[datatype]
    assert got[1][0].decode() == SCORES[datatype][0].replace("3:herring of the north", "0:kraken")


def test_more_classes_than_there_are(running):
    infer = Infer().add("INPUT0", np.arange(4, dtype=np.int32)[None])
    got = outputs(infer.want("OUTPUT0", classification=1000).send(running, "scores_INT32"))
    assert got["OUTPUT0"].shape == (1, 4)


def test_a_class_beside_a_tensor(running):
    infer = sum_of(0).want("OUTPUT0", classification=1).want("OUTPUT1", binary_data=True)
    got = outputs(infer.send(running, "sum"))
    assert got["OUTPUT0"].tolist() == [[b"6:3"]]
    assert got["OUTPUT1"].tolist() == [[0, 0, 0, 0]]


def test_what_cannot_be_classified(running):
    infer = Infer().add("INPUT0", np.zeros((1, 4), np.float16), binary=True)
    answer = infer.want("OUTPUT0", classification=1).send(running, "scores_FP16")
    assert answer.status == 400
    assert answer.error == ("class result not available for output due to unsupported type 'FP16'")


# ---- compression

PACK = {"gzip": gzip.compress, "deflate": zlib.compress}
UNPACK = {"gzip": gzip.decompress, "deflate": zlib.decompress}


@pytest.mark.parametrize("count", [10, 40_000])  # small ones are unpacked on the loop
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("coding", PACK)
def test_packed_both_ways(running, coding, binary, count):
    array = (np.arange(count) % 1000).astype(np.float32)[None]
    infer = Infer(binary_data_output=binary).add("INPUT0", array, binary=binary)
    body, headers = infer.body()
    headers |= {"Content-Encoding": coding, "Accept-Encoding": coding}
    answer = running.post("/v2/models/wide/infer", PACK[coding](body), headers)
    assert answer.status == 200, answer
    plain = answer.body
    if count > 10:
        assert answer.headers["content-encoding"] == coding
        assert len(answer.body) < len(body)
        plain = UNPACK[coding](answer.body)
    else:
        assert "content-encoding" not in answer.headers  # not worth it
    np.testing.assert_array_equal(read_outputs(answer.headers, plain)["OUTPUT0"], array)


@pytest.mark.parametrize(
    ("accept", "coding"),
    [
        ("gzip, deflate", "gzip"),
        ("deflate, gzip", "deflate"),
        ("gzip;q=0.2, deflate;q=0.9", "deflate"),
        ("br, gzip;q=0.1", "gzip"),
        ("identity, gzip", None),
        ("gzip;q=0", None),
        ("*", None),
        ("zstd", None),
        ("", None),
    ],
)
def test_the_client_chooses_the_coding(running, accept, coding):
    array = np.zeros((1, 4000), np.float32)
    infer = Infer(binary_data_output=True).add("INPUT0", array, binary=True)
    answer = infer.send(running, "wide", {"Accept-Encoding": accept})
    assert answer.headers.get("content-encoding") == coding
    plain = answer.body if coding is None else UNPACK[coding](answer.body)
    np.testing.assert_array_equal(read_outputs(answer.headers, plain)["OUTPUT0"], array)


def test_an_unknown_coding_is_refused_with_those_we_know(running):
    answer = running.post("/v2/models/wide/infer", b"x", {"Content-Encoding": "br"})
    assert answer.status == 501
    assert answer.error == "Unsupported compression type"
    assert answer.headers["accept-encoding"] == "gzip, deflate"


# ---- parameters


def test_the_request_carries_what_the_client_sent(running, seen):
    infer = sum_of(
        1,
        id="r",
        priority=2,
        timeout=5_000_000,
        sequence_id=7,
        sequence_start=True,
        sequence_end=True,
        text="ü",
        number=-3,
        fraction=0.5,
        flag=True,
    )
    assert infer.send(running, "sum/versions/3").status == 200
    (request,) = seen
    assert (request.model_name, request.model_version, request.id) == ("sum", 3, "r")
    assert (request.priority, request.timeout_us) == (2, 5_000_000)
    assert (request.correlation_id, request.flags) == (7, 3)
    assert request.parameters == {"text": "ü", "number": -3, "fraction": 0.5, "flag": True}


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"triton_thing": 1}, "parameter keys starting with 'triton_' are reserved"),
        ({"deep": {"er": 1}}, "parameter 'deep' has invalid type"),
        ({"list": [1]}, "parameter 'list' has invalid type"),
        ({"nothing": None}, "parameter 'nothing' has invalid type"),
        ({"priority": -1}, "Unable to parse 'priority'"),
        ({"timeout": "soon"}, "Unable to parse 'timeout'"),
        ({"sequence_start": 1}, "Unable to parse 'sequence_start'"),
        ({"binary_data_output": "yes"}, "Unable to parse 'binary_data_output'"),
        ({"sequence_id": 1.5}, "Unable to parse 'sequence_id'"),
    ],
)
def test_wrong_parameters(running, parameters, text):
    answer = sum_of(1, **parameters).send(running, "sum")
    assert answer.status == 400
    assert text in answer.error


def test_parameters_that_are_no_object(running):
    infer = sum_of(1)
    infer.document["parameters"] = [1]
    answer = infer.send(running, "sum")
    assert answer.status == 400
    assert "parameters" in answer.error or "params" in answer.error


# ---- what the answer of a failing model looks like


@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_a_model_that_fails_affects_no_other(tmp_path, mode):
    """Requests of one batch: the one that made it fail gets the error, the others their answer."""
    config = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 500000 }"
    add_onnx(tmp_path, "picker", onnx_models.picker(), config + execution(mode))
    with running_server(tmp_path) as server:
        numbers = [0, 1, 99, 2, 3, 1, 0, 2]  # eight rows: a batch leaves when all are there
        calls = [
            Infer(id=str(n)).add("INPUT0", np.array([[n]], np.int64)).call(server, "picker")
            for n in numbers
        ]
        for number, call in zip(numbers, calls, strict=True):
            answer = call.response()
            if number == 99:
                assert answer.status == 500
                assert "model 'picker' failed" in answer.error
            else:
                assert outputs(answer)["OUTPUT0"].tolist() == [[number * 10]]
        counted = server.statistics("picker")["inference_stats"]
        assert (counted["success"]["count"], counted["fail"]["count"]) == (7, 1)
        assert server.get("/v2/health/ready").status == 200


def test_a_decoupled_model_is_not_for_this_end_point(tmp_path):
    fake = FakeBackend()
    add_fake(tmp_path, "held", "model_transaction_policy { decoupled: true }")
    with running_server(tmp_path, backends=fake.registry()) as server:
        infer = Infer().add("INPUT0", np.array([[1]], np.int32))
        answer = infer.send(server, "held")
        assert answer.status == 501
        assert answer.error == (
            "HTTP end point doesn't support models with decoupled transaction policy"
        )


def test_an_error_is_nothing_but_an_error(running):
    answer = running.post("/v2/models/sum/infer", b"{")
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/json"
    assert list(json.loads(answer.body)) == ["error"]
