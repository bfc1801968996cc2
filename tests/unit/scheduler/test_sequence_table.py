"""Who sits where: slots, backlog, promotion, and instances that come and go."""

from __future__ import annotations

import threading

import pytest

from shoal.scheduler.sequence_table import InstanceSlots, SequenceTable


def table(*, instances=1, slots=2):
    made = SequenceTable(slots)
    condition = threading.Condition()
    every = [InstanceSlots(slots, condition) for _ in range(instances)]
    for instance in every:
        made.add_instance(instance)
    return made, every


def place(run, instances):
    return None if run.instance is None else (instances.index(run.instance), run.slot)


@pytest.mark.parametrize(
    ("instances", "slots", "places"),
    [
        (1, 1, [(0, 0), None, None]),
        (1, 2, [(0, 0), (0, 1), None]),
        (2, 1, [(0, 0), (1, 0), None]),
        (2, 2, [(0, 0), (1, 0), (0, 1), (1, 1), None]),  # low slots of all instances first
        (3, 1, [(0, 0), (1, 0), (2, 0), None]),
    ],
)
def test_a_sequence_takes_the_lowest_free_slot(instances, slots, places):
    seats, every = table(instances=instances, slots=slots)
    runs = [seats.start(number) for number in range(1, len(places) + 1)]
    assert [place(run, every) for run in runs] == places
    assert seats.backlog == [run for run in runs if run.instance is None]


def test_a_freed_slot_goes_to_the_head_of_the_backlog():
    seats, instances = table(slots=2)
    first, second, third, fourth = (seats.start(number) for number in range(1, 5))
    assert seats.remove(second) is third
    assert place(third, instances) == (0, 1)
    assert seats.backlog == [fourth]
    assert seats.remove(first) is fourth
    assert seats.remove(third) is None  # nobody waits
    assert place(seats.start(5), instances) == (0, 1)


def test_an_id_is_free_again_once_its_end_has_come():
    seats, instances = table(slots=2)
    first = seats.start(7)
    assert seats.find(7) is first
    seats.end(first)
    assert seats.find(7) is None
    again = seats.start(7)
    assert (place(first, instances), place(again, instances)) == ((0, 0), (0, 1))
    seats.remove(first)  # the older one's end does not touch the newer
    assert seats.find(7) is again


@pytest.mark.parametrize("ids", [(1, "1"), ("a", "b"), (2**64 - 1, 1)])
def test_numbers_and_strings_are_different_ids(ids):
    seats, _ = table()
    runs = [seats.start(key) for key in ids]
    assert [seats.find(key) for key in ids] == runs


def test_a_sequence_may_leave_the_backlog_without_a_slot():
    seats, _ = table(slots=1)
    seats.start(1)
    gone, kept = seats.start(2), seats.start(3)
    assert seats.remove(gone) is None
    assert seats.backlog == [kept]
    assert seats.find(2) is None


def test_a_new_instance_takes_what_waits():
    seats, _ = table(instances=0, slots=2)
    runs = [seats.start(number) for number in (1, 2, 3)]
    instance = InstanceSlots(2, threading.Condition())
    assert seats.add_instance(instance) == runs[:2]
    assert seats.backlog == runs[2:]
    assert list(instance.runs()) == runs[:2]


def test_a_retiring_instance_keeps_its_sequences_and_takes_no_other():
    seats, (leaving, staying) = table(instances=2, slots=1)
    on_leaving, on_staying = seats.start(1), seats.start(2)
    waiting = seats.start(3)
    seats.retire(leaving)
    assert leaving.occupied
    assert seats.remove(on_leaving) is None
    assert not leaving.occupied
    assert waiting.instance is None
    assert seats.remove(on_staying) is waiting
    assert waiting.instance is staying


def test_free_slots_of_a_retiring_instance_are_gone():
    seats, (leaving, staying) = table(instances=2, slots=2)
    seats.retire(leaving)
    runs = [seats.start(number) for number in (1, 2, 3)]
    assert [run.instance for run in runs] == [staying, staying, None]
