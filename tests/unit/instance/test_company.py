"""A batch waits for another look at the sockets where looks have brought something."""

from __future__ import annotations

from shoal.instance.company import ENOUGH, TRY_EVERY, Company


def batches(company, count, brings, waiting=4):
    """Run so many batches; how many of them came after a second look."""
    looks = 0
    for _ in range(count):
        if company.look_again(waiting):
            looks += 1
            assert not company.look_again(waiting + brings)  # once is enough
            company.came(waiting + brings)
        else:
            company.came(waiting)
    return looks


def test_nobody_waits_before_it_is_known_to_help():
    assert batches(Company(), TRY_EVERY - 1, brings=4) == 0


def test_now_and_then_it_is_tried():
    assert batches(Company(), 10 * TRY_EVERY, brings=0) == 10


def test_where_looks_bring_something_they_become_the_rule():
    company = Company()
    batches(company, 20 * TRY_EVERY, brings=2)
    assert batches(company, 100, brings=2) == 100


def test_where_they_stop_to_do_so_they_end():
    company = Company()
    batches(company, 20 * TRY_EVERY, brings=4)
    batches(company, 100, brings=0)
    assert batches(company, 10 * TRY_EVERY, brings=0) == 10


def test_too_little_is_not_enough():
    company = Company()
    waiting = 100
    brings = round(ENOUGH * waiting) - 5
    assert batches(company, 100 * TRY_EVERY, brings=brings, waiting=waiting) == 100


def test_an_empty_queue_is_not_waited_for():
    company = Company()
    batches(company, 20 * TRY_EVERY, brings=4)
    assert not company.look_again(0)
    assert company.look_again(1)
