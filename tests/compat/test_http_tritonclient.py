"""tritonclient.http, unchanged: everything it can ask, one call at a time and many at once."""

from __future__ import annotations

import json
import warnings

import ml_dtypes
import numpy as np
import pytest

with warnings.catch_warnings():  # what its dependencies warn about is theirs to mend
    warnings.simplefilter("ignore")
    import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from shoal.core.dtypes import ALL, BF16, BOOL, BYTES, FP16
from tests.support import onnx_models
from tests.support.fakes import WAIT_SECS

ROW = np.arange(16, dtype=np.int32)[None]


@pytest.fixture
def client(web):
    with httpclient.InferenceServerClient(web.address, concurrency=4) as made:
        yield made


def make_input(name, array, datatype="", *, binary=True):
    kind = datatype or np_to_triton_dtype(array.dtype)
    tensor = httpclient.InferInput(name, list(array.shape), kind)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def numbers(start=0, *, binary=True):
    return [
        make_input("INPUT0", ROW + start, binary=binary),
        make_input("INPUT1", ROW, binary=binary),
    ]


# ---- what there is


def test_health(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("sum")
    assert client.is_model_ready("sum", "3")
    assert client.is_model_ready("name with 100% oddities")
    assert not client.is_model_ready("sum", "2")
    assert not client.is_model_ready("nope")


def test_metadata(client):
    server = client.get_server_metadata()
    assert server["name"] == "triton"
    assert "binary_tensor_data" in server["extensions"]
    model = client.get_model_metadata("sum")
    assert model["versions"] == ["1", "3"]
    assert model["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]}
    assert client.get_model_metadata("sum", "1")["versions"] == ["1"]


def test_config(client):
    config = client.get_model_config("sum")
    assert config["max_batch_size"] == 8
    assert config["input"][0]["dims"] == [16]
    assert client.get_model_config("sum", "3")["name"] == "sum"
    assert client.get_model_config("guessed")["max_batch_size"] == 4


def test_statistics(client):
    before = client.get_inference_statistics("sum", "3")["model_stats"][0]
    client.infer("sum", numbers())
    after = client.get_inference_statistics("sum", "3")["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + 1
    assert len(client.get_inference_statistics("sum")["model_stats"]) == 2
    assert len(client.get_inference_statistics()["model_stats"]) > 10


def test_index(client):
    rows = client.get_model_repository_index()
    assert {"name": "sum", "version": "3", "state": "READY"} in rows


def test_unknown_names(client):
    for ask in (
        lambda: client.get_model_metadata("nope"),
        lambda: client.get_model_config("nope"),
        lambda: client.get_inference_statistics("nope"),
        lambda: client.infer("nope", numbers()),
    ):
        with pytest.raises(InferenceServerException, match="Request for unknown model") as caught:
            ask()
        assert caught.value.status() == "404"


# ---- inference


def values(datatype):
    if datatype is BYTES:
        return np.array([["", "größer", "鯨"], ["nul\0inside", "x", "y" * 1000]], object)
    if datatype is BOOL:
        return np.array([[True, False, True]])
    if datatype is BF16:
        return np.array([[1.5, -2.0, 0.25]], ml_dtypes.bfloat16)
    return np.array([[1, 0, 100]], datatype.numpy)


@pytest.mark.parametrize("datatype", ALL, ids=lambda datatype: datatype.name)
def test_every_datatype_in_binary(client, datatype):
    array = values(datatype)
    for _ in range(2):  # the second time the server knows the request
        result = client.infer(f"echo_{datatype.name}", [make_input("INPUT0", array, datatype.name)])
        got = result.as_numpy("OUTPUT0")
        if datatype is BYTES:
            array = np.array([[text.encode() for text in row] for row in values(datatype)], object)
        np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize(
    "datatype",
    [datatype for datatype in ALL if datatype not in (FP16, BF16)],
    ids=lambda datatype: datatype.name,
)
def test_every_datatype_in_json(client, datatype):
    array = values(datatype)
    tensor = make_input("INPUT0", array, datatype.name, binary=False)
    wanted = httpclient.InferRequestedOutput("OUTPUT0", binary_data=False)
    got = client.infer(f"echo_{datatype.name}", [tensor], outputs=[wanted]).as_numpy("OUTPUT0")
    if datatype is BYTES:
        got = np.vectorize(lambda text: text if isinstance(text, str) else text.decode())(got)
    np.testing.assert_array_equal(got, array)


def test_infer(client):
    result = client.infer("sum", numbers(5), request_id="my id")
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), 2 * ROW + 5)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), np.full((1, 16), 5))
    response = result.get_response()
    assert (response["id"], response["model_version"]) == ("my id", "3")
    assert result.get_output("OUTPUT0")["datatype"] == "INT32"
    assert result.as_numpy("NOPE") is None


def test_a_version_and_an_output(client):
    wanted = [httpclient.InferRequestedOutput("OUTPUT1", binary_data=True)]
    result = client.infer("sum", numbers(2), model_version="1", outputs=wanted)
    assert result.get_response()["model_version"] == "1"
    assert result.as_numpy("OUTPUT0") is None
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), np.full((1, 16), 2))


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_forms_mixed(client, binary_in, binary_out):
    tensors = [make_input("INPUT0", ROW), make_input("INPUT1", ROW, binary=binary_in)]
    wanted = [
        httpclient.InferRequestedOutput("OUTPUT1", binary_data=binary_out),
        httpclient.InferRequestedOutput("OUTPUT0", binary_data=not binary_out),
    ]
    result = client.infer("sum", tensors, outputs=wanted)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), 2 * ROW)
    assert not result.as_numpy("OUTPUT1").any()


@pytest.mark.parametrize("binary", [True, False])
def test_classification(client, binary):
    scores = np.array([[0.1, 0.7, 0.2, 0.0], [1, 2, 3, 4]], np.float32)
    wanted = [httpclient.InferRequestedOutput("OUTPUT0", binary_data=binary, class_count=2)]
    result = client.infer("scores", [make_input("INPUT0", scores)], outputs=wanted)
    got = result.as_numpy("OUTPUT0")
    texts = [[t.decode() if isinstance(t, bytes) else t for t in row] for row in got]
    assert texts == [
        ["0.700000:1:whale", "0.200000:2:eel"],
        ["4.000000:3", "3.000000:2:eel"],
    ]


@pytest.mark.parametrize("response", [None, "gzip", "deflate"])
@pytest.mark.parametrize("request_", [None, "gzip", "deflate"])
def test_compression(client, request_, response):
    array = np.arange(20_000, dtype=np.float32)[None] % 100
    for binary in (True, False):
        result = client.infer(
            "wide",
            [make_input("INPUT0", array, binary=binary)],
            outputs=[httpclient.InferRequestedOutput("OUTPUT0", binary_data=binary)],
            request_compression_algorithm=request_,
            response_compression_algorithm=response,
        )
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)


def test_strings(client):
    first = np.array([["sea ", b"blue "]], object)
    second = np.array([["horse", "whale"]], object)
    for binary in (True, False):
        text = np.array([["sea ", "blue "]], object)
        tensors = [
            make_input("INPUT0", first if binary else text, "BYTES", binary=binary),
            make_input("INPUT1", second, "BYTES", binary=binary),
        ]
        got = client.infer("texts", tensors).as_numpy("OUTPUT0")
        assert got.tolist() == [[b"sea horse", b"blue whale"]]


def test_empty_tensors(client):
    array = np.empty((2, 0), np.float32)
    got = client.infer("wide", [make_input("INPUT0", array)]).as_numpy("OUTPUT0")
    assert got is None or got.shape == (2, 0)


def test_numbers_that_are_none(client):
    array = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    for binary in (True, False):
        wanted = [httpclient.InferRequestedOutput("OUTPUT0", binary_data=binary)]
        tensors = [make_input("INPUT0", array, binary=binary)]
        got = client.infer("wide", tensors, outputs=wanted).as_numpy("OUTPUT0")
        np.testing.assert_array_equal(got, array)


def test_sequences_and_priorities_of_a_model_without_them(client):
    result = client.infer(
        "sum",
        numbers(1),
        sequence_id=7,
        sequence_start=True,
        sequence_end=True,
        priority=3,
        timeout=10_000_000,
    )
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), 2 * ROW + 1)
    assert client.infer("sum", numbers(), sequence_id="text id").get_response()


def test_parameters(client):
    result = client.infer(
        "sum", numbers(), parameters={"text": "x", "number": 7, "flag": True, "part": 0.5}
    )
    assert result.get_response()["model_name"] == "sum"
    with pytest.raises(InferenceServerException, match="reserved"):
        client.infer("sum", numbers(), parameters={"triton_thing": 1})


def test_headers_and_queries(client):
    result = client.infer(
        "sum", numbers(), headers={"X-Mine": "yes"}, query_params={"a": 1, "b": ["c", "d"]}
    )
    assert result.get_response()["model_name"] == "sum"
    assert client.is_server_live(headers={"X": "y"}, query_params={"a": "ü"})


def test_a_name_that_needs_quoting(client):
    name = "name with 100% oddities"
    got = client.infer(name, [make_input("INPUT0", np.ones((1, 1), np.float32))])
    assert got.get_response()["model_name"] == name


def test_a_body_made_beforehand(web, client):
    """What proxies do: build the body with the client, send it with something else."""
    body, header_length = httpclient.InferenceServerClient.generate_request_body(numbers(3))
    length_header = "Inference-Header-Content-Length"
    answer = web.running.post("/v2/models/sum/infer", body, {length_header: str(header_length)})
    result = httpclient.InferenceServerClient.parse_response_body(
        answer.body, header_length=int(answer.headers[length_header.lower()])
    )
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), 2 * ROW + 3)


def test_a_raw_request(client):
    """Header length 0: the whole body is the tensor."""
    array = np.arange(5, dtype=np.float32)
    response = client._post(
        "v2/models/wide/infer",
        request_body=array.tobytes(),
        headers={"Inference-Header-Content-Length": "0"},
        query_params=None,
    )
    length = int(response["Inference-Header-Content-Length"])
    result = httpclient.InferResult.from_response_body(response.read(), False, length)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array[None])


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        (lambda: numbers()[:1], "expected 2 inputs but got 1 inputs"),
        (lambda: [make_input("INPUT0", ROW.astype(np.float32)), numbers()[1]], "data-type"),
        (lambda: [make_input("INPUT0", ROW[:, :4]), numbers()[1]], "unexpected shape"),
        (lambda: [make_input("INPUT0", np.repeat(ROW, 9, 0))] * 2, "already exists"),
    ],
)
def test_errors_arrive_as_text(client, tensors, text):
    with pytest.raises(InferenceServerException, match=text) as caught:
        client.infer("sum", tensors())
    assert caught.value.status() == "400"


# ---- many at once


def test_async_infer(client):
    pending = [client.async_infer("sum", numbers(n), request_id=str(n)) for n in range(50)]
    for number, request in enumerate(pending):
        result = request.get_result(timeout=WAIT_SECS)
        assert result.get_response()["id"] == str(number)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), 2 * ROW + number)


def test_async_errors(client):
    request = client.async_infer("sum", numbers()[:1])
    with pytest.raises(InferenceServerException, match="expected 2 inputs"):
        request.get_result(timeout=WAIT_SECS)


def test_async_result_before_it_is_there(web, client):
    web.fake.gate.clear()
    try:
        request = client.async_infer("held", [make_input("INPUT0", np.array([[1]], np.int32))])
        with pytest.raises(InferenceServerException, match="failed to obtain inference response"):
            request.get_result(timeout=0.05)
    finally:
        web.fake.gate.set()
    assert request.get_result(timeout=WAIT_SECS).as_numpy("OUTPUT0").tolist() == [[1]]


def test_a_client_that_waits_no_longer(web):
    """Its network time-out ends the connection, and with it the request."""
    web.fake.gate.clear()
    try:
        with httpclient.InferenceServerClient(web.address, network_timeout=0.05) as client:
            tensors = [make_input("INPUT0", np.array([[1]], np.int32))]
            with pytest.raises(Exception, match=r"(?i)timed out"):
                client.infer("held", tensors)
    finally:
        web.fake.gate.set()
    with httpclient.InferenceServerClient(web.address) as client:
        assert client.infer("held", tensors).as_numpy("OUTPUT0").tolist() == [[1]]


# ---- control


def test_load_and_unload(client):
    client.unload_model("mine")
    assert not client.is_model_ready("mine")
    client.load_model("mine")
    assert client.is_model_ready("mine")
    client.unload_model("mine", unload_dependents=True)
    client.load_model("mine")


def test_load_with_a_config(client):
    client.load_model("mine", config=json.dumps({"max_batch_size": 3}))
    assert client.get_model_config("mine")["max_batch_size"] == 3
    client.load_model("mine")
    assert client.get_model_config("mine")["max_batch_size"] == 8


def test_load_with_files(client):
    content = onnx_models.add_sub("FP32", dims=(2,)).SerializeToString()
    config = json.dumps({"backend": "onnxruntime", "max_batch_size": 2})
    client.load_model("mine", config=config, files={"file:7/model.onnx": content})
    assert client.get_model_metadata("mine")["versions"] == ["7"]
    one = np.ones((1, 2), np.float32)
    result = client.infer("mine", [make_input("INPUT0", one), make_input("INPUT1", one)])
    assert result.as_numpy("OUTPUT0").tolist() == [[2, 2]]
    client.load_model("mine")
    assert client.get_model_metadata("mine")["versions"] == ["1"]


def test_loads_that_fail(client):
    with pytest.raises(InferenceServerException, match="failed to load 'nope'"):
        client.load_model("nope")
    with pytest.raises(InferenceServerException, match="max_batch_size"):
        client.load_model("mine", config=json.dumps({"max_batch_size": -1}))
    with pytest.raises(InferenceServerException, match="inside the model's folder"):
        client.load_model("mine", config="{}", files={"file:../x": b"y"})
    assert client.is_model_ready("mine")
