"""Which texts go to the model together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.tasks.texts.grouping import grouped
from shoal.tasks.texts.rows import PORTION, portions


@pytest.mark.parametrize(
    ("lengths", "most", "groups"),
    [
        ([5], 32, [[0]]),
        ([9, 200, 8, 8, 9], 32, [[2, 3, 0, 4], [1]]),  # a long one is a group by itself
        ([8] * 5, 2, [[0, 1], [2, 3], [4]]),  # full
        ([3, 4, 5], 32, [[0, 1], [2]]),  # one token more will do
        ([80, 90, 91], 32, [[0, 1], [2]]),  # an eighth more will do
        ([7, 3, 7, 3], 32, [[1, 3], [0, 2]]),
    ],
)
def test_grouped(lengths, most, groups):
    assert grouped(lengths, most) == groups


def test_without_a_mask_only_equal_lengths_go_together():
    assert grouped([3, 4, 3, 4, 5], 32, equal=True) == [[0, 2], [1, 3], [4]]


@given(st.lists(st.integers(1, 512), min_size=1, max_size=200), st.integers(1, 40), st.booleans())
def test_everybody_is_in_one_group_and_little_is_padding(lengths, most, equal):
    groups = grouped(lengths, most, equal=equal)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        own = [lengths[index] for index in group]
        assert 1 <= len(group) <= most
        assert max(own) <= (min(own) if equal else min(own) + max(1, min(own) // 8))


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([5, 6], [2]),
        ([PORTION, 1, 1], [1, 2]),  # a large call takes turns with others
        ([PORTION // 2, PORTION // 2, 1], [2, 1]),
    ],
)
def test_a_call_is_split_into_tokens_in_portions(lengths, expected):
    texts = ["x" * length for length in lengths]
    found = list(portions(texts))
    assert [len(some) for some in found] == expected
    assert [text for some in found for text in some] == texts
