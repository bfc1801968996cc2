"""Tensors that are wrong in every way we could think of: a sentence each, and the server goes on."""

import struct

import numpy as np
import pytest

from shoal.testing.server import running_server
from tests.support.client import Infer
from tests.support.refusals import (
    add_models,
    check_refused,
    check_still_serving,
    one_input,
    valid_request,
)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    add_models(folder)
    with running_server(folder) as server:
        yield server


@pytest.fixture(autouse=True)
def still_serving(running, request):
    caplog = request.getfixturevalue("caplog")  # of other processes it sees nothing
    yield
    check_still_serving(running, caplog)


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
        answer = running.post("/v2/models/echo_FP32/infer", one_input("FP32", shape, [1.0]))
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
    answer = running.post("/v2/models/echo_FP32/infer", one_input("FP32", shape, [1.0]))
    check_refused(answer, "Unable to parse 'shape'", status=500)


@pytest.mark.parametrize("shape", ["1", 1, None, {}, {"0": 1}])
def test_shapes_that_are_no_lists(running, shape):
    answer = running.post("/v2/models/echo_FP32/infer", one_input("FP32", shape, [1.0]))
    check_refused(answer, "Unable to parse 'shape'")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_a_dim_that_is_no_number(running, text):
    body = one_input("FP32", ["here"], [1.0]).replace(b'"here"', text.encode())
    check_refused(running.post("/v2/models/echo_FP32/infer", body), "shape", status=500)


@pytest.mark.parametrize("shape", [[], [1], [1, 1, 1], [1, 3]])
def test_shapes_that_the_model_does_not_have(running, shape):
    infer = valid_request()
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
    check_refused(answer, "[request id: <id_unknown>] inference request batch-size must be ")


def test_inputs_of_different_rows(running):
    infer = Infer(id="r").add("INPUT0", np.zeros((1, 2), np.int32))
    answer = infer.add("INPUT1", np.zeros((2, 2), np.int32)).send(running, "sum")
    check_refused(
        answer, "[request id: r] input 'INPUT1' batch size does not match other inputs for"
    )


# ---- inputs and outputs


def test_missing_inputs(running):
    answer = Infer().add("INPUT0", np.zeros((1, 2), np.int32)).send(running, "sum")
    check_refused(
        answer,
        "expected 2 inputs but got 1 inputs for model 'sum'. Got input(s) ['INPUT0'], but missing "
        "required input(s) ['INPUT1']. Please provide all required input(s).",
    )


def test_extra_inputs(running):
    answer = valid_request().add("INPUT2", np.zeros((1, 2), np.int32)).send(running, "sum")
    check_refused(answer, "expected 2 inputs but got 3 inputs for model 'sum'")


def test_an_input_of_another_name(running):
    infer = valid_request()
    infer.document["inputs"][1]["name"] = "INPUT7"
    check_refused(infer.send(running, "sum"), "'INPUT7'", "'sum'")


def test_an_input_twice(running):
    infer = valid_request()
    infer.document["inputs"][1]["name"] = "INPUT0"
    check_refused(infer.send(running, "sum"), "input 'INPUT0' already exists in request")


@pytest.mark.parametrize("name", [None, 7, ["INPUT0"]])
def test_a_name_that_is_no_text(running, name):
    infer = valid_request()
    infer.document["inputs"][0]["name"] = name
    check_refused(infer.send(running, "sum"), "Unable to parse 'name'")


def test_a_wrong_datatype(running):
    infer = Infer(id="7").add("INPUT0", np.zeros((1, 2), np.float32))
    answer = infer.add("INPUT1", np.zeros((1, 2), np.int32)).send(running, "sum")
    check_refused(
        answer,
        "[request id: 7] inference input 'INPUT0' data-type is 'FP32', but model 'sum' expects "
        "'INT32'",
    )


@pytest.mark.parametrize("datatype", ["int32", "TYPE_INT32", "STRING", "", "INT128", 7, None, []])
def test_an_unknown_datatype(running, datatype):
    infer = valid_request()
    infer.document["inputs"][0]["datatype"] = datatype
    check_refused(infer.send(running, "sum"), "datatype")


@pytest.mark.parametrize("name", ["OUTPUT2", "INPUT0", ""])
def test_an_unknown_output(running, name):
    answer = valid_request().want(name).send(running, "sum")
    check_refused(answer, f"unexpected inference output '{name}' for model 'sum'")


def test_an_output_twice(running):
    answer = valid_request().want("OUTPUT0").want("OUTPUT0", binary_data=True).send(running, "sum")
    check_refused(answer, "output 'OUTPUT0' already exists in request")


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
    answer = valid_request().want("OUTPUT0", **parameters).send(running, "sum")
    assert answer.status in (400, 404)
    assert len(answer.error.split()) > 3


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
@pytest.mark.parametrize("parameters", [7, [], None, "text"])
def test_tensor_parameters_that_are_no_object(running, kind, parameters):
    infer = valid_request().want("OUTPUT0")
    infer.document[kind][0]["parameters"] = parameters
    check_refused(infer.send(running, "sum"), f"Unable to parse '{kind}'")


def test_an_input_in_unregistered_shared_memory(running):
    infer = valid_request()
    del infer.document["inputs"][0]["data"]
    infer.document["inputs"][0]["parameters"] = {
        "shared_memory_region": "region",
        "shared_memory_byte_size": 8,
    }
    answer = infer.send(running, "sum")
    check_refused(answer, "Unable to find shared memory region: 'region'", status=404)


@pytest.mark.parametrize("parameters", [{}, {"binary_data_size": 8, "shared_memory_region": "r"}])
def test_an_input_from_nowhere_or_from_everywhere(running, parameters):
    infer = valid_request()
    del infer.document["inputs"][0]["data"]
    infer.document["inputs"][0]["parameters"] = parameters
    check_refused(infer.send(running, "sum"), "Input must set only one of the following fields")


# ---- data


@pytest.mark.parametrize("data", [[], [1], [1, 2, 3], [[1, 2], [3]], [[], []]])
def test_data_longer_or_shorter_than_the_shape(running, data):
    infer = valid_request()
    infer.document["inputs"][0]["data"] = data
    check_refused(infer.send(running, "sum"), "shape", "INPUT0")


@pytest.mark.parametrize("data", [None, 1, "12", {"0": 1, "1": 2}])
def test_data_that_is_no_list(running, data):
    infer = valid_request()
    infer.document["inputs"][0]["data"] = data
    check_refused(infer.send(running, "sum"), "Unable to parse 'data'")


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
    body = one_input(datatype, [1, 1], ["here"]).replace(b'"here"', element.encode())
    check_refused(running.post(f"/v2/models/echo_{datatype}/infer", body), "'data'", "INPUT0")


@pytest.mark.parametrize(("size", "blob"), [(4, 4), (12, 12), (0, 0)])
def test_binary_data_longer_or_shorter_than_the_shape(running, size, blob):
    answer = binary("FP32", [1, 2], bytes(blob), size).send(running, "echo_FP32")
    check_refused(
        answer,
        "input byte size mismatch for input 'INPUT0' for model 'echo_FP32'. Expected 8, got "
        f"{size}",
    )


def test_binary_data_that_is_missing(running):
    answer = binary("FP32", [1, 2], bytes(5), 8).send(running, "echo_FP32")
    check_refused(
        answer,
        "unexpected size for input 'INPUT0', expecting 3 additional bytes for model 'echo_FP32'",
    )


def test_binary_data_that_belongs_to_no_input(running):
    answer = binary("FP32", [1, 2], bytes(12), 8).send(running, "echo_FP32")
    check_refused(answer, "unexpected additional input data for model 'echo_FP32'")


@pytest.mark.parametrize("size", [-8, "8", 8.0, None, 2**70])
def test_a_binary_size_that_is_none(running, size):
    infer = binary("FP32", [1, 2], bytes(8))
    infer.document["inputs"][0]["parameters"]["binary_data_size"] = size
    check_refused(infer.send(running, "echo_FP32"))


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
    body = one_input("BYTES", [1, 1], ["here"]).replace(b'"here"', element)
    check_refused(running.post("/v2/models/echo_BYTES/infer", body), "failed to parse")


def test_invalid_utf_8_beside_a_bare_token(running):
    """The tokens take another reader, which must be as strict."""
    body = one_input("BYTES", [1, 1], ["here"], extra=0).replace(b": 0", b": NaN")
    check_refused(
        running.post("/v2/models/echo_BYTES/infer", body.replace(b"here", b"\xff")), "failed to"
    )
    check_refused(
        running.post("/v2/models/echo_BYTES/infer", body.replace(b"here", b"\\ud800")), "failed to"
    )


def test_bytes_that_are_no_text_for_a_model_of_texts(running):
    """The runtime takes them in, and its Python side cannot give them back."""
    blob = struct.pack("<I", 2) + b"\xff\xfe"
    answer = binary("BYTES", [1, 1], blob).send(running, "echo_BYTES")
    check_refused(answer, "a string that is not UTF-8", status=500)


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
    check_refused(answer, "string", "'INPUT0'")
