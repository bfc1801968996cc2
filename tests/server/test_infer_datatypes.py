"""Every datatype through a real model, in every form a request and a response can have."""

import struct

import numpy as np
import pytest

from shoal.core.dtypes import ALL, BF16, BOOL, BYTES, FP16
from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.client import LENGTH_HEADER, Infer, outputs, read_outputs, to_bytes
from tests.support.repositories import EXECUTION_MODES, add_onnx, execution

NAMES = [datatype.name for datatype in ALL]
IN_JSON = [datatype.name for datatype in ALL if datatype not in (FP16, BF16)]
BY_NAME = {datatype.name: datatype for datatype in ALL}


@pytest.fixture(scope="module", params=EXECUTION_MODES)
def running(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in NAMES:
        config = f"max_batch_size: 8 {execution(request.param)}"
        add_onnx(folder, f"echo_{name}", onnx_models.identity(name, count=2), config)
        add_onnx(folder, f"one_{name}", onnx_models.identity(name, dims=(3,)), config)
    for name in ("INT32", "BYTES", "FP32", "UINT8"):
        config = f"max_batch_size: 8 {execution(request.param)}"
        add_onnx(folder, f"sum_{name}", onnx_models.add_sub(name, dims=(2,)), config)
    with running_server(folder) as server:
        yield server


def values(name, shape=(2, 3)):
    """Numbers that use every byte of the datatype, or texts of several lengths and scripts."""
    datatype = BY_NAME[name]
    count = int(np.prod(shape))
    if datatype is BYTES:
        texts = ["", "a", "größer", "鯨" * 40, "two\nlines", '"quoted"\\', "nul\0inside"]
        array = np.array([(texts * count)[i].encode() for i in range(count)], dtype=object)
    elif datatype is BOOL:
        array = np.arange(count) % 3 == 1
    elif datatype.numpy.kind in "iu":
        limits = np.iinfo(datatype.numpy)
        steps = [
            limits.min + i * (int(limits.max) - int(limits.min)) // count for i in range(count)
        ]
        array = np.array([*steps[1:], limits.max], dtype=datatype.numpy)
    else:
        array = (np.arange(count) * 1.37 - 2.5).astype(datatype.numpy)
    return array.reshape(shape)


@pytest.mark.parametrize("name", NAMES)
def test_binary_both_ways(running, name):
    first, second = values(name), values(name)[::-1].copy()
    infer = Infer(binary_data_output=True)
    infer.add("INPUT0", first, name, binary=True).add("INPUT1", second, name, binary=True)
    got = outputs(infer.send(running, f"echo_{name}"))
    assert list(got) == ["OUTPUT0", "OUTPUT1"]
    np.testing.assert_array_equal(got["OUTPUT0"], first)
    np.testing.assert_array_equal(got["OUTPUT1"], second)


@pytest.mark.parametrize("name", IN_JSON)
def test_json_both_ways(running, name):
    first, second = values(name), values(name)[::-1].copy()
    infer = Infer().add("INPUT0", first).add("INPUT1", second)
    answer = infer.send(running, f"echo_{name}")
    got = outputs(answer)
    assert answer.headers["content-type"] == "application/json"
    np.testing.assert_array_equal(got["OUTPUT0"], first)
    np.testing.assert_array_equal(got["OUTPUT1"], second)


@pytest.mark.parametrize("name", IN_JSON)
def test_one_tensor_in_json_and_one_in_binary(running, name):
    first, second = values(name), values(name)[::-1].copy()
    infer = Infer().add("INPUT0", first).add("INPUT1", second, binary=True)
    infer.want("OUTPUT1").want("OUTPUT0", binary_data=True)
    got = outputs(infer.send(running, f"echo_{name}"))
    assert list(got) == ["OUTPUT1", "OUTPUT0"]
    np.testing.assert_array_equal(got["OUTPUT0"], first)
    np.testing.assert_array_equal(got["OUTPUT1"], second)


@pytest.mark.parametrize("name", ["FP16", "BF16"])
def test_half_floats_are_binary_only(running, name):
    raw = values(name)
    infer = Infer().add("INPUT0", raw, name).add("INPUT1", raw, name)
    answer = infer.send(running, f"echo_{name}")
    assert answer.status == 400
    assert answer.error == (
        f"receiving {name} data via JSON is not supported. Please use the binary data format for "
        "input INPUT0"
    )
    infer = Infer().add("INPUT0", raw, name, binary=True).add("INPUT1", raw, name, binary=True)
    answer = infer.send(running, f"echo_{name}")
    assert answer.status == 400
    assert answer.error.startswith(f"sending {name} data via JSON is not supported")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "BYTES"])
def test_the_whole_body_can_be_the_one_input(running, name):
    array = values(name, (1, 3))
    body = to_bytes(array, BY_NAME[name])
    answer = running.post(f"/v2/models/one_{name}/infer", body, {LENGTH_HEADER: "0"})
    np.testing.assert_array_equal(outputs(answer)["OUTPUT0"], array)
    assert LENGTH_HEADER.lower() in answer.headers  # answered in kind


@pytest.mark.parametrize(("name", "total"), [("INT32", 5), ("FP32", 5), ("UINT8", 5)])
def test_models_compute(running, name, total):
    first = np.full((3, 2), 3, BY_NAME[name].numpy)
    second = np.full((3, 2), 2, BY_NAME[name].numpy)
    got = outputs(Infer().add("INPUT0", first).add("INPUT1", second).send(running, f"sum_{name}"))
    assert (got["OUTPUT0"] == total).all()
    assert (got["OUTPUT1"] == 1).all()


def test_strings_that_a_model_reads(running):
    first = np.array([[b"30", b"4"]], dtype=object)
    second = np.array([[b"12", b"-8"]], dtype=object)
    infer = Infer(binary_data_output=True).add("INPUT0", first, binary=True).add("INPUT1", second)
    got = outputs(infer.send(running, "sum_BYTES"))
    assert got["OUTPUT0"].tolist() == [[b"42", b"-4"]]
    assert got["OUTPUT1"].tolist() == [[b"18", b"12"]]


def test_the_bytes_on_the_wire_are_little_endian_rows(running):
    """Written out by hand once, so that two mistakes of ours cannot agree with one another."""
    header = (
        b'{"inputs":['
        b'{"name":"INPUT0","shape":[2,1],"datatype":"INT32","parameters":{"binary_data_size":8}},'
        b'{"name":"INPUT1","shape":[2,1],"datatype":"INT32","parameters":{"binary_data_size":8}}],'
        b'"outputs":[{"name":"OUTPUT1","parameters":{"binary_data":true}},'
        b'{"name":"OUTPUT0","parameters":{"binary_data":true}}]}'
    )
    body = header + struct.pack("<4i", 1, -2, 0x01020304, 4)
    answer = running.post("/v2/models/echo_INT32/infer", body, {LENGTH_HEADER: str(len(header))})
    length = int(answer.headers[LENGTH_HEADER.lower()])
    assert answer.body[length:] == b"\x04\x03\x02\x01\x04\0\0\0\x01\0\0\0\xfe\xff\xff\xff"


def test_strings_on_the_wire_carry_their_length(running):
    header = (
        b'{"inputs":['
        b'{"name":"INPUT0","shape":[1,2],"datatype":"BYTES","parameters":{"binary_data_size":13}},'
        b'{"name":"INPUT1","shape":[1,1],"datatype":"BYTES","data":["x"]}],'
        b'"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}'
    )
    blob = b"\x05\0\0\0hello\0\0\0\0"
    answer = running.post(
        "/v2/models/echo_BYTES/infer", header + blob, {LENGTH_HEADER: str(len(header))}
    )
    assert answer.body[int(answer.headers[LENGTH_HEADER.lower()]) :] == blob


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_tensors_without_elements(running, name, binary):
    array = np.empty((2, 0), BY_NAME[name].numpy)
    infer = Infer(binary_data_output=binary)
    infer.add("INPUT0", array, name, binary=binary).add("INPUT1", array, name, binary=binary)
    answer = infer.send(running, f"echo_{name}")
    if not binary and name in ("FP16", "BF16"):
        assert answer.status == 400
        return
    assert [entry["shape"] for entry in answer.json["outputs"]] == [[2, 0], [2, 0]]
    assert read_outputs(answer.headers, answer.body)["OUTPUT0"].shape == (2, 0)


def test_integers_in_json_lose_the_bits_they_have_no_room_for(running):
    infer = Infer().add("INPUT0", np.array([[0, 0]], np.uint8))
    infer.add("INPUT1", np.array([[0, 0]], np.uint8))
    infer.document["inputs"][0]["data"] = [256 + 7, 65535]
    assert outputs(infer.send(running, "echo_UINT8"))["OUTPUT0"].tolist() == [[7, 255]]


def test_nested_data_is_the_same_as_flat_data(running):
    infer = (
        Infer().add("INPUT0", np.zeros((2, 2), np.int32)).add("INPUT1", np.zeros((1, 4), np.int32))
    )
    infer.document["inputs"][0]["data"] = [[1, 2], [3, 4]]
    infer.document["inputs"][1]["shape"] = [2, 2]
    infer.document["inputs"][1]["data"] = [5, [6, [7]], 8]
    got = outputs(infer.send(running, "echo_INT32"))
    assert got["OUTPUT0"].tolist() == [[1, 2], [3, 4]]
    assert got["OUTPUT1"].tolist() == [[5, 6], [7, 8]]


def test_numbers_that_are_none_travel_as_bare_tokens(running):
    body = (
        b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,4],'
        b'"data":[NaN,Infinity,-Infinity,1.5]},'
        b'{"name":"INPUT1","datatype":"FP32","shape":[1,1],"data":[1e300]}]}'
    )
    answer = running.post("/v2/models/echo_FP32/infer", body)
    assert b"[NaN,Infinity,-Infinity,1.5]" in answer.body.replace(b" ", b"")
    got = outputs(answer)
    np.testing.assert_array_equal(got["OUTPUT0"], [[np.nan, np.inf, -np.inf, 1.5]])
    assert got["OUTPUT1"].tolist() == [[np.inf]]
