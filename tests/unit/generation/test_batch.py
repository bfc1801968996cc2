"""Texts that join and leave at any step are the texts they would be alone."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BackendFailure, InvalidArgument
from shoal.generation.batch import ContinuousBatch, as_shoal_error
from shoal.generation.decoder import Shape
from shoal.generation.options import GenerationOptions
from shoal.generation.rows import ArrayRows

VOCABULARY, STOP = 12, 3


class MadeUpDecoder:
    """Its states are the tokens themselves; logits come from all of them and the context."""

    shape = Shape(
        states=2, heads=1, head_size=1, max_length=64, vocabulary=VOCABULARY, context=((1,),)
    )

    def __init__(self):
        self.runs = []
        self.poison = None  # a context that it cannot stand

    def run(self, token_ids, lengths, past, context):
        rows, count = token_ids.shape
        per_text = rows // len(context[0])
        self.runs.append(rows)
        assert all(view.flags.c_contiguous for view in (*past, *context))
        if self.poison is not None and self.poison in context[0]:
            raise ValueError("poisoned")
        logits = np.zeros((rows, VOCABULARY), np.float32)
        for row in range(rows):
            length = int(lengths[row])
            for state in past[1:]:
                assert np.array_equal(state[row, :, :length], past[0][row, :, :length])
            before = past[0][row, 0, :length, 0].astype(int).tolist()
            seed = [int(context[0][row // per_text, 0]), *before, *token_ids[row].tolist()]
            logits[row] = np.random.default_rng(seed).normal(0, 2, VOCABULARY)
        states = np.broadcast_to(
            token_ids.astype(np.float32)[None, :, None, :, None], (2, rows, 1, count, 1)
        )
        return logits, states


class Job:
    def __init__(self, about, prompt, options):
        self.about = np.array([about], np.float32)
        self.prompt, self.options = prompt, options
        self.cancelled = False
        self.tokens, self.result, self.error, self.dropped = [], None, None, False
        self.ends = 0

    def on_token(self, token):
        self.tokens.append(token)

    def on_result(self, result):
        self.result, self.ends = result, self.ends + 1

    def on_error(self, error):
        self.error, self.ends = error, self.ends + 1

    def on_cancelled(self):
        self.dropped, self.ends = True, self.ends + 1


def has_room(batch, job):
    return batch.rows + job.options.num_beams <= batch.max_rows


def join(batch, *jobs):
    batch.join(jobs, [[job.about] for job in jobs])


def alone(job):
    copy = Job(float(job.about[0]), job.prompt, job.options)
    batch = ContinuousBatch(partial(ArrayRows, MadeUpDecoder()), 64)
    join(batch, copy)
    while batch.rows:
        batch.step()
    return copy.result


JOBS = st.builds(
    Job,
    st.integers(0, 50),
    st.lists(st.integers(0, 11), min_size=1, max_size=6),
    st.builds(
        GenerationOptions,
        st.integers(1, 20),
        st.just(frozenset([STOP])),
        st.sampled_from([1, 1, 2, 3]),
    ),
)


@given(st.lists(st.tuples(JOBS, st.integers(0, 4), st.booleans()), max_size=10))
def test_every_text_is_the_one_it_would_be_alone(arrivals):
    batch = ContinuousBatch(partial(ArrayRows, MadeUpDecoder()), 6)
    waiting = list(arrivals)
    while waiting or batch.rows:
        now = []
        while waiting and has_room(batch, waiting[0][0]) and len(now) < 2:
            job, wait, gone = waiting.pop(0)
            join(batch, job)
            now.append(job)
            for _ in range(wait):
                batch.step()
            job.cancelled = gone and job.ends == 0
        assert batch.rows <= 6
        batch.step()
    assert (batch.texts, batch.nbytes) == (0, 0)
    for job, _, _ in arrivals:
        assert job.ends == 1
        assert job.error is None
        if job.result is not None:
            assert job.result == alone(job)
            if job.options.num_beams == 1:
                assert [*job.tokens, job.result.token_ids[-1]] == job.result.token_ids


def test_texts_of_different_lengths_share_each_step():
    decoder = MadeUpDecoder()
    batch = ContinuousBatch(partial(ArrayRows, decoder), 16)
    jobs = [Job(n, [1], GenerationOptions(10)) for n in range(3)]
    for job in jobs:
        join(batch, job)
        batch.step()
    assert decoder.runs == [1, 2, 3]
    assert batch.step() == [3]


def test_those_with_as_many_beams_share_a_step():
    batch = ContinuousBatch(partial(ArrayRows, MadeUpDecoder()), 16)
    join(
        batch,
        *(
            Job(n, [1], GenerationOptions(10, num_beams=width))
            for n, width in enumerate((1, 3, 1, 3))
        ),
    )
    assert sorted(batch.step()) == [2, 6]


def test_prompts_are_computed_together():
    decoder = MadeUpDecoder()
    batch = ContinuousBatch(partial(ArrayRows, decoder), 16)
    jobs = [Job(n, [1, *range(n + 1)], GenerationOptions(4)) for n in range(3)]
    join(batch, *jobs)
    assert decoder.runs == [3]
    while batch.rows:
        batch.step()
    assert [job.result for job in jobs] == [alone(job) for job in jobs]


@pytest.mark.parametrize("width", [1, 2])
def test_one_that_fails_harms_nobody(width):
    decoder = MadeUpDecoder()
    batch = ContinuousBatch(partial(ArrayRows, decoder), 16)
    jobs = [Job(n, [1], GenerationOptions(6, num_beams=width)) for n in range(4)]
    join(batch, *jobs)
    batch.step()
    decoder.poison = 2
    while batch.rows:
        batch.step()
    assert isinstance(jobs[2].error, ValueError)
    others = [job for job in jobs if job is not jobs[2]]
    assert [job.result for job in others] == [alone(job) for job in others]
    assert all(job.ends == 1 for job in jobs)


def test_a_prompt_that_fails_harms_nobody():
    decoder = MadeUpDecoder()
    decoder.poison = 1
    batch = ContinuousBatch(partial(ArrayRows, decoder), 16)
    jobs = [Job(n, [1, 2, 4], GenerationOptions(6)) for n in range(3)]
    join(batch, *jobs)
    while batch.rows:
        batch.step()
    assert isinstance(jobs[1].error, ValueError)
    assert [job.result for job in (jobs[0], jobs[2])] == [alone(job) for job in (jobs[0], jobs[2])]


def test_logits_that_are_no_numbers_end_their_own_text():
    class Broken(MadeUpDecoder):
        def run(self, token_ids, lengths, past, context):
            logits, states = super().run(token_ids, lengths, past, context)
            logits[np.flatnonzero(context[0][:, 0] == 1)] = np.nan
            return logits, states

    batch = ContinuousBatch(partial(ArrayRows, Broken()), 16)
    jobs = [Job(n, [1], GenerationOptions(6)) for n in range(3)]
    join(batch, *jobs)
    while batch.rows:
        batch.step()
    assert isinstance(jobs[1].error, BackendFailure)
    assert jobs[0].result == alone(jobs[0])
    assert jobs[2].result == alone(jobs[2])


def test_a_job_whose_reader_fails_ends_alone():
    class Deaf(Job):
        def on_token(self, token):
            raise RuntimeError("nobody listens")

    batch = ContinuousBatch(partial(ArrayRows, MadeUpDecoder()), 16)
    deaf, other = Deaf(0, [1], GenerationOptions(6)), Job(1, [1], GenerationOptions(6))
    join(batch, deaf, other)
    while batch.rows:
        batch.step()
    assert isinstance(deaf.error, RuntimeError)
    assert other.result == alone(other)


def test_one_that_is_cancelled_frees_its_place_before_the_next_step():
    decoder = MadeUpDecoder()
    batch = ContinuousBatch(partial(ArrayRows, decoder), 2)
    jobs = [Job(n, [1], GenerationOptions(30)) for n in range(3)]
    join(batch, *jobs[:2])
    batch.step()
    assert not has_room(batch, jobs[2])
    jobs[0].cancelled = True
    assert batch.step() == [1]
    assert jobs[0].dropped
    assert has_room(batch, jobs[2])


def test_all_can_be_ended():
    batch = ContinuousBatch(partial(ArrayRows, MadeUpDecoder()), 16)
    jobs = [Job(n, [1], GenerationOptions(30)) for n in range(3)]
    join(batch, *jobs)
    batch.fail_all(RuntimeError("no"))
    assert batch.rows == 0
    assert [type(job.error) for job in jobs] == [RuntimeError] * 3


def test_what_a_client_is_told():
    assert as_shoal_error(InvalidArgument("x")).message == "x"
    told = as_shoal_error(ValueError("x"))
    assert isinstance(told, BackendFailure)
    assert told.message == "ValueError: x"
