"""Texts for which one token after the other is chosen."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.generation.choice import TokenSampler, sample
from shoal.generation.options import FinishReason, GenerationOptions

LOGITS = np.log(np.array([0.05, 0.5, 0.25, 0.15, 0.05], np.float32))


def advance(search, logits):
    return search.advance(np.array(logits, np.float32), int(np.argmax(logits)))


def test_the_most_likely_token_is_taken_until_a_stop_token():
    search = TokenSampler(GenerationOptions(5, frozenset([3])))
    assert [advance(search, row) for row in ([0, 9, 0, 1], [0, 0, 9, 1])] == [1, 2]
    assert search.result() is None
    assert advance(search, [0, 0, 0, 9]) == 3
    result = search.result()
    assert (result.token_ids, result.reason, result.score) == ([1, 2, 3], FinishReason.STOP, None)


def test_a_text_ends_at_its_length():
    search = TokenSampler(GenerationOptions(2, frozenset([3])))
    advance(search, [0, 9, 0, 0])
    assert search.result() is None
    advance(search, [0, 9, 0, 0])
    assert search.result().reason is FinishReason.LENGTH


def test_no_stop_token_before_the_least_length():
    search = TokenSampler(GenerationOptions(9, frozenset([3]), min_tokens=2))
    assert [advance(search, [0, 1, 2, 9]) for _ in range(3)] == [2, 2, 3]


@pytest.mark.parametrize(
    ("options", "among"),
    [
        (GenerationOptions(1, temperature=1.0), {0, 1, 2, 3, 4}),
        (GenerationOptions(1, temperature=1.0, top_k=2), {1, 2}),
        (GenerationOptions(1, temperature=1.0, top_p=0.7), {1, 2}),  # 0.5 is not enough, 0.75 is
        (GenerationOptions(1, temperature=1.0, top_p=0.0), {1}),
        (GenerationOptions(1, temperature=1.0, top_k=3, top_p=0.8), {1, 2}),
        (GenerationOptions(1, temperature=0.01), {1}),
        (GenerationOptions(1, temperature=1.0, top_k=50), {0, 1, 2, 3, 4}),
    ],
)
def test_what_may_be_drawn(options, among):
    random = np.random.default_rng(0)
    assert {sample(LOGITS, options, random) for _ in range(300)} == among


def test_what_is_drawn_follows_the_probabilities():
    random = np.random.default_rng(1)
    drawn = np.bincount(
        [sample(LOGITS, GenerationOptions(1, temperature=1.0), random) for _ in range(4000)]
    )
    np.testing.assert_allclose(drawn / 4000, np.exp(LOGITS), atol=0.03)


def test_the_same_seed_draws_the_same_text():
    def text(seed):
        search = TokenSampler(GenerationOptions(20, temperature=1.5, seed=seed))
        return [search.advance(LOGITS, 1) for _ in range(20)]

    assert text(7) == text(7)
    assert text(7) != text(8)
