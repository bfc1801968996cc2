"""The local cache keeps to its size, and forgets what was not used for longest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cache.entry import CachedResponse
from shoal.cache.local import LocalCache, local_cache
from shoal.core import dtypes
from shoal.core.response import Response
from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument


def entry(size=0):
    raw = bytes(size)
    return CachedResponse.of(Response("m", 1, "", [Tensor("Y", dtypes.UINT8, (size,), raw=raw)]))


def key(number):
    return number.to_bytes(32, "little")


def cost(size=0):
    """What one entry takes of a cache."""
    cache = LocalCache(1 << 20)
    cache.insert(key(0), entry(size))
    return cache.usage().used_bytes


def test_what_was_put_in_is_found():
    cache = LocalCache(10_000)
    kept = entry(5)
    assert cache.lookup(key(1)) is None
    assert cache.insert(key(1), kept)
    assert cache.lookup(key(1)) is kept
    assert cache.lookup(key(2)) is None


def test_the_least_recently_used_goes_first():
    cache = LocalCache(3 * cost())
    for number in (1, 2, 3):
        cache.insert(key(number), entry())
    assert cache.lookup(key(1)) is not None  # now 2 is the oldest
    cache.insert(key(4), entry())
    assert [cache.lookup(key(n)) is not None for n in (1, 2, 3, 4)] == [True, False, True, True]
    assert cache.usage().evictions == 1


def test_a_large_one_makes_room_for_itself():
    cache = LocalCache(3 * cost() + 1000)
    for number in (1, 2, 3):
        cache.insert(key(number), entry())
    assert cache.insert(key(4), entry(1000 + cost()))
    assert cache.usage().entries == 2
    assert cache.usage().evictions == 2


def test_one_that_can_never_fit_is_not_kept_and_costs_nobody_a_place():
    cache = LocalCache(2 * cost())
    cache.insert(key(1), entry())
    before = cache.usage()
    assert cache.insert(key(2), entry(2 * cost())) is False
    assert cache.lookup(key(2)) is None
    assert cache.usage() == before
    assert LocalCache(1).insert(key(1), entry()) is False


def test_it_may_be_filled_to_the_last_byte():
    cache = LocalCache(cost(100))
    assert cache.insert(key(1), entry(100))
    assert cache.usage().used_bytes == cache.usage().size_bytes


def test_the_same_key_again_takes_the_place():
    cache = LocalCache(10_000)
    cache.insert(key(1), entry(1000))
    cache.insert(key(1), entry(10))
    assert cache.usage().entries == 1
    assert cache.usage().used_bytes == cost(10)
    assert cache.usage().evictions == 0


def test_closing_forgets_everything():
    cache = LocalCache(10_000)
    cache.insert(key(1), entry())
    cache.close()
    assert (cache.usage().entries, cache.usage().used_bytes) == (0, 0)


@given(
    st.integers(0, 5000),
    st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 1500)), max_size=60),
)
def test_whatever_happens_it_keeps_to_its_size(size_bytes, steps):
    cache = LocalCache(size_bytes)
    sizes = {}
    for insert, number, size in steps:
        if insert:
            if cache.insert(key(number), entry(size)):
                sizes[number] = size
                assert cache.lookup(key(number)) is not None
        elif (found := cache.lookup(key(number))) is not None:
            assert len(found.outputs[0].raw) == sizes[number]
        usage = cache.usage()
        there = [n for n in range(10) if key(n) in cache._entries]
        assert usage.used_bytes == sum(cost(sizes[n]) for n in there) <= size_bytes
        assert usage.entries == len(there)


def test_many_threads_at_once_leave_it_in_order():
    cache = LocalCache(20 * cost(100))

    def use(start):
        for number in range(start, start + 400):
            cache.insert(key(number % 50), entry(number % 100))
            cache.lookup(key((number * 7) % 50))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(0, 40, 10)))
    usage = cache.usage()
    assert usage.used_bytes == sum(
        e.nbytes + cost() - entry().nbytes for e in cache._entries.values()
    )
    assert usage.used_bytes <= usage.size_bytes


@pytest.mark.parametrize(
    ("settings", "size_bytes"), [({"size": "4096"}, 4096), ({"size": "2M"}, 2 << 20)]
)
def test_its_size_comes_from_the_command_line(settings, size_bytes):
    assert local_cache(settings).usage().size_bytes == size_bytes


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "--cache-config=local,size=…: 'size' is missing; write bytes, such as 1048576 or 64M"),
        ({"size": "0"}, "'size' is '0'; write bytes, such as 1048576 or 64M"),
        ({"size": "-1"}, "'size' is '-1'; write bytes"),
        ({"size": "much"}, "'size' is 'much'; write bytes"),
        (
            {"size": "1", "sice": "2"},
            "the cache 'local' has no setting 'sice'; its settings are size",
        ),
    ],
)
def test_wrong_settings(settings, sentence):
    with pytest.raises(InvalidArgument) as failure:
        local_cache(settings)
    assert sentence in failure.value.message
