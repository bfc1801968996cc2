"""Memory that is lent and comes back by itself."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.buffers import ALIGNMENT, BufferPool

MIB = 1 << 20


def address(view):
    return np.frombuffer(view, np.uint8).ctypes.data


@given(size=st.integers(1, 300_000), aligned_at=st.integers(0, 300))
def test_the_byte_that_is_named_lies_on_a_boundary(size, aligned_at):
    pool = BufferPool()
    for _ in range(2):  # fresh, and used before
        view = pool.take(size, aligned_at)
        assert len(view) == size
        assert not view.readonly
        assert (address(view) + aligned_at) % ALIGNMENT == 0
        del view


@pytest.mark.parametrize(
    "wrap",
    [
        lambda view: np.frombuffer(view, np.uint8),
        lambda view: np.ndarray((10, 10_000), np.uint8, view),
        lambda view: np.ndarray((100_000,), np.uint8, view)[5:].reshape(5, -1).T,
        lambda view: np.asarray(view)[::2],
        lambda view: view[7:].cast("B"),
    ],
)
def test_an_array_of_the_memory_keeps_it(wrap):
    pool = BufferPool()
    wrapped = wrap(pool.take(100_000))
    assert (pool.lent, pool.kept_bytes) == (1, 0)
    del wrapped
    assert pool.lent == 0
    assert pool.kept_bytes >= 100_000


def test_memory_is_lent_again_once_nobody_has_it():
    pool = BufferPool()
    view = pool.take(100_000)
    first = address(view)
    assert pool.kept_bytes == 0
    del view
    assert pool.kept_bytes >= 100_000
    again = pool.take(100_000)
    assert address(again) == first
    assert pool.kept_bytes == 0


@pytest.mark.parametrize(
    "keep",
    [
        lambda view: view[10:20],
        lambda view: view[10:20].cast("H"),
        lambda view: np.frombuffer(view, np.uint8),
        lambda view: np.frombuffer(view, np.int32).reshape(2, -1)[1:].view(np.uint8),
        lambda view: np.frombuffer(view, np.uint8)[5:].data[3:],
        lambda view: [memoryview(view)],
    ],
)
def test_any_part_of_it_keeps_it_out(keep):
    pool = BufferPool()
    view = pool.take(100_000)
    first = address(view)
    part = keep(view)
    del view
    gc.collect()
    assert pool.kept_bytes == 0
    assert address(pool.take(100_000)) != first
    kept = pool.kept_bytes
    del part
    assert pool.kept_bytes > kept


def test_sizes_that_differ_a_little_share_memory():
    pool = BufferPool()
    first = address(pool.take(1_000_000))
    assert address(pool.take(1_001_000)) == first
    assert address(pool.take(500_000)) != first
    assert pool.kept_bytes < 2_000_000


def test_what_is_kept_is_bounded_and_the_longest_unused_goes_first():
    pool = BufferPool(most_kept_bytes=10 * MIB)
    old = [pool.take(MIB) for _ in range(8)]
    old.clear()
    assert pool.kept_bytes == 8 * MIB
    new = [pool.take(3 * MIB) for _ in range(3)]
    new.clear()
    assert pool.kept_bytes == 10 * MIB
    lent = [pool.take(3 * MIB) for _ in range(3)]  # all three were kept
    assert pool.kept_bytes == MIB
    lent.clear()
    pool.take(100 * MIB)  # more than is ever kept
    assert pool.kept_bytes == 10 * MIB


def test_threads_may_take_and_drop_as_they_like():
    pool = BufferPool(most_kept_bytes=4 * MIB)
    wrong = []
    together = threading.Barrier(4)

    def work(number):
        together.wait()
        for turn in range(300):
            view = pool.take(64 * 1024 + (turn % 3) * 50_000)
            mine = np.frombuffer(view, np.uint8)
            mine[:] = number
            if not (mine == number).all():
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert pool.kept_bytes <= 4 * MIB
    assert pool._lent == {}
    assert sum(size * len(free) for size, free in pool._free.items()) == pool.kept_bytes


def test_memory_that_comes_back_while_the_pool_is_busy_is_let_go():
    pool = BufferPool()
    view = pool.take(100_000)
    with pool._lock:  # as when the garbage collector runs inside `take`
        del view
    assert pool.kept_bytes == 0
    assert pool._lent == {}
