"""What fails is left alone for a while, and one question at a time finds out whether it still does."""

from __future__ import annotations

from shoal.cache.outage import FIRST_PAUSE_NS, LONGEST_PAUSE_NS, WORD_EVERY_NS, Outage


def test_all_is_well_at_first():
    outage = Outage()
    assert not outage.active
    assert outage.allows(0)
    assert not outage.pauses(0)
    assert not outage.succeeded()  # nothing was over


def test_after_a_failure_it_is_left_alone():
    outage = Outage()
    outage.failed(0)
    assert outage.active
    assert outage.pauses(FIRST_PAUSE_NS - 1)
    assert not outage.allows(FIRST_PAUSE_NS - 1)
    assert not outage.pauses(FIRST_PAUSE_NS)


def test_then_one_question_is_let_through_and_the_others_wait():
    outage = Outage()
    outage.failed(0)
    assert outage.allows(FIRST_PAUSE_NS)
    assert not outage.allows(FIRST_PAUSE_NS)
    assert outage.pauses(FIRST_PAUSE_NS)


def test_the_pauses_grow_up_to_a_bound():
    outage = Outage()
    outage.failed(0)
    now_ns = FIRST_PAUSE_NS
    pauses = []
    for _ in range(8):
        assert outage.allows(now_ns)
        outage.failed(now_ns + 1)
        pause = next(
            step for step in (2, 4, 8, 16, 30) if outage.pauses(now_ns + step * FIRST_PAUSE_NS - 1)
        )
        while outage.pauses(now_ns + pause * FIRST_PAUSE_NS):
            pause += 1
        pauses.append(pause)
        now_ns += pause * FIRST_PAUSE_NS
    assert pauses[:4] == [2, 4, 8, 16]
    assert pauses[4:] == [LONGEST_PAUSE_NS // FIRST_PAUSE_NS] * 4


def test_those_that_were_under_way_do_not_make_the_pause_longer():
    outage = Outage()
    for late in range(5):
        outage.failed(late)
    assert outage.allows(FIRST_PAUSE_NS)


def test_an_answer_ends_it():
    outage = Outage()
    outage.failed(0)
    assert outage.allows(FIRST_PAUSE_NS)
    assert outage.succeeded()
    assert not outage.active
    assert outage.allows(FIRST_PAUSE_NS)
    outage.failed(FIRST_PAUSE_NS)
    assert not outage.pauses(2 * FIRST_PAUSE_NS)  # the next one begins small again


def test_it_is_said_once_in_a_while():
    outage = Outage()
    assert outage.failed(0)
    assert not outage.failed(1)
    outage.succeeded()
    assert not outage.failed(2)  # also when it comes and goes
    assert outage.failed(WORD_EVERY_NS)
