"""The short way: requests that differ in id and data alone are validated once."""

from __future__ import annotations

import gc
import weakref

import pytest

from shoal.errors import QueueRejected
from shoal.frontends.grpc.service import GrpcOptions, GrpcService
from shoal.frontends.grpc.status import StatusCode
from shoal.wire.proto import messages
from tests.support.grpc_calls import DirectInbox, start
from tests.support.scripted_engine import ScriptedEngine, ScriptedModel


@pytest.fixture
def engine():
    made = ScriptedEngine()
    made.model = ScriptedModel()
    return made


@pytest.fixture
def service(engine):
    return GrpcService(engine, DirectInbox())


def make_request(name="m", raw=b"\0\0\0\0", datatype="FP32", **fields):
    request = messages.ModelInferRequest(model_name=name, **fields)
    request.inputs.add(name="IN", datatype=datatype, shape=[1, len(raw) // 4])
    request.raw_input_contents.append(raw)
    return request


def infer(service, request, method="ModelInfer"):
    return start(service, method).message(request)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_the_second_request_takes_the_short_way(service, engine, method):
    engine.validated = (5, ("key",))
    infer(service, make_request(id="1", raw=b"abcd"), method)
    assert engine.planned == []
    engine.validated = (0, "not asked again")
    call = infer(service, make_request(id="2", raw=b"efgh"), method)
    (planned,) = engine.planned
    assert (planned.id, planned.rows, planned.batch_key) == ("2", 5, ("key",))
    assert bytes(planned.inputs["IN"].raw) == b"efgh"
    engine.answer(1)
    assert len(call.sent) == 1


def test_anything_else_that_differs_goes_the_long_way(service, engine):
    infer(service, make_request())
    infer(service, make_request(model_version="1"))
    infer(service, make_request(datatype="INT32"))
    infer(service, make_request(raw=bytes(8)))
    other = make_request()
    other.parameters["p"].bool_param = True
    infer(service, other)
    assert len(engine.requests) == 5
    assert engine.planned == []


def test_data_of_another_size_is_validated(service, engine):
    infer(service, make_request())
    other = make_request()
    other.raw_input_contents[0] = b"too long"
    infer(service, other)
    assert len(engine.requests) == 2
    assert engine.planned == []


def test_a_model_that_was_replaced_is_asked_anew(service, engine):
    infer(service, make_request())
    engine.model = ScriptedModel()
    infer(service, make_request())
    assert engine.planned == []
    infer(service, make_request())
    assert engine.planned == [engine.requests[2]]


def test_plans_do_not_keep_a_model_that_is_gone(service, engine):
    infer(service, make_request())
    gone = weakref.ref(engine.model)
    engine.requests.clear()
    engine.model = None
    gc.collect()
    assert gone() is None
    infer(service, make_request())
    assert len(engine.requests) == 1


def test_strings_are_checked_every_time(service, engine):
    for _ in range(3):
        infer(service, make_request(raw=b"\0\0\0\0", datatype="BYTES"))
    assert engine.planned == []


def test_typed_contents_are_read_every_time(service, engine):
    request = messages.ModelInferRequest(model_name="m")
    request.inputs.add(name="IN", datatype="FP32", shape=[1]).contents.fp32_contents.append(1)
    for _ in range(3):
        infer(service, request)
    assert len(engine.requests) == 3
    assert engine.planned == []


def test_inputs_that_were_reshaped_are_validated_every_time(service, engine):
    take = engine._take

    def reshape(request):
        request.inputs = {name: t.with_shape((1,)) for name, t in request.inputs.items()}
        take(request)

    engine._take = reshape
    for _ in range(3):
        infer(service, make_request())
    assert engine.planned == []


def test_refusals_on_the_short_way(service, engine):
    infer(service, make_request())
    engine.refusal = QueueRejected("Exceeds maximum queue size")
    call = infer(service, make_request())
    assert (call.status, call.text) == (StatusCode.UNAVAILABLE, "Exceeds maximum queue size")


def test_plans_can_be_switched_off(engine):
    service = GrpcService(engine, DirectInbox(), GrpcOptions(plans=False))
    for _ in range(3):
        infer(service, make_request())
    assert len(engine.requests) == 3
    assert engine.planned == []
