"""Segments that cannot be mapped, because there is no memory for them at that moment."""

from __future__ import annotations

import mmap
import os

import pytest

from shoal.errors import Unavailable
from shoal.link import segments
from shoal.link.segments import Segment, SegmentViews


@pytest.fixture
def no_memory(monkeypatch, segment):
    """Mapping fails until the test sets this to false."""
    state = {"on": True}
    map_file = mmap.mmap

    def fail_or_map(file, size):
        if state["on"]:
            raise OSError(12, "Cannot allocate memory")
        return map_file(file, size)

    monkeypatch.setattr(segments.mmap, "mmap", fail_or_map)
    return state


@pytest.fixture
def segment():
    made = Segment(1, 1 << 16)
    made.memory[:4] = b"data"
    return made


def sent_file(segment):
    """Its file, as it goes with a message: it belongs to the other side then."""
    file, segment.file = segment.file, -1
    return file


def test_a_segment_without_memory_for_it_is_released_and_can_be_used_later(segment, no_memory):
    views = SegmentViews()
    file = sent_file(segment)
    views.open(1, segment.size, "", lambda: file)
    released = []
    with pytest.raises(Unavailable, match="no memory for the tensors of this request"):
        views.lease(1, released.append)
    assert released == [1]
    no_memory["on"] = False
    assert bytes(views.lease(1, released.append)[:4]) == b"data"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


@pytest.mark.parametrize("end", [lambda views: views.drop(1), SegmentViews.close])
def test_its_file_is_closed_in_any_case(segment, no_memory, end):
    views = SegmentViews()
    file = sent_file(segment)
    views.open(1, segment.size, "", lambda: file)
    end(views)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
