"""Connections that are lent and given back."""

from __future__ import annotations

import threading

import pytest

from shoal.client import ClientError, ConnectionFailed, Timeout
from shoal.client.pool import Pool
from tests.support.fakes import WAIT_SECS


class Connection:
    closed = False

    def close(self):
        self.closed = True


def test_the_last_one_given_back_is_lent_first():
    pool = Pool(Connection, 3)
    one, two = pool.take(None)[0], pool.take(None)[0]
    pool.give_back(one)
    pool.give_back(two)
    assert pool.take(None) == (two, True)
    assert pool.take(None) == (one, True)
    assert pool.take(None)[1] is False


def test_who_waits_gets_the_next():
    pool = Pool(Connection, 1)
    held, _ = pool.take(None)
    got = []
    thread = threading.Thread(target=lambda: got.append(pool.take(WAIT_SECS)))
    thread.start()
    pool.give_back(held)
    thread.join()
    assert got == [(held, True)]


def test_a_dropped_one_makes_room():
    pool = Pool(Connection, 1)
    held, _ = pool.take(None)
    pool.drop(held)
    assert held.closed
    assert pool.take(0.001)[0] is not held


def test_nobody_waits_for_ever():
    pool = Pool(Connection, 1)
    pool.take(None)
    with pytest.raises(Timeout, match="all 1 connections"):
        pool.take(0.001)


def test_a_connection_that_failed_takes_no_room():
    def fail():
        raise ConnectionFailed("no")

    pool = Pool(fail, 1)
    for _ in range(3):
        with pytest.raises(ConnectionFailed):
            pool.take(0.001)


def test_closing():
    pool = Pool(Connection, 2)
    idle, busy = pool.take(None)[0], pool.take(None)[0]
    pool.give_back(idle)
    pool.close()
    assert idle.closed
    assert not busy.closed
    pool.give_back(busy)
    assert busy.closed
    with pytest.raises(ClientError, match="closed"):
        pool.take(None)


def test_many_threads():
    pool = Pool(Connection, 3)
    busy = []
    most = []

    def work():
        for _ in range(200):
            connection, _ = pool.take(WAIT_SECS)
            busy.append(connection)
            most.append(len(busy))
            busy.remove(connection)
            pool.give_back(connection)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) <= 3
