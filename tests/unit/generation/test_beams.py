"""Beam search on made-up models, where every text can be looked at."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from shoal.generation.beams import BeamSearch
from shoal.generation.options import FinishReason, GenerationOptions

STOP = 3


def model(seed, vocabulary=5):
    """Logits that depend on the whole text so far."""

    def logits(text):
        random = np.random.default_rng([seed, *text])
        return random.normal(0, 2, vocabulary).astype(np.float32)

    return logits


def search(logits, options):
    """Run a search to its end; the rows follow their parents as states do."""
    beams = BeamSearch(options)
    texts = [()] * options.num_beams
    while (result := beams.result()) is None:
        step = beams.advance(np.stack([logits(text) for text in texts]))
        texts = [(*texts[p], int(t)) for p, t in zip(step.parents, step.tokens, strict=True)]
    return result


def chance(logits, text):
    total = 0.0
    for length, token in enumerate(text):
        row = logits(text[:length]).astype(np.float64)
        total += row[token] - np.log(np.exp(row).sum())
    return total


def all_texts(length, vocabulary=5):
    """Every text that ends with the stop token, or at the length."""
    others = [token for token in range(vocabulary) if token != STOP]
    for before in range(length):
        for text in itertools.product(others, repeat=before):
            yield (*text, STOP)
    yield from itertools.product(others, repeat=length)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_wide_enough_it_finds_the_best_text_of_all(seed, penalty):
    logits = model(seed)
    options = GenerationOptions(4, frozenset([STOP]), num_beams=200, length_penalty=penalty)
    found = search(logits, options)
    best = max(chance(logits, text) / len(text) ** penalty for text in all_texts(4))
    assert found.score == pytest.approx(best, abs=1e-4)
    assert chance(logits, tuple(found.token_ids)) / len(found.token_ids) ** penalty == (
        pytest.approx(best, abs=1e-4)
    )


def test_more_beams_find_no_worse_texts():
    for seed in range(20):
        logits = model(seed)
        options = [
            GenerationOptions(6, frozenset([STOP]), num_beams=width, length_penalty=0.0)
            for width in (2, 16)
        ]
        narrow, wide = (search(logits, option) for option in options)
        assert wide.score >= narrow.score - 1e-5


def test_the_reason_says_how_the_best_text_ended():
    never = frozenset()
    assert search(model(0), GenerationOptions(5, never, num_beams=3)).reason is FinishReason.LENGTH
    certain = np.array([0, 0, 0, 20, 0], np.float32)
    ended = search(lambda _: certain, GenerationOptions(5, frozenset([STOP]), num_beams=3))
    assert (ended.token_ids, ended.reason) == ([STOP], FinishReason.STOP)


def test_a_least_length_is_kept():
    certain = np.array([0, 1, 0, 20, 0], np.float32)
    options = GenerationOptions(6, frozenset([STOP]), num_beams=3, min_tokens=2)
    assert len(search(lambda _: certain, options).token_ids) == 3


def test_early_stopping_ends_sooner():
    for seed in range(30):
        steps = []
        for early in (False, True):
            beams = BeamSearch(
                GenerationOptions(
                    12, frozenset([STOP]), num_beams=2, length_penalty=2.0, early_stopping=early
                )
            )
            texts, count = [()] * 2, 0
            while beams.result() is None:
                step = beams.advance(np.stack([model(seed)(text) for text in texts]))
                pairs = zip(step.parents, step.tokens, strict=True)
                texts = [(*texts[p], int(t)) for p, t in pairs]
                count += 1
            steps.append(count)
        assert steps[1] <= steps[0]


def test_a_vocabulary_smaller_than_what_is_looked_at():
    found = search(model(0, vocabulary=4), GenerationOptions(3, frozenset([STOP]), num_beams=5))
    assert 1 <= len(found.token_ids) <= 3
