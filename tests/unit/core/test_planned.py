"""Requests of one template are requests like any other, and are told apart from those of another."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from shoal.core import dtypes
from shoal.core.planned import (
    PlannedRequest,
    PlannedResponses,
    RequestTemplate,
    ResponseLayout,
)
from shoal.core.request import Request
from shoal.core.tensor import Tensor

MESSAGE = b"..aaaa....bbbbbbbb"
PLACES = (slice(2, 6), slice(10, 18))


class Reply:
    def send(self, response):
        raise AssertionError("nobody answers here")


class Replies:
    reply_types = (Reply,)

    def send_all(self, answer, requests):
        raise AssertionError("nobody answers here")


def make_template(**parameters):
    inputs = (("A", dtypes.INT32, (1, 1)), ("B", dtypes.FP64, (1, 1)))
    return RequestTemplate("m", 3, inputs, ("OUT",), parameters, 2, 50, 1, ("key",), Replies())


def make_request(template, reply=None):
    return PlannedRequest(template, MESSAGE, PLACES, "id", reply or Reply(), "model", 7)


def test_it_has_everything_that_a_request_has():
    template = make_template(p=1)
    reply = Reply()
    made = make_request(template, reply)
    usual = Request(
        "m",
        {},
        reply,
        model_version=3,
        id="id",
        requested_outputs=("OUT",),
        parameters={"p": 1},
        priority=2,
        timeout_us=50,
    )
    usual.batch_key, usual.served_by, usual.start_ns = ("key",), "model", 7
    for name in set(Request.__slots__) - {"inputs"}:
        assert getattr(made, name) == getattr(usual, name), name
    assert made.parameters is not template.parameters


def test_inputs_are_made_when_they_are_asked_for():
    request = make_request(make_template())
    assert {name: bytes(tensor.raw) for name, tensor in request.inputs.items()} == {
        "A": b"aaaa",
        "B": b"bbbbbbbb",
    }
    assert request.inputs["B"].datatype is dtypes.FP64
    assert request.inputs is request.inputs


def test_the_answer_of_one_of_them():
    content = np.arange(6, dtype=np.int32).data.cast("B")
    form = ResponseLayout("m", 4, (("OUT", dtypes.INT32, (1, 2)),), (8,))
    answer = PlannedResponses(form, [content])
    response = answer.response(1, "x")
    assert (response.model_name, response.model_version, response.request_id) == ("m", 4, "x")
    assert response.final
    assert response.outputs[0].array.tolist() == [[2, 3]]


# ---- templates from accepted requests


class Model:
    """Stands for a loaded version."""


def tensor(name, datatype, shape):
    size = int(np.prod(shape)) * datatype.itemsize
    return Tensor(name, datatype, shape, raw=bytes(size))


TWO = {"b": tensor("b", dtypes.FP64, (3, 1)), "a": tensor("a", dtypes.INT32, (3, 2))}


def accepted(inputs, **options):
    request = Request("m", inputs, None, **options)
    request.served_by = Model()
    request.rows = 3
    request.batch_key = ("key",)
    return request


def test_a_template_repeats_the_request():
    options = {"parameters": {"x": 1}, "model_version": 4, "priority": 2, "timeout_us": 9}
    request = accepted(TWO, requested_outputs=("y",), **options)
    template = RequestTemplate.of(request, TWO, Replies())
    assert template.live_model() is request.served_by
    made = make_request(template)
    for name in ("rows", "batch_key", "requested_outputs", "model_name", *options):
        assert getattr(made, name) == getattr(request, name), name
    assert template.inputs == (("b", dtypes.FP64, (3, 1)), ("a", dtypes.INT32, (3, 2)))
    assert template.sizes == (24, 24)


def test_a_full_request_again_has_its_inputs_as_they_came():
    request = accepted({"a": tensor("a", dtypes.UINT8, (2, 2)).with_shape((4,))})
    template = RequestTemplate.of(request, {"a": tensor("a", dtypes.UINT8, (2, 2))}, Replies())
    made = PlannedRequest(template, b"abcd", (slice(0, 4),), "", Reply(), "model", 7)
    assert made.inputs["a"].shape == (4,)
    made.leave_template()
    assert (made.inputs["a"].shape, bytes(made.inputs["a"].raw)) == ((2, 2), b"abcd")
    assert made.template is None


def test_a_template_does_not_keep_its_model():
    request = accepted(TWO)
    template = RequestTemplate.of(request, TWO, Replies())
    del request
    gc.collect()
    assert template.live_model() is None


def test_an_expired_template_has_no_model():
    request = accepted(TWO)
    template = RequestTemplate.of(request, TWO, Replies())
    template.expired = True
    assert template.live_model() is None


@pytest.mark.parametrize(
    "request_",
    [
        accepted(TWO, correlation_id=7),
        accepted(TWO, flags=Request.SEQUENCE_END),
        accepted({"a": Tensor("a", dtypes.BYTES, (1,), raw=b"\x01\0\0\0x")}),
        Request("m", TWO, None),  # which no model has accepted
    ],
)
def test_some_requests_make_no_template(request_):
    assert RequestTemplate.of(request_, request_.inputs, Replies()) is None
