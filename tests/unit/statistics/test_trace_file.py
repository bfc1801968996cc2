"""Triton's trace files: what is in them, and when which one is written."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from shoal.core import bytes_tensor, dtypes
from shoal.statistics.trace import FinishedTrace, RequestRecord, TracedTensor
from shoal.statistics.trace_file import FileCollector, TraceFile


def record(number, parent=0, tensors=(), events=(("REQUEST_START", 10),), request_id=""):
    compute = (("COMPUTE_START", 30),)
    return RequestRecord(number, parent, "m", 2, request_id, events, compute, tensors, "", "")


def make_trace(number=1, *records, events=(("HTTP_RECV_START", 5),)):
    return FinishedTrace(number, events, records or (record(number),), 0, None, "", "")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


@pytest.fixture
def file(path):
    made = TraceFile(str(path))
    yield made
    made.close()


def ids(path):
    return [item["id"] for item in json.loads(path.read_text()) if "model_name" in item]


def test_what_is_written(file, path):
    first = record(1, request_id="r", events=(("REQUEST_START", 10), ("REQUEST_END", 40)))
    file.write([make_trace(1, first, record(2, parent=1))], numbered=False)
    file.close()
    assert json.loads(path.read_text()) == [
        {"id": 1, "model_name": "m", "model_version": 2, "request_id": "r"},
        {"id": 1, "timestamps": [{"name": "HTTP_RECV_START", "ns": 5}]},
        {"id": 1, "timestamps": [{"name": "REQUEST_START", "ns": 10}]},
        {"id": 1, "timestamps": [{"name": "COMPUTE_START", "ns": 30}]},
        {"id": 1, "timestamps": [{"name": "REQUEST_END", "ns": 40}]},
        {"id": 2, "model_name": "m", "model_version": 2, "parent_id": 1},
        {"id": 2, "timestamps": [{"name": "REQUEST_START", "ns": 10}]},
        {"id": 2, "timestamps": [{"name": "COMPUTE_START", "ns": 30}]},
    ]


def test_a_request_that_never_reached_a_model(file, path):
    refused = FinishedTrace(7, (("HTTP_RECV_START", 5),), (), 0, None, "", "no such model")
    file.write([refused], numbered=False)
    file.close()
    assert json.loads(path.read_text()) == [
        {"id": 7, "timestamps": [{"name": "HTTP_RECV_START", "ns": 5}]}
    ]


@pytest.mark.parametrize(
    ("datatype", "values", "data"),
    [
        (dtypes.BOOL, [True, False], "1,0"),
        (dtypes.UINT8, [0, 255], "0,255"),
        (dtypes.INT64, [-(2**63), 5], "-9223372036854775808,5"),
        (dtypes.FP16, [0.5, 2], "0.5,2.0"),
        (dtypes.FP32, [0.1, -2, np.nan], "0.1,-2,nan"),
        (dtypes.FP64, [0.1], "0.1"),
        (dtypes.INT32, [], ""),
    ],
    ids=str,
)
def test_tensors(file, path, datatype, values, data):
    raw = np.array(values, datatype.numpy).tobytes()
    kept = TracedTensor("TENSOR_QUEUE_INPUT", "IN", datatype, (1, len(values)), raw)
    file.write([make_trace(1, record(1, tensors=(kept,)))], numbered=False)
    file.close()
    assert json.loads(path.read_text())[-1] == {
        "id": 1,
        "activity": "TENSOR_QUEUE_INPUT",
        "tensor": {
            "name": "IN",
            "data": data,
            "shape": f"1,{len(values)}",
            "dtype": datatype.name,
        },
    }


def test_bfloat16_and_strings(file, path):
    bfloat16 = np.array([1.5, -2], np.float32).view(np.uint32) >> 16
    texts = [b"plain", b'say "hi", fish', b"\xff"]
    kept = (
        TracedTensor(
            "TENSOR_BACKEND_OUTPUT", "B", dtypes.BF16, (2,), bfloat16.astype("<u2").tobytes()
        ),
        TracedTensor("TENSOR_BACKEND_OUTPUT", "S", dtypes.BYTES, (3,), bytes_tensor.encode(texts)),
    )
    file.write([make_trace(1, record(1, tensors=kept))], numbered=False)
    file.close()
    *_, first, second = json.loads(path.read_text())
    assert first["tensor"]["data"] == "1.5,-2"
    row = next(csv.reader([second["tensor"]["data"]]))
    assert row == ["plain", 'say "hi", fish', "\\xff"]


def test_one_trace_that_cannot_be_written_does_not_stop_the_others(file, path, caplog):
    broken = TracedTensor("TENSOR_QUEUE_INPUT", "S", dtypes.BYTES, (5,), b"\1")
    file.write([make_trace(1, record(1, tensors=(broken,)))], numbered=False)
    file.write([make_trace(2)], numbered=False)
    file.close()
    assert ids(path) == [2]
    assert "a trace could not be written" in caplog.text


def test_a_place_that_cannot_be_written(tmp_path, caplog):
    file = TraceFile(str(tmp_path / "missing" / "trace.json"))
    file.write([make_trace()], numbered=True)
    file.write([make_trace()], numbered=False)
    file.close()
    (line,) = caplog.messages  # one a minute
    assert "cannot write traces" in line
    assert "No such file or directory; 1 were lost so far" in line


def test_a_full_disk(caplog):
    file = TraceFile("/dev/full")
    for number in range(5):
        file.write([make_trace(number)], numbered=False)
    file.close()
    (line,) = caplog.messages
    assert "cannot write traces to '/dev/full': No space left on device" in line


def test_traces_nobody_limits_go_to_the_main_file_one_by_one(file, path):
    collector = FileCollector(file, 0, limited=False)
    for number in (1, 2, 3):
        collector.take(make_trace(number), last=False)
    collector.retire()
    file.close()
    assert ids(path) == [1, 2, 3]
    assert len(list(path.parent.iterdir())) == 1


def test_an_older_file_is_replaced(file, path):
    path.write_text("what was there, and is a good deal longer than what comes instead " * 10)
    file.write([make_trace(1)], numbered=False)
    file.close()
    assert ids(path) == [1]


def test_a_frequency_makes_numbered_files(file, path):
    collector = FileCollector(file, 2, limited=False)
    for number in range(1, 6):
        collector.take(make_trace(number), last=False)
    collector.retire()
    file.close()
    assert not path.exists()
    assert [ids(path.with_name(f"trace.json.{n}")) for n in range(3)] == [[1, 2], [3, 4], [5]]


def test_the_last_of_a_limited_number_completes_a_numbered_file(file, path):
    collector = FileCollector(file, 0, limited=True)
    collector.take(make_trace(1), last=False)
    collector.take(make_trace(2), last=True)
    collector.retire()
    file.close()
    assert ids(path.with_name("trace.json.0")) == [1, 2]
    assert not path.exists()


def test_a_limited_number_that_was_not_reached_goes_to_the_main_file(file, path):
    collector = FileCollector(file, 0, limited=True)
    collector.take(make_trace(1), last=False)
    collector.retire()
    collector.take(make_trace(2), last=False)  # sampled before, complete after the change
    file.close()
    assert ids(path) == [1, 2]


def test_nothing_traced_no_file(file, path):
    FileCollector(file, 2, limited=False).retire()
    file.close()
    assert list(path.parent.iterdir()) == []
