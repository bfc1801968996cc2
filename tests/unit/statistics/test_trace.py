"""One sampled request, from its first byte to its last."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.core.dtypes import BYTES
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.core.tensor import Tensor
from shoal.errors import BackendFailure
from shoal.statistics.trace import Trace, TraceLevel
from shoal.statistics.trace_context import SpanContext


class Replies:
    def __init__(self):
        self.got = []

    def send(self, response):
        self.got.append(response)


class Clock:
    now_ns = 100

    def __call__(self):
        self.now_ns += 1
        return self.now_ns


def make_request(name="m", **fields):
    array = np.arange(2, dtype=np.float32)
    request = Request(name, {"IN": Tensor.from_array("IN", array)}, Replies(), **fields)
    request.start_ns, request.queued_ns = 10, 20
    return request


def names(events):
    return [name for name, _ in events]


@pytest.fixture
def finished():
    return []


@pytest.fixture
def trace(finished):
    return Trace(TraceLevel.TIMESTAMPS, finished.append, clock=Clock())


def test_the_moments_of_a_request(trace, finished):
    request = make_request(id="r")
    inner = request.reply
    trace.event("HTTP_RECV_END", 9)
    trace.event("HTTP_RECV_START", 5)
    trace.attach(request)
    request.served_by = SimpleNamespace(version=3, config=None)
    request.moments = (30, 40, 50, 60)
    response = Response("m", 3, "r")
    request.reply.send(response)
    trace.event("HTTP_SEND_START")
    trace.finish()

    assert inner.got == [response]
    (done,) = finished
    assert names(done.events) == [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "INFER_RESPONSE_COMPLETE",
        "HTTP_SEND_START",
    ]
    (record,) = done.requests
    assert (record.id, record.parent_id) == (done.id, 0)
    assert (record.model_name, record.model_version, record.request_id) == ("m", 3, "r")
    assert record.events == (("REQUEST_START", 10), ("QUEUE_START", 20), ("REQUEST_END", 101))
    assert record.compute == (
        ("COMPUTE_START", 30),
        ("COMPUTE_INPUT_END", 40),
        ("COMPUTE_OUTPUT_START", 50),
        ("COMPUTE_END", 60),
    )
    assert (record.tensors, record.span_id, record.error, done.error) == ((), "", "", "")


def test_one_that_is_answered_while_it_runs_ends_with_its_answer(trace, finished):
    request = make_request()
    trace.attach(request)
    request.moments = (30, 30, 0, 0)
    request.reply.send(Response("m", 1))
    trace.finish()
    assert [at for _, at in finished[0].requests[0].compute] == [30, 30, 101, 101]


def test_one_that_never_ran_has_no_compute(trace, finished):
    request = make_request()
    trace.attach(request)
    request.reply.send(Response("m", 1, error=BackendFailure("it broke")))
    trace.finish()
    (record,) = finished[0].requests
    assert record.compute == ()
    assert record.error == finished[0].error == "it broke"


def test_one_that_was_refused(trace, finished):
    """Nobody answers it but the frontend."""
    request = make_request()
    request.queued_ns = 0
    trace.attach(request)
    trace.failed("no such input")
    trace.finish()
    (record,) = finished[0].requests
    assert names(record.events) == ["REQUEST_START"]
    assert record.model_version == -1
    assert finished[0].error == "no such input"


def test_requests_that_a_request_leads_to(trace, finished):
    first, second, third = make_request("ensemble"), make_request("a"), make_request("b")
    trace.attach(first)
    first.served_by = SimpleNamespace(
        version=1, config=SimpleNamespace(ensemble_scheduling=object())
    )
    first.moments = (1, 2, 3, 4)
    first.trace.attach(second)
    second.trace.attach(third)
    for request in (third, second, first):
        request.reply.send(Response(request.model_name, 1))
    trace.finish()
    records = finished[0].requests
    assert [record.model_name for record in records] == ["ensemble", "a", "b"]
    assert [record.parent_id for record in records] == [0, records[0].id, records[1].id]
    assert len({record.id for record in records}) == 3
    assert records[0].compute == ()  # it ran nothing itself
    assert names(finished[0].events) == ["INFER_RESPONSE_COMPLETE"]  # of the client's own alone


def test_several_responses(trace, finished):
    request = make_request()
    trace.attach(request)
    for final in (False, False, True):
        request.reply.send(Response("m", 1, final=final))
    trace.finish()
    assert names(finished[0].events) == ["INFER_RESPONSE_COMPLETE"] * 3


def test_a_client_that_leaves_before_the_request_was_made(trace, finished):
    trace.leave()
    assert finished[0].requests == ()


def test_a_client_that_leaves_while_it_runs(trace, finished):
    request = make_request()
    trace.attach(request)
    trace.leave()
    assert finished == []
    request.reply.send(Response("m", 1))
    assert names(finished[0].requests[0].events)[-1] == "REQUEST_END"


def test_a_client_that_leaves_after_it_has_ended(trace, finished):
    request = make_request()
    trace.attach(request)
    request.reply.send(Response("m", 1))
    assert finished == []
    trace.leave()
    assert len(finished) == 1


def test_a_trace_is_finished_once(trace, finished):
    trace.finish()
    trace.finish()
    trace.leave()
    late = make_request()
    trace.attach(late)
    late.reply.send(Response("m", 1))
    assert len(finished) == 1


def test_tensors_are_kept_as_they_were(finished):
    trace = Trace(TraceLevel.TENSORS, finished.append)
    request = make_request()
    data = np.array([1, 2], np.int64)
    request.inputs["N"] = Tensor.from_array("N", data)
    trace.attach(request)
    data[0] = 9
    request.reply.send(Response("m", 1, outputs=[Tensor.from_array("OUT", np.zeros(1, np.uint8))]))
    trace.finish()
    (record,) = finished[0].requests
    kept = [(t.activity, t.name, t.datatype.name, t.shape, t.raw) for t in record.tensors]
    assert kept == [
        ("TENSOR_QUEUE_INPUT", "IN", "FP32", (2,), np.arange(2, dtype=np.float32).tobytes()),
        ("TENSOR_QUEUE_INPUT", "N", "INT64", (2,), np.array([1, 2], np.int64).tobytes()),
        ("TENSOR_BACKEND_OUTPUT", "OUT", "UINT8", (1,), b"\0"),
    ]
    assert (record.events, record.compute, finished[0].events) == ((), (), ())


def test_a_tensor_that_makes_no_sense_is_left_out(finished, caplog):
    trace = Trace(TraceLevel.TENSORS, finished.append)
    request = make_request()
    request.inputs["S"] = Tensor("S", BYTES, (1,), array=np.array([object()]))
    trace.attach(request)
    trace.finish()
    assert [tensor.name for tensor in finished[0].requests[0].tensors] == ["IN"]
    assert "tensor 'S' cannot be traced" in caplog.text


def test_where_a_request_is_in_the_trace(finished):
    caller = SpanContext("a" * 32, "b" * 16, state="v=1")
    trace = Trace(TraceLevel.TIMESTAMPS, finished.append, caller)
    first, second = make_request(), make_request()
    trace.attach(first)
    first.trace.attach(second)
    told = json.loads(second.trace.context())
    trace.finish()
    done = finished[0]
    spans = [record.span_id for record in done.requests]
    assert told == {"traceparent": f"00-{'a' * 32}-{spans[1]}-01", "tracestate": "v=1"}
    assert len({*spans, done.span_id}) == 3
    assert done.context is caller


def test_traces_without_spans_have_no_context(trace):
    request = make_request()
    trace.attach(request)
    assert request.trace.context() is None


def test_levels_by_name():
    assert TraceLevel.OFF.names() == ["OFF"]
    assert (TraceLevel.TIMESTAMPS | TraceLevel.TENSORS).names() == ["TIMESTAMPS", "TENSORS"]
