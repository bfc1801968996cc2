"""Where past states lie, and that they stay with their texts."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.generation.decoder import Shape
from shoal.generation.states import States

SHAPE = Shape(states=4, heads=2, head_size=3, max_length=40, vocabulary=9, context=((2,), (3, 1)))


def context(number):
    return [np.full(dims, number, np.float32) for dims in SHAPE.context]


def new(*numbers):
    """States of one token for each row, told apart by their number."""
    one = np.zeros((SHAPE.states, len(numbers), SHAPE.heads, 1, SHAPE.head_size), np.float32)
    one += np.array(numbers, np.float32)[None, :, None, None, None]
    return one


def tokens(states, row):
    """The numbers of the states that a row has."""
    length = int(states.lengths[row])
    first = states.past()[0][row, 0, :length, 0].tolist()
    for state in states.past():
        assert np.array_equal(
            state[row, :, :length],
            np.broadcast_to(np.array(first)[None, :, None], (SHAPE.heads, length, SHAPE.head_size)),
        )
    return first


def test_views_are_contiguous_and_hold_what_was_appended():
    states = States(SHAPE, 1)
    for number in range(3):
        assert states.join(context(number)) == number
    states.append(new(10, 20, 30))
    states.append(new(11, 21, 31))
    assert [tokens(states, row) for row in range(3)] == [[10, 11], [20, 21], [30, 31]]
    assert all(view.flags.c_contiguous and len(view) == 3 for view in states.past())
    assert all(view.flags.c_contiguous and len(view) == 3 for view in states.context())
    assert [view[:, 0].reshape(3, -1)[:, 0].tolist() for view in states.context()] == [
        [0, 1, 2]
    ] * 2


def test_the_last_one_takes_the_place_of_one_that_leaves():
    states = States(SHAPE, 1)
    for number in range(3):
        states.join(context(number))
    states.append(new(10, 20, 30))
    states.leave(0)
    assert [tokens(states, row) for row in range(2)] == [[30], [20]]
    assert states.context()[0][:, 0].tolist() == [2, 1]
    states.join(context(7))
    assert tokens(states, 2) == []
    assert states.context()[0][:, 0].tolist() == [2, 1, 7]


def test_rows_grow_longer_than_they_were_made():
    states = States(SHAPE, 1)
    states.join(context(0))
    for number in range(39):
        states.make_room(number + 1)
        states.append(new(number))
    assert tokens(states, 0) == list(range(39))


def test_beams_go_on_from_others():
    states = States(SHAPE, 3)
    states.join(context(0))
    states.join(context(1))
    states.append(new(1, 2, 3, 4, 5, 6))
    states.reorder(1, np.array([2, 2, 0]))
    states.reorder(0, np.array([0, 1, 2]))
    assert [tokens(states, row) for row in range(6)] == [[1], [2], [3], [6], [6], [4]]
    states.leave(0)
    assert [tokens(states, row) for row in range(3)] == [[6], [6], [4]]


def test_a_prompt_is_given_to_all_rows_of_a_text():
    states = States(SHAPE, 2)
    states.join(context(0))
    prompt = np.concatenate([new(number)[:, 0] for number in range(20)], axis=2)
    states.begin(0, prompt, 18)  # what is behind was filling
    assert [tokens(states, row) for row in range(2)] == [list(range(18))] * 2


@pytest.mark.parametrize("width", [1, 3])
def test_memory_is_what_rows_and_lengths_need(width):
    states = States(SHAPE, width)
    for number in range(8):
        states.join(context(number))
    states.make_room(40)
    row = 4 * SHAPE.states * SHAPE.heads * SHAPE.head_size * 40
    assert states.nbytes == 8 * (width * row + 4 * (2 + 3))
