"""ModelInfer above the transport."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.core import dtypes
from shoal.core.request import Request
from shoal.core.tensor import Tensor
from shoal.errors import BackendFailure, Cancelled, QueueRejected
from shoal.frontends.grpc.service import GrpcOptions, GrpcService
from shoal.frontends.grpc.status import StatusCode
from shoal.wire.proto import messages
from tests.support.grpc_calls import DirectInbox, start
from tests.support.scripted_engine import DECOUPLED

OUT = Tensor.from_array("OUT", np.array([1.5, 2.5], np.float32))


def serve(engine, **options):
    return GrpcService(engine, DirectInbox(), GrpcOptions(**options))


def make_request(name="m", **fields):
    request = messages.ModelInferRequest(model_name=name, **fields)
    request.inputs.add(name="IN", datatype="FP32", shape=[2])
    request.raw_input_contents.append(np.array([3, 4], "<f4").tobytes())
    return request


def infer(service, request, metadata=()):
    return start(service, "ModelInfer", metadata).message(request).half_close()


def test_a_request_reaches_the_engine_and_its_response_the_client(engine):
    request = make_request(id="7", model_version="1")
    request.outputs.add(name="OUT")
    request.parameters["mine"].string_param = "yes"
    request.parameters["priority"].uint64_param = 2
    request.parameters["timeout"].int64_param = 500
    request.parameters["sequence_id"].int64_param = 9
    request.parameters["sequence_start"].bool_param = True
    call = infer(serve(engine), request)
    (asked,) = engine.requests
    assert (asked.model_name, asked.model_version, asked.id) == ("m", 1, "7")
    assert asked.requested_outputs == ("OUT",)
    assert asked.parameters == {"mine": "yes"}
    assert (asked.priority, asked.timeout_us) == (2, 500)
    assert (asked.correlation_id, asked.flags) == (9, Request.SEQUENCE_START)
    assert asked.inputs["IN"].array.tolist() == [3.0, 4.0]
    assert call.status is None

    engine.answer(0, OUT, note=True)
    assert call.status is StatusCode.OK
    response = messages.ModelInferResponse.FromString(call.sent[0])
    assert (response.model_name, response.model_version, response.id) == ("m", "1", "7")
    assert response.outputs[0].datatype == "FP32"
    assert response.raw_output_contents[0] == OUT.array.tobytes()
    assert response.parameters["note"].bool_param
    assert "triton_final_response" not in response.parameters


def test_typed_contents_reach_the_model_as_raw_ones_do(engine):
    request = messages.ModelInferRequest(model_name="m")
    typed = request.inputs.add(name="IN", datatype="FP32", shape=[2])
    typed.contents.fp32_contents.extend([3, 4])
    infer(serve(engine), request)
    assert engine.requests[0].inputs["IN"].array.tolist() == [3.0, 4.0]


def test_classification(engine):
    request = make_request()
    request.outputs.add(name="OUT").parameters["classification"].int64_param = 1
    call = infer(serve(engine), request)
    engine.answer(0, OUT)
    response = messages.ModelInferResponse.FromString(call.sent[0])
    assert response.outputs[0].datatype == "BYTES"
    assert response.raw_output_contents[0][4:] == b"2.500000:1:dog"


def test_a_classification_that_cannot_be_made(engine):
    request = make_request()
    request.outputs.add(name="OUT").parameters["classification"].int64_param = 1
    call = infer(serve(engine), request)
    engine.answer(0, Tensor("OUT", dtypes.BYTES, (1,), raw=b"\0\0\0\0"))
    assert call.status is StatusCode.INVALID_ARGUMENT
    assert call.text.startswith("class result not available for output")


# ---- errors


def test_errors_of_the_model(engine):
    call = infer(serve(engine), make_request())
    engine.answer(0, error=BackendFailure("it broke"))
    assert (call.status, call.text, call.sent) == (StatusCode.INTERNAL, "it broke", [])


def test_refusals_of_the_engine(engine):
    engine.refusal = QueueRejected("Exceeds maximum queue size")
    call = infer(serve(engine), make_request())
    assert (call.status, call.text) == (StatusCode.UNAVAILABLE, "Exceeds maximum queue size")


def test_decoupled_models_are_refused(engine):
    call = infer(serve(engine), make_request(DECOUPLED))
    assert call.status is StatusCode.UNIMPLEMENTED
    assert call.text == "ModelInfer RPC doesn't support models with decoupled transaction policy"


def test_versions_that_are_none(engine):
    call = infer(serve(engine), make_request(model_version="newest"))
    assert call.status is StatusCode.INVALID_ARGUMENT
    assert call.text.startswith("failed to get model version from specified version string 'newe")


def test_bad_requests(engine):
    request = make_request()
    request.inputs[0].contents.fp32_contents.append(1)
    call = infer(serve(engine), request)
    assert call.status is StatusCode.INVALID_ARGUMENT
    assert call.text.startswith("contents field must not be specified")
    call = infer(serve(engine), b"\x0a\x05")
    assert call.status is StatusCode.INVALID_ARGUMENT
    assert call.text.startswith("the request is not a valid protobuf message")


def test_an_unknown_model_is_the_first_mistake_to_be_told(engine):
    request = make_request("nope")
    request.inputs[0].datatype = "FLOAT"
    call = infer(serve(engine), request)
    assert call.status is StatusCode.NOT_FOUND
    assert call.text == "Request for unknown model: 'nope' is not found"


def test_a_mistake_of_ours_is_internal(engine, caplog):
    engine.refusal = ZeroDivisionError("oops")
    call = infer(serve(engine), make_request())
    assert (call.status, call.text) == (
        StatusCode.INTERNAL,
        "internal error: ZeroDivisionError: oops",
    )
    assert "unforeseen" in caplog.text


def test_calls_that_arrive_while_the_server_goes_down_are_served(engine):
    service = serve(engine)
    before = infer(service, make_request())
    service.drain()
    after = infer(service, make_request())
    for index, call in enumerate((before, after)):
        engine.answer(index, OUT)
        assert call.status is StatusCode.OK


# ---- cancellation


def test_a_cancelled_call_cancels_its_request(engine):
    call = infer(serve(engine), make_request())
    assert not engine.requests[0].cancelled
    call.cancel()
    assert engine.requests[0].cancelled
    engine.answer(0, error=Cancelled("cancelled"))
    assert (call.status, call.sent) == (None, [])


# ---- a response and its end told apart


def test_a_response_that_comes_before_the_final_flag(engine):
    call = infer(serve(engine), make_request())
    engine.answer(0, OUT, final=False)
    assert call.status is None
    engine.answer(0)
    assert call.status is StatusCode.OK
    assert len(messages.ModelInferResponse.FromString(call.sent[0]).outputs) == 1


def test_more_than_one_response(engine):
    call = infer(serve(engine), make_request())
    engine.answer(0, OUT, final=False)
    engine.answer(0, OUT)
    assert call.status is StatusCode.INTERNAL
    assert call.text == "expected a single response, got 2"


# ---- metadata


def test_metadata_is_forwarded_where_the_pattern_says(engine):
    metadata = [("x-user", "ann"), ("x-user", "bob"), ("other", "1"), ("x-raw-bin", b"\xc3\xbc")]
    request = make_request()
    request.parameters["mine"].int64_param = 1
    service = serve(engine, header_forward_pattern="^x-")
    for _ in range(2):
        infer(service, request, metadata)
    expected = {"mine": 1, "x-user": "bob", "x-raw-bin": "ü"}
    assert [asked.parameters for asked in engine.requests] == [expected, expected]
    infer(service, request)
    assert engine.requests[-1].parameters == {"mine": 1}


@pytest.mark.parametrize("key", ["priority", "triton_x"])
def test_reserved_metadata_is_refused(engine, key):
    call = infer(serve(engine, header_forward_pattern=".*"), make_request(), [(key, "1")])
    assert call.status is StatusCode.INVALID_ARGUMENT
    assert call.text == f"Header '{key}' is reserved for Triton usage and cannot be forwarded."


def test_parameters_of_one_request_do_not_leak_into_the_next(engine):
    service = serve(engine)
    for _ in range(2):
        infer(service, make_request())
    engine.requests[0].parameters["added"] = 1
    assert engine.requests[1].parameters == {}
