"""A batch waits for another look at the sockets where looks have brought something."""

from __future__ import annotations

from shoal.frontends.repoll import ENOUGH_GAIN, TRY_EVERY, SocketRepoll


def batches(repoll, count, brings, waiting=4):
    """Run so many batches; how many of them came after a second look."""
    looks = 0
    for _ in range(count):
        if repoll.is_worthwhile(waiting):
            looks += 1
            assert not repoll.is_worthwhile(waiting + brings)  # once is enough
            repoll.observe(waiting + brings)
        else:
            repoll.observe(waiting)
    return looks


def test_nobody_waits_before_it_is_known_to_help():
    assert batches(SocketRepoll(), TRY_EVERY - 1, brings=4) == 0


def test_now_and_then_it_is_tried():
    assert batches(SocketRepoll(), 10 * TRY_EVERY, brings=0) == 10


def test_where_looks_bring_something_they_become_the_rule():
    repoll = SocketRepoll()
    batches(repoll, 20 * TRY_EVERY, brings=2)
    assert batches(repoll, 100, brings=2) == 100


def test_where_they_stop_to_do_so_they_end():
    repoll = SocketRepoll()
    batches(repoll, 20 * TRY_EVERY, brings=4)
    batches(repoll, 100, brings=0)
    assert batches(repoll, 10 * TRY_EVERY, brings=0) == 10


def test_too_little_is_not_enough():
    repoll = SocketRepoll()
    waiting = 100
    brings = round(ENOUGH_GAIN * waiting) - 5
    assert batches(repoll, 100 * TRY_EVERY, brings=brings, waiting=waiting) == 100


def test_an_empty_queue_is_not_waited_for():
    repoll = SocketRepoll()
    batches(repoll, 20 * TRY_EVERY, brings=4)
    assert not repoll.is_worthwhile(0)
    assert repoll.is_worthwhile(1)
