"""Retries, by hand: what the operations yield, without any connection."""

from __future__ import annotations

import pytest

from shoal.client.codec import CallOptions, PreparedCall, RawRequest, RawResponse
from shoal.client.errors import ServerError, Timeout, Unavailable, server_error
from shoal.client.steps import ClientSession, Pause, RoundTrip, send_with_retries

OK = RawResponse(200, {}, b"fine")


def call(repeatable=True):
    def read(answer):
        if answer.status != 200:
            status = "UNAVAILABLE" if answer.status == 503 else "INTERNAL"
            error = server_error("no", status, answer.status)
            error.retry_after_secs = answer.headers.get("after")
            raise error
        return answer.body

    return PreparedCall(RawRequest([b"ask"], 3), read, repeatable)


def play(steps, *answers):
    """Answer the exchanges in turn; the steps that were yielded, and the result."""
    return play_with(steps, iter(answers))


def play_with(steps, waiting):
    seen = []
    try:
        step = next(steps)
        while True:
            seen.append(step)
            step = steps.send(next(waiting)) if isinstance(step, RoundTrip) else next(steps)
    except StopIteration as done:
        return seen, done.value


def test_no_retry_where_none_is_needed():
    seen, result = play(send_with_retries(ClientSession(None, None, 3), call(), CallOptions()), OK)
    assert result == b"fine"
    assert len(seen) == 1


def test_pauses_grow():
    busy = RawResponse(503, {}, b"")
    seen, result = play(
        send_with_retries(ClientSession(None, None, 3), call(), CallOptions()), busy, busy, busy, OK
    )
    assert result == b"fine"
    pauses = [step.secs for step in seen if isinstance(step, Pause)]
    assert len(pauses) == 3
    assert pauses[0] <= 0.05
    assert pauses[2] > pauses[0]


def test_the_server_says_how_long():
    busy = RawResponse(503, {"after": 0.25}, b"")
    seen, _ = play(send_with_retries(ClientSession(None, None, 1), call(), CallOptions()), busy, OK)
    (pause,) = [step for step in seen if isinstance(step, Pause)]
    assert 0.25 <= pause.secs <= 0.3125


@pytest.mark.parametrize(("retries", "asked"), [(0, 1), (2, 3)])
def test_patience_ends(retries, asked):
    answers = iter([RawResponse(503, {}, b"")] * 9)
    with pytest.raises(Unavailable):
        play_with(
            send_with_retries(ClientSession(None, None, retries), call(), CallOptions()), answers
        )
    assert len(list(answers)) == 9 - asked


def test_there_is_no_time_for_another_try():
    steps = send_with_retries(ClientSession(None, None, 3), call(), CallOptions(None, 0.0001))
    next(steps)
    with pytest.raises(Unavailable):
        steps.send(RawResponse(503, {}, b""))


@pytest.mark.parametrize("error", [ServerError("no"), Timeout("late")])
def test_other_errors_are_not_tried_again(error):
    steps = send_with_retries(ClientSession(None, None, 3), call(), CallOptions())
    next(steps)
    with pytest.raises(type(error)):
        steps.throw(error)


def test_what_was_learnt_is_forgotten_when_a_model_changes():
    session = ClientSession(None, None, 0)
    session.specs = {("a", ""): {}, ("b", ""): {}}
    session.labels = {("a", "1", "x"): (), ("b", "1", "x"): ()}
    session.evict("a")
    assert list(session.specs) == [("b", "")]
    assert list(session.labels) == [("b", "1", "x")]
