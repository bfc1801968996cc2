"""ModelStreamInfer above the transport: order, flags, errors, the end, and slow readers."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from shoal.core.tensor import Tensor
from shoal.errors import BackendFailure, Cancelled, QueueRejected
from shoal.frontends.grpc import stream as stream_module
from shoal.frontends.grpc.status import StatusCode
from shoal.wire.proto import messages
from tests.support.grpc_calls import start
from tests.support.scripted_engine import DECOUPLED

SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."
ENDS_AT_ERRORS = [("triton_grpc_error", "true")]


def tensor(value=1):
    return Tensor.from_array("OUT", np.array([value], np.int32))


def make_request(name="m", request_id="", **fields):
    request = messages.ModelInferRequest(model_name=name, id=request_id, **fields)
    request.inputs.add(name="IN", datatype="INT32", shape=[1])
    request.raw_input_contents.append(b"\0\0\0\0")
    return request


def open_stream(service, metadata=()):
    return start(service, "ModelStreamInfer", metadata)


def received(call):
    """What the client has got so far: id, value or error, final flag."""
    found = []
    for content in call.sent:
        message = messages.ModelStreamInferResponse.FromString(content)
        response = message.infer_response
        value = message.error_message or [
            int(np.frombuffer(raw, np.int32)[0]) for raw in response.raw_output_contents
        ]
        final = response.parameters["triton_final_response"].bool_param
        found.append((response.id, value, final))
    return found


# ---- order


def test_responses_come_in_the_order_of_the_requests(service, engine):
    call = open_stream(service)
    for request_id in "abc":
        call.message(make_request(request_id=request_id))
    engine.answer(2, tensor(3))
    assert received(call) == []
    engine.answer(0, tensor(1))
    assert received(call) == [("a", [1], True)]
    engine.answer(1, tensor(2))
    assert received(call) == [("a", [1], True), ("b", [2], True), ("c", [3], True)]
    assert call.status is None


def test_decoupled_responses_come_as_they_are_made(service, engine):
    call = open_stream(service)
    call.message(make_request(DECOUPLED, "a")).message(make_request(DECOUPLED, "b"))
    engine.answer(1, tensor(1), final=False)
    engine.answer(0, tensor(2), final=False)
    engine.answer(1, tensor(3))
    engine.answer(0, tensor(4))
    assert received(call) == [
        ("b", [1], False),
        ("a", [2], False),
        ("b", [3], True),
        ("a", [4], True),
    ]


def test_decoupled_requests_do_not_wait_for_others(service, engine):
    call = open_stream(service)
    call.message(make_request(request_id="slow")).message(make_request(DECOUPLED, "quick"))
    engine.answer(1, tensor(1))
    assert received(call) == [("quick", [1], True)]
    engine.answer(0, tensor(2))
    assert received(call)[1:] == [("slow", [2], True)]


def test_a_response_that_comes_before_the_final_flag(service, engine):
    call = open_stream(service).message(make_request(request_id="a"))
    engine.answer(0, tensor(1), final=False)
    assert received(call) == []
    engine.answer(0)
    assert received(call) == [("a", [1], True)]


# ---- the final flag alone


def test_an_empty_final_response_is_kept_from_those_who_did_not_ask(service, engine):
    call = open_stream(service).message(make_request(DECOUPLED, "a"))
    engine.answer(0, tensor(1), final=False)
    engine.answer(0)
    assert received(call) == [("a", [1], False)]
    call.half_close()
    assert call.status is StatusCode.OK


def test_an_empty_final_response_on_request(service, engine):
    request = make_request(DECOUPLED, "a")
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    call = open_stream(service).message(request)
    assert engine.requests[0].parameters == {}
    engine.answer(0)
    assert received(call) == [("a", [], True)]
    response = messages.ModelStreamInferResponse.FromString(call.sent[0]).infer_response
    assert (response.model_name, response.model_version) == ("d", "1")


# ---- errors inside the stream


def test_errors_are_answers_in_their_place(service, engine):
    call = open_stream(service)
    call.message(make_request(request_id="a"))
    call.message(make_request("nope", "b"))
    call.message(make_request(request_id="c"))
    engine.answer(1, error=BackendFailure("it broke"))
    assert received(call) == []
    engine.answer(0, tensor(1))
    assert received(call) == [
        ("a", [1], True),
        ("b", "Request for unknown model: 'nope' is not found", True),
        ("c", "it broke", True),
    ]
    assert call.status is None
    failed = messages.ModelStreamInferResponse.FromString(call.sent[1]).infer_response
    assert failed.model_name == "nope"


def test_a_decoupled_error_need_not_be_the_end(service, engine):
    call = open_stream(service).message(make_request(DECOUPLED, "a", model_version="1"))
    engine.answer(0, error=BackendFailure("for now"), final=False)
    engine.answer(0, tensor(2))
    assert received(call) == [("a", "for now", False), ("a", [2], True)]


@pytest.mark.parametrize("name", ["m", DECOUPLED])
def test_what_the_engine_refuses(service, engine, name):
    engine.refusal = QueueRejected("Exceeds maximum queue size")
    call = open_stream(service).message(make_request(name, "a"))
    assert received(call) == [("a", "Exceeds maximum queue size", True)]
    call.half_close()
    assert call.status is StatusCode.OK


def test_bad_messages_do_not_end_the_stream(service, engine):
    mixed = make_request(request_id="b")
    mixed.inputs[0].contents.int_contents.append(1)
    call = open_stream(service)
    call.message(b"\x0a\x05").message(mixed).message(make_request(request_id="c"))
    engine.answer(0, tensor(1))
    (first, second, third) = received(call)
    assert first[0] == ""
    assert first[1].startswith("the request is not a valid protobuf message")
    assert second[0] == "b"
    assert second[1].startswith("contents field must not be specified")
    assert third == ("c", [1], True)


def test_a_classification_that_cannot_be_made(service, engine):
    request = make_request(request_id="a")
    request.outputs.add(name="OUT").parameters["classification"].int64_param = 1
    call = open_stream(service).message(request)
    engine.answer(0, Tensor.from_array("OUT", np.array([b"x"], object)))
    assert received(call)[0][1].startswith("class result not available for output")


def test_a_mistake_of_ours_is_an_answer_too(service, engine, caplog):
    engine.refusal = ZeroDivisionError("oops")
    call = open_stream(service).message(make_request(request_id="a"))
    assert received(call) == [("a", "internal error: ZeroDivisionError: oops", True)]
    assert "unforeseen" in caplog.text


# ---- errors that end the stream


def test_the_first_error_ends_a_stream_that_asked_for_it(service, engine):
    call = open_stream(service, ENDS_AT_ERRORS)
    for request_id in "abc":
        call.message(make_request(request_id=request_id))
    engine.answer(1, error=BackendFailure("it broke"))
    assert call.status is None
    engine.answer(0, tensor(1))
    assert received(call) == [("a", [1], True)]
    assert (call.status, call.text) == (StatusCode.INTERNAL, "it broke")
    assert [request.cancelled for request in engine.requests] == [False, False, True]
    engine.answer(2, tensor(1))
    call.message(make_request())
    assert len(engine.requests) == 3
    assert len(call.sent) == 1


def test_a_refusal_and_a_decoupled_error_end_it_at_once(service, engine):
    call = open_stream(service, ENDS_AT_ERRORS).message(make_request("nope"))
    assert call.status is StatusCode.NOT_FOUND
    call = open_stream(service, ENDS_AT_ERRORS)
    call.message(make_request()).message(make_request(DECOUPLED))
    engine.answer(1, error=BackendFailure("it broke"), final=False)
    assert (call.status, call.text) == (StatusCode.INTERNAL, "it broke")
    engine.answer(1)
    assert call.sent == []


def test_other_values_of_the_flag_do_not_count(service, engine):
    call = open_stream(service, [("triton_grpc_error", "false")]).message(make_request("nope"))
    assert call.status is None
    assert len(call.sent) == 1


# ---- the end


def test_half_close_waits_for_what_is_unanswered(service, engine):
    call = open_stream(service)
    call.message(make_request(request_id="a")).message(make_request(DECOUPLED, "b")).half_close()
    engine.answer(1, tensor(1), final=False)
    engine.answer(0, tensor(2))
    assert call.status is None
    engine.answer(1, tensor(3))
    assert (call.status, call.text) == (StatusCode.OK, "")
    assert len(call.sent) == 3


def test_an_empty_stream_ends_when_the_client_says(service):
    assert open_stream(service).half_close().status is StatusCode.OK


def test_a_cancelled_stream_cancels_its_requests(service, engine):
    call = open_stream(service)
    call.message(make_request()).message(make_request()).message(make_request(DECOUPLED))
    engine.answer(1, tensor(1))
    call.cancel()
    assert [request.cancelled for request in engine.requests] == [True, False, True]
    engine.answer(0, error=Cancelled("cancelled"))
    engine.answer(2, tensor(1), final=False)
    assert (call.sent, call.status) == ([], None)


def test_requests_that_answer_while_they_are_cancelled(service, engine):
    call = open_stream(service).message(make_request()).message(make_request())
    for index in range(2):
        engine.requests[index].on_cancel = lambda index=index: engine.answer(
            index, error=Cancelled("cancelled")
        )
    call.cancel()
    assert all(request.cancelled for request in engine.requests)
    assert call.sent == []


def test_while_the_server_goes_down(service, engine):
    idle, half_closed = open_stream(service), open_stream(service)
    busy = open_stream(service).message(make_request(request_id="a"))
    half_closed.message(make_request(request_id="b")).half_close()
    service.drain()
    assert (idle.status, idle.text) == (StatusCode.UNAVAILABLE, SHUTTING_DOWN)
    busy.message(make_request(request_id="late"))
    assert busy.status is None
    engine.answer(0, tensor(1))
    engine.answer(1, tensor(2))
    assert received(busy) == [("a", [1], True), ("late", SHUTTING_DOWN, True)]
    assert (busy.status, busy.text) == (StatusCode.UNAVAILABLE, SHUTTING_DOWN)
    assert half_closed.status is StatusCode.OK
    late = open_stream(service)
    assert (late.status, late.text) == (StatusCode.UNAVAILABLE, SHUTTING_DOWN)


def test_streams_that_are_gone_are_forgotten(service):
    call = open_stream(service)
    method = service._stream
    assert len(method._open) == 1
    call.on_message = call.on_half_close = call.on_cancel = call.on_drain = None
    gc.collect()
    assert len(method._open) == 0


# ---- slow readers


def test_a_slow_reader_is_not_asked_for_more(service, engine):
    call = open_stream(service).message(make_request()).message(make_request())
    call.writable = False
    engine.answer(0, tensor(1))
    assert call.paused
    engine.answer(1, tensor(2))
    assert call.paused
    assert len(call.sent) == 2
    call.drain()
    assert not call.paused


def test_too_many_unanswered_requests_stop_the_reading(service, engine, monkeypatch):
    monkeypatch.setattr(stream_module, "MOST_UNANSWERED", 4)
    monkeypatch.setattr(stream_module, "_FEW_UNANSWERED", 2)
    call = open_stream(service)
    for _ in range(4):
        assert not call.paused
        call.message(make_request())
    assert call.paused
    engine.answer(3, tensor(1))  # it still waits for its turn
    engine.answer(0, tensor(1))
    assert call.paused
    engine.answer(1, tensor(1))
    assert not call.paused
    engine.answer(2, tensor(1))
    assert len(call.sent) == 4
