"""What is loaded is left out of collections, and unloading still frees it."""

from __future__ import annotations

import gc
import weakref

import pytest

from shoal.repository import memory


class Part:
    """A part of a model, in a cycle."""


def cycle():
    part = Part()
    part.itself = part
    return part


@pytest.fixture
def serving():
    before = gc.get_threshold()
    with memory.excluding():
        yield
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before


@pytest.mark.usefixtures("serving")
def test_collections_are_rare():
    assert gc.get_threshold()[0] > 700


@pytest.mark.usefixtures("serving")
def test_collections_do_not_look_at_what_was_loaded():
    part = cycle()
    memory.exclude_loaded()
    assert gc.get_freeze_count() > 1000
    assert all(one is not part for one in gc.get_objects())


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("free", [memory.give_memory_back, memory.exclude_started])
def test_cycles_that_were_left_out_are_freed(free):
    part = cycle()
    freed = weakref.ref(part)
    memory.exclude_loaded()
    del part
    gc.collect()
    assert freed() is not None  # it was not looked at
    free()
    assert freed() is None
    assert gc.get_freeze_count() > 1000  # the others are left out again


def test_an_application_with_a_server_inside_keeps_its_own_rules():
    part = cycle()
    memory.exclude_loaded()
    memory.exclude_started()
    assert gc.get_freeze_count() == 0
    freed = weakref.ref(part)
    del part
    memory.give_memory_back()
    assert freed() is None
