"""What fails is left alone for a while, and one question at a time finds out whether it still does."""

from __future__ import annotations

from shoal.cache.store import FIRST_PAUSE_NS, LONGEST_PAUSE_NS, WARN_EVERY_NS, Backoff


def test_all_is_well_at_first():
    backoff = Backoff()
    assert not backoff.active
    assert backoff.allows(0)
    assert not backoff.pauses(0)
    assert not backoff.succeeded()  # nothing was over


def test_after_a_failure_it_is_left_alone():
    backoff = Backoff()
    backoff.failed(0)
    assert backoff.active
    assert backoff.pauses(FIRST_PAUSE_NS - 1)
    assert not backoff.allows(FIRST_PAUSE_NS - 1)
    assert not backoff.pauses(FIRST_PAUSE_NS)


def test_then_one_question_is_let_through_and_the_others_wait():
    backoff = Backoff()
    backoff.failed(0)
    assert backoff.allows(FIRST_PAUSE_NS)
    assert not backoff.allows(FIRST_PAUSE_NS)
    assert backoff.pauses(FIRST_PAUSE_NS)


def test_the_pauses_grow_up_to_a_bound():
    backoff = Backoff()
    backoff.failed(0)
    now_ns = FIRST_PAUSE_NS
    pauses = []
    for _ in range(8):
        assert backoff.allows(now_ns)
        backoff.failed(now_ns + 1)
        pause = next(
            step for step in (2, 4, 8, 16, 30) if backoff.pauses(now_ns + step * FIRST_PAUSE_NS - 1)
        )
        while backoff.pauses(now_ns + pause * FIRST_PAUSE_NS):
            pause += 1
        pauses.append(pause)
        now_ns += pause * FIRST_PAUSE_NS
    assert pauses[:4] == [2, 4, 8, 16]
    assert pauses[4:] == [LONGEST_PAUSE_NS // FIRST_PAUSE_NS] * 4


def test_those_that_were_under_way_do_not_make_the_pause_longer():
    backoff = Backoff()
    for late in range(5):
        backoff.failed(late)
    assert backoff.allows(FIRST_PAUSE_NS)


def test_an_answer_ends_it():
    backoff = Backoff()
    backoff.failed(0)
    assert backoff.allows(FIRST_PAUSE_NS)
    assert backoff.succeeded()
    assert not backoff.active
    assert backoff.allows(FIRST_PAUSE_NS)
    backoff.failed(FIRST_PAUSE_NS)
    assert not backoff.pauses(2 * FIRST_PAUSE_NS)  # the next one begins small again


def test_it_is_said_once_in_a_while():
    backoff = Backoff()
    assert backoff.failed(0)
    assert not backoff.failed(1)
    backoff.succeeded()
    assert not backoff.failed(2)  # also when it comes and goes
    assert backoff.failed(WARN_EVERY_NS)
