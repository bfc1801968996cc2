"""Requests as bytes: what real servers will read from them."""

from __future__ import annotations

import gzip
import json
import pickle
import zlib

import numpy as np
import pytest

from shoal.errors import InvalidArgument
from shoal.perf.requests import (
    Content,
    RegionReference,
    RequestLayout,
    SequencePosition,
    grpc_request,
    http_head,
    http_request,
)
from shoal.wire.proto import messages

ROW = np.arange(4, dtype=np.int32)
INPUT = Content("INPUT0", "INT32", (1, 4), ROW.tobytes())


def parts(data):
    """Request line, headers, JSON and what follows it."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert int(headers["content-length"]) == len(body)
    length = int(headers.get("inference-header-content-length", len(body)))
    return first, headers, json.loads(body[:length]), body[length:]


def http(layout, *contents, **more):
    return http_request(http_head("host:1", layout, **more), layout, contents)


def test_binary_over_http():
    layout = RequestLayout("a model", "3", ("OUT",), parameters={"depth": 2})
    first, headers, document, blob = parts(http(layout, INPUT).filled(None))
    assert first == "POST /v2/models/a%20model/versions/3/infer HTTP/1.1"
    assert headers["host"] == "host:1"
    assert document == {
        "parameters": {"depth": 2},
        "inputs": [
            {
                "name": "INPUT0",
                "datatype": "INT32",
                "shape": [1, 4],
                "parameters": {"binary_data_size": 16},
            }
        ],
        "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}],
    }
    assert blob == ROW.tobytes()


@pytest.mark.parametrize("fixed", [{}, {"depth": 2}])
def test_a_turn_over_http(fixed):
    replay = http(RequestLayout("m", parameters=fixed), INPUT)
    for position in (SequencePosition(5, True, False), SequencePosition(123456789, False, True)):
        _, _, document, blob = parts(replay.filled(position))
        assert document["parameters"] == {
            "sequence_id": position.sequence_id,
            "sequence_start": position.start,
            "sequence_end": position.end,
            **fixed,
        }
        assert blob == ROW.tobytes()


def test_json_over_http():
    layout = RequestLayout("m", outputs=("OUT",), binary_inputs=False, binary_outputs=False)
    text = Content("TEXT", "BYTES", (1, 2), b"\x01\x00\x00\x00a\x02\x00\x00\x00bc")
    _, headers, document, blob = parts(http(layout, INPUT, text).filled(None))
    assert [entry["data"] for entry in document["inputs"]] == [[0, 1, 2, 3], ["a", "bc"]]
    assert document["outputs"][0]["parameters"] == {"binary_data": False}
    assert headers["content-type"] == "application/json"
    assert not blob


def test_what_has_no_form_in_json():
    layout = RequestLayout("m", binary_inputs=False)
    with pytest.raises(InvalidArgument, match="FP16"):
        http(layout, Content("HALF", "FP16", (1, 1), b"\0\0"))
    with pytest.raises(InvalidArgument, match="UTF-8"):
        http(layout, Content("TEXT", "BYTES", (1,), b"\x01\x00\x00\x00\xff"))


def test_headers_and_a_prefix():
    _, headers, _, _ = parts(
        http(RequestLayout("m"), INPUT, headers=[("team", "vision")], prefix="/proxy").filled(None)
    )
    assert headers["team"] == "vision"


def test_shared_memory_over_http():
    region = RegionReference("mine", 64, 16)
    layout = RequestLayout(
        "m", outputs=("OUT",), output_regions={"OUT": RegionReference("mine", 128, 32)}
    )
    content = Content("INPUT0", "INT32", (1, 4), b"", region)
    _, _, document, blob = parts(http(layout, content).filled(None))
    assert document["inputs"][0]["parameters"] == {
        "shared_memory_region": "mine",
        "shared_memory_offset": 64,
        "shared_memory_byte_size": 16,
    }
    assert document["outputs"][0]["parameters"]["shared_memory_offset"] == 128
    assert not blob


def message(data, packed=None):
    """A ModelInferRequest from behind its prefix."""
    assert data[0] == (1 if packed else 0)
    assert int.from_bytes(data[1:5], "big") == len(data) - 5
    return messages.ModelInferRequest.FromString(packed(data[5:]) if packed else data[5:])


def test_over_grpc():
    layout = RequestLayout(
        "m", "2", ("OUT",), parameters={"depth": 2, "on": True, "x": 0.5, "t": "a"}
    )
    found = message(grpc_request(layout, [INPUT]).filled(None))
    assert (found.model_name, found.model_version) == ("m", "2")
    assert found.inputs[0].name == "INPUT0"
    assert list(found.inputs[0].shape) == [1, 4]
    assert found.raw_input_contents[0] == ROW.tobytes()
    assert found.outputs[0].name == "OUT"
    assert found.parameters["depth"].int64_param == 2
    assert found.parameters["on"].bool_param is True
    assert found.parameters["x"].double_param == 0.5
    assert found.parameters["t"].string_param == "a"


@pytest.mark.parametrize(
    ("compression", "packed"), [("", None), ("gzip", gzip.decompress), ("deflate", zlib.decompress)]
)
def test_a_turn_over_grpc(compression, packed):
    replay = grpc_request(RequestLayout("m", empty_final=True), [INPUT], compression)
    found = message(replay.filled(SequencePosition(77, True, False)), packed)
    assert found.parameters["sequence_id"].int64_param == 77
    assert found.parameters["sequence_start"].bool_param is True
    assert found.parameters["sequence_end"].WhichOneof("parameter_choice") == "bool_param"
    assert found.parameters["sequence_end"].bool_param is False
    assert found.parameters["triton_enable_empty_final_response"].bool_param is True
    assert found.raw_input_contents[0] == ROW.tobytes()


def test_shared_memory_over_grpc():
    layout = RequestLayout(
        "m", outputs=("OUT",), output_regions={"OUT": RegionReference("mine", 128, 32)}
    )
    content = Content("INPUT0", "INT32", (1, 4), b"", RegionReference("mine", 64, 16))
    found = message(grpc_request(layout, [content]).filled(None))
    assert found.inputs[0].parameters["shared_memory_offset"].int64_param == 64
    assert found.outputs[0].parameters["shared_memory_byte_size"].int64_param == 32
    assert not found.raw_input_contents


def test_requests_travel_to_other_processes():
    for replay in (http(RequestLayout("m"), INPUT), grpc_request(RequestLayout("m"), [INPUT])):
        again = pickle.loads(pickle.dumps(replay))
        position = SequencePosition(1, True, True)
        assert again.filled(None) == replay.filled(None)
        assert again.filled(position) == replay.filled(position)
