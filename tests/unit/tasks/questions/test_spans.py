"""Spans: the best pair of start and end, none twice, none too long, and how sure one may be."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.tasks.questions import spans
from shoal.tasks.questions.spans import Calibration, Span
from shoal.tasks.questions.windows import TextWindow

LEAD = 3  # [CLS] question [SEP]


def window(tokens, begin=0):
    size = LEAD + tokens + 1
    ids = np.zeros(size, np.int64)
    return TextWindow(0, begin, begin + tokens, LEAD, ids, ids)


def logits(*values, null=-9.0, around=50.0):
    """A row: [CLS], what is not the text and must not be chosen, the text, [SEP], padding."""
    return np.array([null, around, around, *values, around, around], np.float32)


def find(starts, ends, *, longest=30, count=1, calibration=None, begin=0, null=-9.0):
    return spans.find(
        window(len(starts), begin),
        logits(*starts, null=null),
        logits(*ends, null=null),
        longest=longest,
        count=count,
        max_length=20,
        calibration=calibration,
    )


def test_the_best_span_lies_in_the_text():
    (best,) = find([0, 5, 0, 0], [0, 0, 4, 0], begin=100)
    assert (best.first, best.last) == (101, 102)
    assert best.margin == pytest.approx(5 + 4 + 18)
    assert best.fill == pytest.approx((LEAD + 4 + 1) / 20)


def test_an_end_comes_after_its_start():
    (best,) = find([0, 0, 9, 0], [9, 0, 0, 1])
    assert (best.first, best.last) == (2, 3)


def test_spans_are_not_longer_than_allowed():
    starts, ends = [9, 0, 0, 3], [0, 1, 0, 9]
    assert (find(starts, ends)[0].first, find(starts, ends)[0].last) == (0, 3)
    (short,) = find(starts, ends, longest=2)
    assert (short.first, short.last) == (3, 3)


@settings(max_examples=50)
@given(st.integers(1, 9), st.integers(1, 5), st.randoms(use_true_random=False))
def test_it_finds_what_trying_everything_finds(tokens, longest, random):
    starts = [random.uniform(-5, 5) for _ in range(tokens)]
    ends = [random.uniform(-5, 5) for _ in range(tokens)]
    found = find(starts, ends, longest=longest, count=4)
    pairs = [(i, j) for i in range(tokens) for j in range(i, min(tokens, i + longest))]
    # The logits are 32 bits wide, their sum is not rounded to that.
    starts, ends = np.float32(starts).tolist(), np.float32(ends).tolist()
    pairs.sort(key=lambda pair: -(starts[pair[0]] + ends[pair[1]]))
    wanted = []
    for first, last in pairs:
        if all(last < other[0] or first > other[1] for other in wanted):
            wanted.append((first, last))
    assert [(span.first, span.last) for span in found] == wanted[:4]


def test_the_score_is_a_share_of_all_spans_and_none():
    (best,) = find([1, 2], [0, 1], null=0.5)
    sums = [1 + 0, 1 + 1, 2 + 1]
    total = sum(map(math.exp, [*sums, 2 * 0.5]))
    assert best.score == pytest.approx(math.exp(3) / total)


def test_shares_never_overflow():
    (best,) = find([5000, -5000], [5000, -5000], null=-5000)
    assert best.score == pytest.approx(1)


def test_a_calibration_turns_margin_and_fill_into_a_probability():
    calibration = Calibration(margin=0.5, fill=2.0, fill_squared=-1.0, bias=-3.0)
    (best,) = find([1.0], [2.0], null=-1.0, calibration=calibration)
    fill = 5 / 20
    value = 0.5 * 5 + 2 * fill - fill**2 - 3
    assert best.score == pytest.approx(1 / (1 + math.exp(-value)))


@pytest.mark.parametrize(("margin", "score"), [(1e9, 1.0), (-1e9, 0.0)])
def test_probabilities_have_ends(margin, score):
    assert Calibration(1, 0, 0, 0).probability(margin, 1) == score


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_without_numbers_there_is_no_span(value):
    assert find([value, value], [value, value]) == []


def test_there_are_not_more_spans_than_tokens():
    assert len(find([1, 2], [1, 2], count=5)) == 2


def span(score, margin=0.0):
    return Span(0, 0, margin, 1.0, score)


def test_the_best_of_all_windows_without_overlap():
    text = "one two three four."
    places = [(0, 7), (4, 13), (14, 18), (14, 18)]
    assert spans.best([span(0.5), span(0.6), span(0.1), span(0.2)], places, text, 3) == [1, 3]
    assert spans.best([span(0.5), span(0.4), span(0.1), span(0.2)], places, text, 1) == [0]


def test_equal_scores_are_told_apart_by_margin():
    places = [(0, 3), (4, 7)]
    assert spans.best([span(1.0, 3.0), span(1.0, 4.0)], places, "one two", 2) == [1, 0]


def test_a_punctuation_mark_is_no_alternative():
    text = "yes. ?!"
    places = [(0, 3), (3, 4), (5, 7)]
    assert spans.best([span(0.9), span(0.8), span(0.7)], places, text, 3) == [0]
    assert spans.best([span(0.1), span(0.8), span(0.7)], places, text, 1) == [1]


@pytest.mark.parametrize(
    ("text", "end", "whole"),
    [
        ("cafe\u0301 x", 4, 5),  # an accent of its own
        ("cafe x", 4, 4),
        ("❤\ufe0f!", 1, 2),  # the colour of the heart
        ("e\u0301\u0323", 1, 3),
        ("abc", 3, 3),
    ],
)
def test_characters_keep_their_accents(text, end, whole):
    assert spans.whole_characters(text, end) == whole


def test_finding_many_never_overlaps():
    chance = np.random.default_rng(1)
    found = find(chance.normal(size=60), chance.normal(size=60), longest=10, count=20)
    for one, other in itertools.combinations(found, 2):
        assert one.last < other.first or one.first > other.last
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
