"""Retries, by hand: what the operations yield, without any connection."""

from __future__ import annotations

import pytest

from shoal.client.codec import Answer, Call, Request, Terms
from shoal.client.errors import ServerError, Timeout, Unavailable, server_error
from shoal.client.steps import Exchange, Pause, Session, patiently

OK = Answer(200, {}, b"fine")


def call(repeatable=True):
    def read(answer):
        if answer.status != 200:
            status = "UNAVAILABLE" if answer.status == 503 else "INTERNAL"
            error = server_error("no", status, answer.status)
            error.retry_after_secs = answer.headers.get("after")
            raise error
        return answer.body

    return Call(Request([b"ask"], 3), read, repeatable)


def play(steps, *answers):
    """Answer the exchanges in turn; the steps that were yielded, and the result."""
    return play_with(steps, iter(answers))


def play_with(steps, waiting):
    seen = []
    try:
        step = next(steps)
        while True:
            seen.append(step)
            step = steps.send(next(waiting)) if isinstance(step, Exchange) else next(steps)
    except StopIteration as done:
        return seen, done.value


def test_no_retry_where_none_is_needed():
    seen, result = play(patiently(Session(None, None, 3), call(), Terms()), OK)
    assert result == b"fine"
    assert len(seen) == 1


def test_pauses_grow():
    busy = Answer(503, {}, b"")
    seen, result = play(patiently(Session(None, None, 3), call(), Terms()), busy, busy, busy, OK)
    assert result == b"fine"
    pauses = [step.secs for step in seen if isinstance(step, Pause)]
    assert len(pauses) == 3
    assert pauses[0] <= 0.05
    assert pauses[2] > pauses[0]


def test_the_server_says_how_long():
    busy = Answer(503, {"after": 0.25}, b"")
    seen, _ = play(patiently(Session(None, None, 1), call(), Terms()), busy, OK)
    assert Pause(0.25) in seen


@pytest.mark.parametrize(("retries", "asked"), [(0, 1), (2, 3)])
def test_patience_ends(retries, asked):
    answers = iter([Answer(503, {}, b"")] * 9)
    with pytest.raises(Unavailable):
        play_with(patiently(Session(None, None, retries), call(), Terms()), answers)
    assert len(list(answers)) == 9 - asked


def test_there_is_no_time_for_another_try():
    steps = patiently(Session(None, None, 3), call(), Terms(None, 0.0001))
    next(steps)
    with pytest.raises(Unavailable):
        steps.send(Answer(503, {}, b""))


@pytest.mark.parametrize("error", [ServerError("no"), Timeout("late")])
def test_other_errors_are_not_tried_again(error):
    steps = patiently(Session(None, None, 3), call(), Terms())
    next(steps)
    with pytest.raises(type(error)):
        steps.throw(error)


def test_what_was_learnt_is_forgotten_when_a_model_changes():
    session = Session(None, None, 0)
    session.specs = {("a", ""): {}, ("b", ""): {}}
    session.labels = {("a", "1", "x"): (), ("b", "1", "x"): ()}
    session.forget("a")
    assert list(session.specs) == [("b", "")]
    assert list(session.labels) == [("b", "1", "x")]
