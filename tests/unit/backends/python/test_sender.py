"""The rules of answering, as a table: what a model sends, what it is told, what the client gets."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import triton_python_backend_utils as pb_utils
from shoal.backends.python.api.request import InferenceRequest
from shoal.backends.python.api.sender import ResponseStream
from tests.support.fakes import WAIT_SECS, make_request

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
RESPONSE = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.int32))])
ONE, END, BOTH = (RESPONSE, 0), (None, FINAL), (RESPONSE, FINAL)


class Recorded(ResponseStream):
    def __init__(self, *, decoupled):
        super().__init__(decoupled=decoupled)
        self.passed = []

    def _pass_on(self, response, *, final, more=False):
        self.passed.append((response is not None, final))

    def cancelled(self):
        return False


def received(*, decoupled):
    answer = Recorded(decoupled=decoupled)
    core, _ = make_request()
    return InferenceRequest._received(core, frozenset({"OUT"}), answer), answer


@pytest.mark.parametrize(
    ("decoupled", "sent", "passed"),
    [
        (True, [END], [(False, True)]),
        (True, [BOTH], [(True, True)]),
        (True, [ONE, END], [(True, False), (False, True)]),
        (True, [ONE, ONE, BOTH], [(True, False), (True, False), (True, True)]),
        (False, [BOTH], [(True, True)]),
        (False, [ONE, END], [(True, True)]),  # the client need not wait for the flag
        (False, [ONE], [(True, True)]),
    ],
)
def test_what_the_client_gets(decoupled, sent, passed):
    request, answer = received(decoupled=decoupled)
    sender = request.get_response_sender()
    for response, flags in sent:
        sender.send(response, flags)
    assert answer.passed == passed
    assert answer.over


CLOSED = "Unable to send response. Response sender has been closed."
ONCE = "Unable to send response. Non-decoupled model cannot send more than one response."
FIRST = (
    "Unable to send response. Non-decoupled model cannot send complete final before sending a "
    "response."
)


@pytest.mark.parametrize(
    ("decoupled", "before", "wrong", "text"),
    [
        (True, [END], ONE, CLOSED),
        (True, [BOTH], END, CLOSED),
        (False, [], END, FIRST),
        (False, [ONE], ONE, ONCE),
        (False, [BOTH], ONE, ONCE),
        (False, [ONE, END], END, CLOSED),
        (True, [], (None, 0), "Inference Response object must be provided when the response"),
        (True, [], (RESPONSE, 2), "Unable to send response. Unsupported flag provided."),
    ],
)
def test_what_a_model_must_not_send(decoupled, before, wrong, text):
    request, _ = received(decoupled=decoupled)
    sender = request.get_response_sender()
    for response, flags in before:
        sender.send(response, flags)
    with pytest.raises(pb_utils.TritonModelException) as raised:
        sender.send(*wrong)
    assert str(raised.value).startswith(text)


def test_all_senders_of_a_request_are_one():
    request, _ = received(decoupled=True)
    request.get_response_sender().send(flags=FINAL)
    with pytest.raises(pb_utils.TritonModelException, match="has been closed"):
        request.get_response_sender().send(RESPONSE)


def test_a_request_that_is_let_go_is_answered_with_an_error():
    request, answer = received(decoupled=True)
    sender = request.get_response_sender()
    del request
    assert not answer.over  # the sender may still be used
    del sender
    assert answer.passed == [(True, True)]


def test_a_forgotten_end_is_said_for_the_model():
    request, answer = received(decoupled=True)
    request.get_response_sender().send(RESPONSE)
    del request
    assert answer.passed == [(True, False), (False, True)]


def test_the_server_ends_it_only_once():
    _request, answer = received(decoupled=True)
    assert answer.end(RESPONSE)
    assert not answer.end(RESPONSE)
    assert answer.passed == [(True, True)]


def test_a_request_may_be_garbage_collected_while_another_one_is_answered():
    abandoned, stream = received(decoupled=True)
    cycle = [abandoned]
    cycle.append(cycle)
    del abandoned, cycle

    class Collecting(Recorded):
        def _admit(self, response, final):
            gc.collect()  # where Python may do so by itself
            super()._admit(response, final)

    def answer():
        core, _ = make_request()
        other = Collecting(decoupled=False)
        request = InferenceRequest._received(core, frozenset({"OUT"}), other)
        request.get_response_sender().send(RESPONSE, FINAL)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    thread.join(WAIT_SECS)
    assert not thread.is_alive()
    assert stream.passed == [(True, True)]
