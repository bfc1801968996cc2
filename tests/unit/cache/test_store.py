"""The store counts, keeps a cache's faults to itself and never lets it become a bottleneck."""

from __future__ import annotations

import logging
import threading

import pytest

from shoal.cache.base import CacheUsage, ResponseCache
from shoal.cache.entry import CachedResponse
from shoal.cache.local import LocalCache
from shoal.cache.store import FIRST_PAUSE_NS, CacheStore
from shoal.config.model import ModelConfig
from shoal.core import dtypes
from shoal.core.response import Response
from shoal.core.tensor import Tensor
from tests.support.fakes import WAIT_SECS, FakeClock

KEY = bytes(32)


def entry(size=1):
    tensor = Tensor("Y", dtypes.UINT8, (size,), raw=bytes(size))
    return CachedResponse.of(Response("m", 1, "", [tensor]))


class Broken(ResponseCache):
    """Raises as long as it is told to, and counts the questions."""

    def __init__(self):
        self.broken = True
        self.asked = 0
        self.closed = False

    def lookup(self, key):
        self._look_up()

    def insert(self, key, entry):
        self._look_up()
        return True

    def check(self):
        self._look_up()

    def close(self):
        self.closed = True
        if self.broken:
            raise OSError("still broken")

    def _look_up(self):
        self.asked += 1
        if self.broken:
            raise ConnectionError("nobody there")


@pytest.fixture
def make():
    made = []

    def store(cache, **options):
        made.append(CacheStore("c", cache, **options))
        return made[-1]

    yield store
    for one in made:
        one.close()


def test_it_counts(make):
    store = make(LocalCache(2000))
    assert store.lookup(KEY) is None
    store.insert(KEY, entry())
    assert store.lookup(KEY) == entry()
    store.insert(KEY, entry(5000))
    reading = store.read()
    assert (reading.lookups, reading.hits, reading.misses) == (2, 1, 1)
    assert (reading.insertions, reading.too_large, reading.failures) == (1, 1, 0)
    assert reading.lookup_ns > 0
    assert reading.insertion_ns > 0
    assert (reading.entries, reading.evictions) == (1, 0)
    assert 0 < reading.utilization < 1


def test_a_cache_that_does_not_know_how_full_it_is_says_nothing(make):
    reading = make(Broken()).read()
    assert (reading.entries, reading.evictions, reading.utilization) == (None, None, None)


def test_a_fault_is_a_miss_and_said_once(make, caplog):
    cache, clock = Broken(), FakeClock()
    store = make(cache, clock=clock)
    assert store.is_available()
    assert store.lookup(KEY) is None
    assert "the response cache 'c' cannot be read (ConnectionError: nobody there)" in caplog.text
    assert not store.is_available()  # and is left alone
    assert store.lookup(KEY) is None
    store.insert(KEY, entry())
    assert cache.asked == 1
    clock.advance(FIRST_PAUSE_NS)
    assert store.is_available()
    assert store.lookup(KEY) is None  # this one finds out,
    assert store.lookup(KEY) is None  # this one does not wait for it
    assert cache.asked == 2
    assert len(caplog.records) == 1
    reading = store.read()
    assert (reading.lookups, reading.failures, reading.skipped) == (2, 2, 4)


def test_it_is_used_again_when_it_answers_again(make, caplog):
    caplog.set_level(logging.INFO)
    cache, clock = Broken(), FakeClock()
    store = make(cache, clock=clock)
    store.lookup(KEY)
    cache.broken = False
    clock.advance(FIRST_PAUSE_NS)
    store.lookup(KEY)
    assert "the response cache 'c' is available again" in caplog.text
    store.insert(KEY, entry())
    assert cache.asked == 3


def test_the_start_up_check_says_how_it_is(make, caplog):
    caplog.set_level(logging.INFO)
    cache = Broken()
    store = make(cache)
    store.check()
    assert (
        "the response cache 'c' cannot be used now (ConnectionError: nobody there)" in caplog.text
    )
    cache.broken = False
    store.check()
    assert "responses are stored in the response cache 'c'" in caplog.text


def test_only_so_many_wait_for_it(make):
    gate, began = threading.Event(), threading.Semaphore(0)
    cache = LocalCache(1000)
    cache.threads = 1
    store = make(cache, most_waiting=2)

    def work():
        began.release()
        assert gate.wait(WAIT_SECS)

    assert store.submit(work)
    assert began.acquire(timeout=WAIT_SECS)  # it runs, so it does not wait any more
    assert store.submit(work)
    assert store.submit(work)
    assert not store.submit(work)
    assert store.read().skipped == 1
    gate.set()
    assert began.acquire(timeout=WAIT_SECS)
    assert began.acquire(timeout=WAIT_SECS)
    wait_for_room = threading.Event()
    assert store.submit(wait_for_room.set)
    assert wait_for_room.wait(WAIT_SECS)


def test_after_the_end_nothing_is_begun(caplog):
    cache = Broken()
    store = CacheStore("c", cache)
    store.close()
    assert cache.closed
    assert "the response cache 'c' did not close: still broken" in caplog.text
    assert not store.submit(lambda: None)


def test_a_model_is_told_apart_by_its_load_or_by_its_files(make, tmp_path):
    (tmp_path / "1").mkdir()
    config = ModelConfig(name="m")
    own = make(LocalCache(1000))
    alone = {own.identity(1, config, tmp_path, tmp_path / "1") for _ in range(3)}
    assert len(alone) == 3
    cache = LocalCache(1000)
    cache.shared = True
    shared = make(cache)
    together = {shared.identity(1, config, tmp_path, tmp_path / "1") for _ in range(3)}
    assert len(together) == 1


def test_the_contract_has_defaults():
    class Least(ResponseCache):
        def lookup(self, key):
            return None

        def insert(self, key, entry):
            return True

    cache = Least()
    assert (cache.shared, cache.waits, cache.usage()) == (False, False, None)
    cache.check()
    cache.close()
    assert CacheUsage(1, 2, 3, 4).entries == 1
