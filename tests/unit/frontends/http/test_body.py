import tracemalloc

import numpy as np
import pytest

from shoal.frontends.http.body import ALIGNMENT, SMALL_BYTES, BodyBuffer
from shoal.frontends.http.message import HttpFault


def address(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data


@pytest.mark.parametrize("aligned_at", [0, 1, 63, 64, 187, 10**12])
def test_the_wanted_byte_is_aligned(aligned_at):
    body = BodyBuffer(aligned_at, SMALL_BYTES + 1000)
    body.append(bytes(SMALL_BYTES + 1000))
    view = body.take()
    assert isinstance(view, memoryview)
    assert (address(view) + aligned_at) % ALIGNMENT == 0


def test_a_body_that_says_its_length_is_never_moved():
    body = BodyBuffer(0, 5 << 20)
    first = address(body.room())
    while not body.complete:
        room = body.room()
        room[:70_000] = bytes(min(len(room), 70_000))
        body.advance(min(len(room), 70_000))
    view = body.take()
    assert isinstance(view, memoryview)
    assert address(view) == first


def test_a_body_of_unknown_length_grows_aligned_and_keeps_its_bytes():
    body = BodyBuffer(3, None)
    pieces = [bytes([number % 256]) * (number * 37) for number in range(200)]
    for piece in pieces:
        body.append(piece)
    view = body.take()
    assert isinstance(view, memoryview)
    assert bytes(view) == b"".join(pieces)
    assert (address(view) + 3) % ALIGNMENT == 0


def test_a_small_body_is_plain_bytes():
    body = BodyBuffer(0, 5)
    body.append(memoryview(b"hello"))
    assert body.complete
    assert body.take() == b"hello"
    assert type(body.take()) is bytes


def test_a_claim_alone_makes_no_memory():
    tracemalloc.start()
    try:
        body = BodyBuffer(0, 10 << 30)
        body.append(b"x" * 1000)
        assert len(body.room()) < 64 << 20
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_memory_follows_what_arrives_up_to_the_length(monkeypatch):
    monkeypatch.setattr("shoal.frontends.http.body._EAGER_BYTES", 1000)
    size = 50_000
    body = BodyBuffer(0, size)
    sent = np.arange(size, dtype=np.uint8).tobytes()
    while not body.complete:
        assert body.capacity <= max(1000, body.filled * 4)
        room = body.room()
        count = min(len(room), 700)
        room[:count] = sent[body.filled : body.filled + count]
        body.advance(count)
    assert body.capacity == size
    assert bytes(body.take()) == sent


def test_without_memory_the_request_is_refused(monkeypatch):
    body = BodyBuffer(0, 100 << 20)
    body.advance(len(body.room()))

    def take(size, aligned_at=0):
        raise MemoryError

    monkeypatch.setattr("shoal.frontends.http.body.pool.take", take)
    with pytest.raises(HttpFault, match=r"no memory for \d+ bytes of the body") as found:
        body.room()
    assert found.value.status == 503
    with pytest.raises(HttpFault):
        BodyBuffer(0, None)
