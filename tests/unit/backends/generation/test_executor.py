"""An instance that generates: who waits, who is let in, and what becomes of those who go away."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.backends.generation.counts import Counts
from shoal.backends.generation.executor import GenerationExecutor
from shoal.backends.generation.request import GenerationRequest
from shoal.core.request import Request
from shoal.errors import BackendFailure, Cancelled, InvalidArgument
from shoal.generation.decoder import Shape
from shoal.generation.options import GenerationOptions
from shoal.generation.rows import ArrayRows
from shoal.statistics.custom import CustomMetrics
from tests.support.fakes import WAIT_SECS

TOKEN = 5


class PendingRequest:
    """A request, and what it was answered."""

    def __init__(self, **parameters):
        self.request = Request("m", {}, self, parameters=parameters)
        self.answers = []
        self.first, self.over = threading.Event(), threading.Event()

    def send(self, outputs=(), *, error=None, parameters=None, final=True):
        self.answers.append((list(outputs), error))
        self.first.set()
        if final:
            self.over.set()

    def defer(self):
        raise AssertionError("a decoupled model need not")

    @property
    def error(self):
        assert self.over.wait(WAIT_SECS)
        return self.answers[-1][1]

    @property
    def tokens(self):
        assert self.over.wait(WAIT_SECS)
        found = [tensor for outputs, _ in self.answers for tensor in outputs]
        return sum(tensor.array.size for tensor in found if tensor.name == "token_ids")


class GatedDecoder:
    """Runs a step each time it is let; always says the same token."""

    shape = Shape(states=2, heads=1, head_size=1, max_length=64, vocabulary=9, context=((1,),))

    def __init__(self):
        self.steps = threading.Semaphore(0)
        self.started = threading.Semaphore(0)
        self.rows = []
        self.fails = False

    def run(self, token_ids, lengths, past, context):
        self.rows.append(len(token_ids))
        self.started.release()
        assert self.steps.acquire(timeout=WAIT_SECS)
        if self.fails:
            raise BackendFailure("no more")
        logits = np.zeros((len(token_ids), 9), np.float32)
        logits[:, TOKEN] = 1
        return logits, np.zeros((2, *token_ids.shape[:1], 1, *token_ids.shape[1:], 1), np.float32)

    def go(self, steps=1000):
        self.steps.release(steps)

    def wait(self):
        assert self.started.acquire(timeout=WAIT_SECS)


class Encoder:
    overlaps = False

    def __init__(self):
        self.sizes = []
        self.started = threading.Event()

    def start(self, photos):
        self.started.set()

    def staged(self, photo):
        return photo

    def run(self, photos):
        self.sizes.append(len(photos))
        if np.max(photos) > 1:
            raise BackendFailure("too bright")
        return [[photo] for photo in photos]


class Reader:
    """Requests say how long and how bright."""

    writing = SimpleNamespace(
        decode=lambda ids: "x" * len(ids), without_stop=list, stop_ids=frozenset()
    )

    def __call__(self, request):
        asked = request.parameters
        if "wrong" in asked:
            raise InvalidArgument("wrong")
        options = GenerationOptions(asked.get("length", 3), num_beams=asked.get("beams", 1))
        pixels = np.full(1, asked.get("light", 0), np.float32)
        return GenerationRequest([1], options, pixels, asked.get("stream", True), False)


@pytest.fixture
def world():
    decoder, encoder = GatedDecoder(), Encoder()
    counts = Counts({"model": "m", "version": "1"}, CustomMetrics())
    executor = GenerationExecutor(
        "m_0", Reader(), encoder, partial(ArrayRows, decoder), 2, 2, counts
    )
    threads = []

    def ask(**parameters):
        """Hand a request over on a thread, as an instance's worker would."""
        pending = PendingRequest(**parameters)
        thread = threading.Thread(target=executor.execute, args=([pending],))
        thread.start()
        threads.append(thread)
        return pending, thread

    yield SimpleNamespace(
        decoder=decoder, encoder=encoder, counts=counts, executor=executor, ask=ask
    )
    decoder.go()
    for thread in threads:
        thread.join()
    executor.close()
    counts.close()


def test_a_token_a_response_and_the_end_in_the_last(world):
    pending, thread = world.ask(length=3)
    thread.join(WAIT_SECS)  # there was room: the worker may fetch the next request
    world.decoder.go()
    assert pending.tokens == 3
    assert len(pending.answers) == 3
    last = {tensor.name: tensor.array.tolist() for tensor in pending.answers[-1][0]}
    assert last["finish_reason"] == [b"length"]
    assert (last["num_input_tokens"], last["num_output_tokens"]) == ([1], [3])


def test_one_response_where_tokens_are_not_wanted_one_by_one(world):
    pending, _ = world.ask(length=3, stream=False)
    world.decoder.go()
    assert pending.tokens == 3
    assert len(pending.answers) == 1


def test_who_does_not_fit_waits_in_execute(world):
    first, _ = world.ask(length=50)
    world.decoder.wait()
    second, second_thread = world.ask(length=50)
    second_thread.join(WAIT_SECS)
    third, third_thread = world.ask(length=50)
    assert third_thread.is_alive()
    assert world.executor.texts == 2
    world.decoder.go()
    assert [pending.tokens for pending in (first, second, third)] == [50] * 3
    assert max(world.decoder.rows) == 2


def test_beams_take_a_place_each(world):
    pending, _ = world.ask(length=4, beams=2)
    world.decoder.wait()
    other, thread = world.ask(length=4)
    assert thread.is_alive()
    world.decoder.go()
    assert pending.error is None
    assert other.error is None
    assert world.decoder.rows[:4] == [2] * 4


def test_one_who_waits_may_go(world):
    world.ask(length=60)
    world.decoder.wait()
    _, full = world.ask(length=60)
    full.join(WAIT_SECS)
    waiting, thread = world.ask(length=60)
    waiting.request.cancel()
    thread.join(WAIT_SECS)
    assert not thread.is_alive()
    assert isinstance(waiting.error, Cancelled)


def test_one_whose_text_is_under_way_may_go_and_another_takes_the_place(world):
    first, _ = world.ask(length=60)
    world.decoder.wait()
    second, _ = world.ask(length=60)
    third, third_thread = world.ask(length=2)
    world.decoder.go(1)
    world.decoder.wait()
    first.request.cancel()
    world.decoder.go(8)
    third_thread.join(WAIT_SECS)
    assert isinstance(first.error, Cancelled)
    assert not second.over.is_set(), "it was not that one's place"
    world.decoder.go()
    assert third.tokens == 2
    assert second.tokens == 60
    assert first.tokens < 60


def test_a_wrong_request_is_answered_at_once(world):
    pending, thread = world.ask(wrong=True)
    thread.join(WAIT_SECS)
    assert pending.error.message == "wrong"
    assert world.executor.texts == 0


def test_a_photo_that_cannot_be_encoded_costs_its_own_request(world):
    good, _ = world.ask(length=3)
    bad, _ = world.ask(length=3, light=7)
    world.decoder.go()
    assert bad.error.message == "too bright"
    assert good.tokens == 3


@pytest.mark.parametrize("light", [0, 7])
def test_an_encoder_may_begin_during_a_step(world, light):
    world.encoder.overlaps = True
    first, _ = world.ask(length=10)
    world.decoder.wait()
    assert not world.encoder.started.is_set(), "nothing to overlap with"
    second, thread = world.ask(length=3, light=light)
    thread.join(WAIT_SECS)  # it has arrived
    world.decoder.go(1)
    assert world.encoder.started.wait(WAIT_SECS)
    world.decoder.go()
    assert first.tokens == 10
    if light:
        assert second.error.message == "too bright"
    else:
        assert second.tokens == 3
    # The second text is in no step that began before it was encoded.
    assert world.decoder.rows[:2] == [1, 1]


def test_a_decoder_that_fails_ends_the_texts_and_nothing_else(world):
    pending, _ = world.ask(length=3)
    world.decoder.wait()
    world.decoder.fails = True
    world.decoder.go()
    assert pending.error.message == "no more"
    world.decoder.fails = False
    again, _ = world.ask(length=3)
    assert again.tokens == 3


def test_a_fault_of_ours_is_an_answer_to_everybody(world, monkeypatch, caplog):
    """Also to those that were about to join."""

    def join(jobs, contexts):
        raise RuntimeError("no memory")

    monkeypatch.setattr(world.executor._batch, "join", join)
    pending, _ = world.ask(length=3)
    assert pending.error.message == "RuntimeError: no memory"
    assert world.executor.texts == 0
    monkeypatch.undo()
    again, _ = world.ask(length=3)
    world.decoder.go()
    assert again.tokens == 3


def test_closing_finishes_what_has_begun(world):
    pending, _ = world.ask(length=10)
    world.decoder.wait()
    closing = threading.Thread(target=world.executor.close)
    closing.start()
    world.decoder.go()
    closing.join(WAIT_SECS)
    assert pending.tokens == 10


def test_what_is_counted(world):
    pending, _ = world.ask(length=3)
    world.decoder.go()
    assert pending.tokens == 3
    world.executor.close()
    found = world.counts.snapshot()
    assert found["decoder"]["batch_stats"] == [{"batch_size": 1, "count": 3}]
    assert found["encoder"] == {
        "execution_count": 1,
        "row_count": 1,
        "batch_stats": [{"batch_size": 1, "count": 1}],
    }
