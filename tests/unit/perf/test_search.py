"""Which levels a search visits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidArgument
from shoal.perf.search import Range, binary, linear, parse_range


def visited(search, highest=float("inf")):
    """The levels asked for when those up to `highest` keep to the limit."""
    levels = []
    try:
        level = next(search)
        while True:
            levels.append(level)
            level = search.send(level <= highest)
    except StopIteration:
        return levels


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("3", [3]),
        ("1:4", [1, 2, 3, 4]),
        ("1:8:3", [1, 4, 7]),
        ("2:2", [2]),
        ("0.5:2:0.5", [0.5, 1.0, 1.5, 2.0]),
    ],
)
def test_linear(text, levels):
    assert visited(linear(parse_range("--r", text, whole="." not in text))) == levels


def test_fractions_do_not_add_up_errors():
    assert len(visited(linear(parse_range("--r", "0.1:100:0.1", whole=False)))) == 1000


def test_linear_without_end_stops_at_the_limit():
    assert visited(linear(Range(1, 0, 2, end_given=True)), highest=6) == [1, 3, 5, 7]


@pytest.mark.parametrize(
    ("highest", "levels"),
    [
        (0, [1]),  # the lowest is too slow already
        (64, [1, 64]),  # the highest is not
        (10, [1, 64, 32, 16, 8, 12, 10, 11]),
    ],
)
def test_binary(highest, levels):
    assert visited(binary(Range(1, 64, 1, end_given=True)), highest) == levels


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 20), st.integers(0, 1000))
def test_binary_finds_the_limit_to_a_step(start, more, step, highest):
    levels = visited(binary(Range(start, start + more, step, end_given=True)), highest)
    met = [level for level in levels if level <= highest]
    missed = [level for level in levels if level > highest]
    assert len(levels) == len(set(levels))
    if met and missed:
        assert min(missed) - max(met) <= max(1, step)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "takes start:end:step"),
        ("a:b", "found 'a:b'"),
        ("1:2:3:4", "takes start:end:step"),
        ("1.5", "whole numbers"),
        ("0:4", "above 0"),
        ("1:4:0", "above 0"),
        ("8:4", "write 4:8"),
        ("-1", "above 0"),
    ],
)
def test_wrong_ranges(text, words):
    with pytest.raises(InvalidArgument, match=words):
        parse_range("--concurrency-range", text, whole=True)
