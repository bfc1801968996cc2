"""States on a device, with a made-up decoder on PyTorch's CPU: texts are those they are alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.backends.generation.files import DecoderPorts
from shoal.errors import BackendFailure
from shoal.generation.batch import ContinuousBatch
from shoal.generation.beams import BeamSearch
from shoal.generation.choice import TokenSampler, sample
from shoal.generation.options import GenerationOptions
from tests.unit.generation.test_batch import JOBS, STOP, Job, MadeUpDecoder, alone, has_room

torch = pytest.importorskip("torch")
choice = pytest.importorskip("shoal.backends.generation.pytorch.choice")
decoders = pytest.importorskip("shoal.backends.generation.pytorch.decoder")
rows = pytest.importorskip("shoal.backends.generation.pytorch.rows")
runtime = pytest.importorskip("shoal.backends.generation.pytorch.runtime")

PORTS = DecoderPorts(("past_0", "past_1"), ("about",), MadeUpDecoder.shape)


class MadeUpGraph:
    """The decoder of `test_batch`, as a graph of tensors."""

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self):
        self.broken = None  # a context for which it computes no numbers

    def __call__(self, feeds):
        arrays = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in feeds.items()}
        logits, states = MadeUpDecoder().run(
            arrays["input_ids"],
            arrays["past_lengths"],
            [arrays[name] for name in PORTS.past],
            [arrays["about"]],
        )
        states = states.copy()
        if self.broken is not None:
            wrong = arrays["about"][:, 0] == self.broken
            logits[wrong], states[:, wrong] = np.nan, np.nan
        return {"logits": torch.from_numpy(logits), "states": torch.from_numpy(states)}


def runner(max_rows, graph=None):
    decoder = decoders.DeviceDecoder(graph or MadeUpGraph(), PORTS, [STOP], max_rows)
    return runtime.TorchRunner(decoder).rows


def join(batch, *jobs):
    encoded = [torch.tensor(np.stack([job.about for job in jobs]))]
    batch.join(jobs, [decoders.EncodedRow(encoded, row) for row in range(len(jobs))])


@settings(max_examples=40)
@given(st.lists(st.tuples(JOBS, st.integers(0, 4), st.booleans()), max_size=10))
def test_every_text_is_the_one_it_would_be_alone(arrivals):
    batch = ContinuousBatch(runner(6), 6)
    waiting = list(arrivals)
    while waiting or batch.rows:
        while waiting and has_room(batch, waiting[0][0]):
            job, wait, gone = waiting.pop(0)
            join(batch, job)
            for _ in range(wait):
                batch.step()
            job.cancelled = gone and job.ends == 0
        batch.step()
    for job, _, _ in arrivals:
        assert job.ends == 1
        assert job.error is None
        if job.result is not None:
            expected = alone(job)
            assert job.result.token_ids == expected.token_ids
            assert job.result.reason is expected.reason
            assert job.result.score == pytest.approx(expected.score, abs=1e-5)


def test_the_last_of_many_texts_moves_to_the_front():
    batch = ContinuousBatch(runner(64), 64)
    short = [Job(n, [1], GenerationOptions(2)) for n in range(40)]
    long = Job(50, [1, 2, 3], GenerationOptions(30))
    join(batch, *short)
    join(batch, long)
    while batch.rows:
        batch.step()
    assert long.result == alone(long)


def test_a_text_whose_logits_are_not_numbers_ends_alone():
    graph = MadeUpGraph()
    batch = ContinuousBatch(runner(2, graph), 2)
    graph.broken = 7.0
    wrong, right = Job(7, [1], GenerationOptions(4)), Job(5, [1], GenerationOptions(4))
    join(batch, wrong, right)
    batch.step()
    assert isinstance(wrong.error, BackendFailure)
    next_one = Job(6, [1], GenerationOptions(4))  # it gets the place of the first
    join(batch, next_one)
    while batch.rows:
        batch.step()
    assert right.result == alone(right)
    assert next_one.result == alone(next_one)


def test_rows_are_empty_again_after_a_failure():
    made = runner(2)
    batch = ContinuousBatch(made, 2)
    jobs = [Job(n, [1], GenerationOptions(4)) for n in range(2)]
    join(batch, *jobs)
    batch.fail_all(BackendFailure("no more"))
    job = Job(3, [1], GenerationOptions(4))
    join(batch, job)
    while batch.rows:
        batch.step()
    assert job.result == alone(job)


def test_memory_is_that_of_all_texts():
    made = rows.TorchRows(decoders.DeviceDecoder(MadeUpGraph(), PORTS, [STOP], 4), 1)
    assert made.nbytes == 4 * (2 * 5 * 64) + 4 * (4 * 8)


# ---- the choice of tokens


def sampled(logits, uniform, **options):
    made = GenerationOptions(9, temperature=options.pop("temperature", 1.0), **options)
    return choice.sampled(
        torch.tensor(logits)[None],
        torch.tensor([made.temperature]),
        torch.tensor([made.top_k]),
        torch.tensor([made.top_p]),
        torch.tensor([uniform]),
    ).item()


class Fixed:
    """A random generator whose next number is known."""

    def __init__(self, uniform):
        self.uniform = uniform

    def choice(self, among, p):
        return among[int(np.searchsorted(np.cumsum(p), self.uniform, side="right"))]


@given(
    st.lists(st.floats(-4, 4, width=32), min_size=2, max_size=12, unique=True),
    st.floats(0.01, 0.99),
    st.floats(0.3, 3),
    st.integers(0, 13),
)
def test_sampling_has_the_probabilities_of_the_cpu(logits, top_p, temperature, top_k):
    """Tokens in the order of their probability, as the CPU has them within `top_p`."""
    options = GenerationOptions(9, temperature=temperature, top_p=top_p, top_k=top_k)
    array = np.array(logits, np.float32)
    steps = np.linspace(0.003, 0.997, 23)
    ours = [
        sampled(logits, step, temperature=temperature, top_p=top_p, top_k=top_k) for step in steps
    ]
    theirs = [sample(array, options, Fixed(step)) for step in steps]
    # Numbers that fall on a border may differ by rounding.
    assert sum(one != other for one, other in zip(ours, theirs, strict=True)) <= 1


def test_without_a_temperature_it_is_the_likeliest():
    assert sampled([0.1, 3.0, 2.9], 0.99, temperature=0.0) == 1
    assert sampled([0.1, 3.0, 2.9], 0.99, top_k=1) == 1
    assert sampled([0.1, 3.0, 2.9], 0.99, top_p=0.0) == 1
    assert sampled([0.1, 3.0, 2.9], 0.9999) == 0


def test_logits_that_are_not_numbers_choose_nothing():
    logits = torch.tensor([[0.0, float("nan")], [0.0, 1.0]])
    assert choice.greedy(logits).tolist() == [-1, 1]
    assert sampled([0.0, float("nan")], 0.5) == -1


def test_stop_tokens_are_excluded_by_row():
    logits = torch.tensor([[5.0, 1.0, 2.0], [5.0, 1.0, 2.0]])
    found = choice.without_stop(logits, torch.tensor([0]), torch.tensor([True, False]))
    assert choice.greedy(found).tolist() == [2, 0]


@given(st.integers(0, 1000), st.integers(2, 5))
def test_candidates_of_beams_are_those_of_the_cpu(seed, width):
    random = np.random.default_rng(seed)
    options = GenerationOptions(6, frozenset([STOP]), width)
    ours, theirs = BeamSearch(options), BeamSearch(options)
    while theirs.result() is None:
        logits = random.normal(0, 2, (width, 12)).astype(np.float32)
        tokens, chances = choice.candidates(torch.from_numpy(logits), min(ours.candidates, 12))
        one, other = ours.choose(tokens.numpy(), chances.numpy()), theirs.advance(logits)
        assert (one.parents.tolist(), one.tokens.tolist()) == (
            other.parents.tolist(),
            other.tokens.tolist(),
        )
    assert ours.result().token_ids == theirs.result().token_ids


def test_a_sampler_gives_numbers_only_where_it_samples():
    assert TokenSampler(GenerationOptions(3)).uniform() == 0
    sampler = TokenSampler(GenerationOptions(3, temperature=1.0, seed=5))
    assert 0 < sampler.uniform() < 1


def test_an_error_that_breaks_the_gpu_is_known_from_then_on(caplog):
    decoder = decoders.DeviceDecoder(MadeUpGraph(), PORTS, [STOP], 2)
    made = runtime.TorchRunner(decoder)
    assert decoder.failure("decoder", ValueError("no")).message == "the decoder failed: no"
    assert not made.broken
    decoder.failure("encoder", RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert made.broken
    assert "until the server is restarted" in caplog.text
