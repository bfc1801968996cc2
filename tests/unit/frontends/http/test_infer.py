import asyncio
import gzip
import json
import threading
import zlib

import numpy as np
import pytest

from shoal.core import dtypes
from shoal.core.request import Request
from shoal.core.signature import Signature, TensorSpec
from shoal.errors import Cancelled, Unavailable

PATH = "/v2/models/m/infer"
LENGTH = "inference_header_content_length"
LENGTH_SENT = b"inference-header-content-length"


def binary_request(array, **fields):
    """A body with one binary input, and the length of its JSON."""
    entry = {
        "name": "a",
        "datatype": "INT32",
        "shape": list(array.shape),
        "parameters": {"binary_data_size": array.nbytes},
    }
    header = json.dumps({"inputs": [entry], **fields}).encode()
    return header + array.tobytes(), {LENGTH: str(len(header))}


ARRAY = np.array([[1, 2]], np.int32)


def test_json_in_json_out(front):
    answer = front.infer(front.input(id="7"))
    assert answer.status == 200
    assert answer.headers == {b"content-type": b"application/json"}
    assert answer.json == {
        "id": "7",
        "model_name": "m",
        "model_version": "3",
        "outputs": [{"name": "a", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]}],
    }


@pytest.mark.parametrize("whole", [bytes, memoryview])
def test_binary_in_binary_out(front, whole):
    body, headers = binary_request(ARRAY, parameters={"binary_data_output": True})
    answer = front.infer(whole(body), **headers)
    assert answer.status == 200
    length = int(answer.headers[LENGTH_SENT])
    assert answer.headers[b"content-type"] == b"application/octet-stream"
    assert json.loads(answer.body[:length])["outputs"][0]["parameters"] == {"binary_data_size": 8}
    assert answer.body[length:] == ARRAY.tobytes()


def test_the_request_says_all_the_client_said(front):
    front.infer(
        front.input(
            id="7",
            outputs=[{"name": "a"}],
            parameters={
                "sequence_id": 9,
                "sequence_start": True,
                "sequence_end": True,
                "priority": 2,
                "timeout": 77,
                "x": "y",
            },
        ),
        path="/v2/models/m/versions/5/infer",
    )
    (request,) = front.engine.requests
    assert (request.model_name, request.model_version, request.id) == ("m", 5, "7")
    assert request.requested_outputs == ("a",)
    assert request.parameters == {"x": "y"}
    assert (request.correlation_id, request.priority, request.timeout_us) == (9, 2, 77)
    assert request.flags == Request.SEQUENCE_START | Request.SEQUENCE_END


def test_the_newest_version_is_the_default(front):
    front.infer(front.input())
    (request,) = front.engine.requests
    assert (request.model_version, request.flags, request.requested_outputs) == (-1, 0, ())


def test_raw_request(front):
    answer = front.infer(ARRAY.tobytes(), **{LENGTH: "0"})
    assert front.engine.requests[0].inputs["a"].shape == (1, 2)
    assert answer.body[int(answer.headers[LENGTH_SENT]) :] == ARRAY.tobytes()


def test_an_empty_body_is_a_raw_request(front):
    answer = front.infer(b"")
    assert answer.status == 200
    assert front.engine.requests[0].inputs["a"].shape == (1, 0)


def test_raw_request_for_a_model_of_two_inputs(front):
    spec = TensorSpec("a", dtypes.INT32, (-1,))
    front.engine.tensors = Signature("m", 8, {"a": spec, "b": spec}, {})
    answer = front.infer(b"1234", **{LENGTH: "0"})
    assert answer.status == 400
    assert "Raw request must only have 1 input (found 1) to be deduced but got 2" in answer.error


@pytest.mark.parametrize(
    ("headers", "body", "text"),
    [
        ({LENGTH: "x"}, b"{}", "Unable to parse Inference-Header-Content-Length, got: x"),
        ({LENGTH: "3"}, b"{}", "inference header size should be in range (0, 2), got: 3"),
        ({LENGTH: "99999999999"}, b"{}", "inference header size should be in range (0, 2), got"),
        ({}, b"{}", "Unable to parse 'inputs'"),
        ({}, b"\xff\xfe", "failed to parse the request JSON buffer"),
        ({}, b"[" * 10_000, "JSON nesting depth exceeds maximum allowed limit (100)"),
        ({LENGTH: "2"}, b"{}tail", "Unable to parse 'inputs'"),
        ({"content_encoding": "gzip"}, b"{}", "failed to decompress the request body"),
        ({"content_encoding": "gzip"}, b"", "nothing to be decompressed"),
    ],
)
def test_bad_bodies(front, headers, body, text):
    answer = front.infer(body, **headers)
    assert answer.status == 400
    assert answer.error.startswith(text)
    assert not front.engine.requests


def test_unknown_models_are_told_before_the_body_is_read(front):
    answer = front.infer(b"{", path="/v2/models/x/infer")
    assert answer.status == 404
    assert answer.error == "Request for unknown model: 'x' is not found"


def test_decoupled_models_are_not_for_this_end_point(front):
    front.engine.decoupled = True
    answer = front.infer(front.input())
    assert answer.status == 501
    assert answer.error == "HTTP end point doesn't support models with decoupled transaction policy"


def test_refused_at_the_door(front):
    front.engine.failure = Unavailable("queue is full")
    answer = front.infer(front.input())
    assert (answer.status, answer.error) == (503, "queue is full")


def test_failed_on_the_way(front):
    front.engine.held = True

    async def ask():
        asking = asyncio.ensure_future(front.exchange("POST", PATH, front.input()))
        await asyncio.sleep(0)
        front.engine.answer(front.engine.requests[0], error=Cancelled("too late"))
        return await asking

    answer = front.loop.run_until_complete(ask())
    assert (answer.status, answer.error) == (400, "too late")


def test_answers_from_other_threads(front):
    front.engine.held = True

    async def ask():
        asking = [
            asyncio.ensure_future(front.exchange("POST", PATH, front.input(data=(n,))))
            for n in range(20)
        ]
        await asyncio.sleep(0)
        workers = [
            threading.Thread(target=front.engine.answer, args=(request,))
            for request in front.engine.requests
        ]
        for worker in workers:
            worker.start()
        answers = await asyncio.gather(*asking)
        for worker in workers:
            worker.join()
        return answers

    answers = front.loop.run_until_complete(ask())
    assert [answer.json["outputs"][0]["data"] for answer in answers] == [[n] for n in range(20)]


def test_a_client_that_leaves_takes_its_request_back(front):
    front.engine.held = True

    async def leave():
        exchange = front.begin("POST", PATH, front.input())
        (request,) = front.engine.requests
        assert not request.cancelled
        exchange.on_disconnect()
        assert request.cancelled
        front.engine.answer(request)  # a model that had begun may still finish
        await asyncio.sleep(0)
        assert exchange.status is None

    front.loop.run_until_complete(leave())


def test_a_client_that_leaves_while_its_body_is_read(front):
    async def leave():
        body = gzip.compress(json.dumps(front.input(data=range(50_000))).encode())
        assert len(body) > 8 * 1024
        exchange = front.begin("POST", PATH, body, content_encoding="gzip")
        exchange.on_disconnect()
        await front.loop.shutdown_default_executor()
        await asyncio.sleep(0)
        assert exchange.status is None

    front.loop.run_until_complete(leave())
    assert not front.engine.requests


@pytest.mark.parametrize("count", [3, 50_000])  # read on the loop, and on a thread
@pytest.mark.parametrize(
    ("coding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes), ("", bytes)],
)
def test_request_codings(front, coding, pack, count):
    numbers = np.random.default_rng(1).integers(0, 1000, count).tolist()
    body = pack(json.dumps(front.input(data=numbers)).encode())
    answer = front.infer(body, content_encoding=coding)
    assert answer.status == 200
    assert answer.json["outputs"][0]["data"] == numbers


def test_the_header_length_counts_unpacked_bytes(front):
    body, headers = binary_request(np.arange(10_000, dtype=np.int32).reshape(1, -1))
    answer = front.infer(gzip.compress(body), content_encoding="gzip", **headers)
    assert answer.json["outputs"][0]["data"] == list(range(10_000))


@pytest.mark.parametrize("size", [10_000, 100_000])
def test_bombs_are_refused(front, size):
    front.set(max_input_bytes=9_999)
    packed = gzip.compress(b" " * size)
    answer = front.infer(packed, content_encoding="gzip")
    assert answer.status == 400
    assert answer.error == (
        "Decompressed data size exceeds the maximum allowed value of 9999 bytes. Use "
        "--http-max-input-size to increase the limit."
    )


def test_damage_found_on_a_thread_is_an_answer_too(front):
    packed = bytearray(gzip.compress(np.random.default_rng(1).bytes(20_000)))
    packed[10_000] ^= 255
    answer = front.infer(bytes(packed), content_encoding="gzip")
    assert answer.status == 400


def test_limits(front):
    front.set(max_input_bytes=100)
    answer = front.infer(b" " * 101)
    assert answer.error.startswith("request JSON size of 101 bytes exceeds the maximum allowed in")
    answer = front.infer(b" " * 101, **{LENGTH: "0"})
    assert answer.error.startswith("Raw input has a byte_size (101 bytes) that exceeds the maximu")
    answer = front.infer(b" " * 500_000)
    assert answer.error.startswith("request JSON size of 500000 bytes exceeds the maximum allowed")


def test_unknown_codings(front):
    answer = front.infer(b"", content_encoding="br")
    assert (answer.status, answer.error) == (501, "Unsupported compression type")
    assert answer.headers[b"accept-encoding"] == b"gzip, deflate"


@pytest.mark.parametrize("count", [1_000, 50_000])  # packed on the loop, and on a thread
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_response_codings(front, coding, count):
    array = np.arange(count, dtype=np.int32).reshape(1, -1)
    body, headers = binary_request(array, parameters={"binary_data_output": True})
    answer = front.infer(body, accept_encoding=f"br, {coding}", **headers)
    assert answer.status == 200
    assert answer.headers[b"content-encoding"] == coding.encode()
    assert answer.headers[b"vary"] == b"Accept-Encoding"
    length = int(answer.headers[LENGTH_SENT])
    assert answer.body[length:] == array.tobytes()


@pytest.mark.parametrize("accept", ["identity", "br", "gzip;q=0", "identity;q=1, gzip;q=0.5", ""])
def test_large_responses_nobody_wants_packed(front, accept):
    answer = front.infer(front.input(data=range(5_000)), accept_encoding=accept)
    assert b"content-encoding" not in answer.headers
    assert len(answer.json["outputs"][0]["data"]) == 5_000


def test_small_responses_are_not_packed(front):
    answer = front.infer(front.input(), accept_encoding="gzip")
    assert b"content-encoding" not in answer.headers
    assert answer.json["outputs"][0]["data"] == [1, 2]


def test_classification(front):
    wanted = [{"name": "a", "parameters": {"classification": 2}}]
    answer = front.infer(front.input(data=(5, 9, 7), outputs=wanted))
    assert answer.json["outputs"] == [
        {"name": "a", "datatype": "BYTES", "shape": [1, 2], "data": ["9:1:dog", "7:2"]}
    ]


def test_what_cannot_be_sent_as_asked_is_a_400(front):
    front.engine.outputs = [front.tensor("y", np.ones(2, np.float16))]
    answer = front.infer(front.input())
    assert answer.status == 400
    assert answer.error.startswith("sending FP16 data via JSON is not supported")
    front.engine.outputs = [front.tensor("y", np.array([b"\xff"], object))]
    answer = front.infer(front.input())
    assert answer.status == 400
    assert "'binary_data': true" in answer.error


def test_a_fault_while_answering_is_a_500(front, caplog):
    front.engine.outputs = [None]
    answer = front.infer(front.input())
    assert answer.status == 500
    assert answer.error.startswith("internal error: AttributeError")
    assert front.infer(front.input()).status == 500  # and the next one is still heard


def test_nan_and_infinity(front):
    array = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    front.engine.outputs = [front.tensor("y", array)]
    answer = front.infer(front.input())
    assert b'"data":[NaN,Infinity,-Infinity,1.0]' in answer.body


def test_forwarded_headers(front):
    front.set(header_forward_pattern="My_.*")
    front.infer(front.input(parameters={"x": 1}), my_trace="abc", other="no")
    assert front.engine.requests[0].parameters == {"x": 1}
    front.set(header_forward_pattern="My-.*")
    front.infer(front.input(parameters={"x": 1}), my_trace="abc", other="no")
    assert front.engine.requests[1].parameters == {"x": 1, "my-trace": "abc"}
    front.set(header_forward_pattern=".*")
    answer = front.infer(front.input(), timeout="5")
    assert (answer.status, answer.error) == (
        400,
        "Header 'timeout' is reserved for Triton usage and cannot be forwarded.",
    )
