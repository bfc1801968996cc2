"""Requests of one template are requests like any other, and are told apart from those of another."""

from __future__ import annotations

import numpy as np

from shoal.core import dtypes
from shoal.core.planned import (
    PlannedRequest,
    PlannedResponses,
    RequestTemplate,
    ResponseLayout,
)
from shoal.core.request import Request

MESSAGE = b"..aaaa....bbbbbbbb"
PLACES = (slice(2, 6), slice(10, 18))


class Reply:
    def send(self, response):
        raise AssertionError("nobody answers here")


class Replies:
    reply_type = Reply

    def send_all(self, answer, requests):
        raise AssertionError("nobody answers here")


def make_plan(**parameters):
    inputs = (("A", dtypes.INT32, (1, 1)), ("B", dtypes.FP64, (1, 1)))
    return RequestTemplate("m", 3, inputs, ("OUT",), parameters, 2, 50, 1, ("key",), Replies())


def make_request(template, reply=None):
    return PlannedRequest(template, MESSAGE, PLACES, "id", reply or Reply(), "model", 7)


def test_it_has_everything_that_a_request_has():
    template = make_plan(p=1)
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
    request = make_request(make_plan())
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
