"""Advice as a table: what was seen, and what one change would help."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.config import codec, pbtxt
from shoal.scheduler.explain import Facts, StepFacts, advise, as_text, explain, explain_ensemble
from shoal.scheduler.policy import Reason

CALM = Facts(
    max_batch_size=8,
    scheduling="dynamic",
    instances=2,
    cores=2,
    cuts=[(Reason.NO_DELAY, 1)] * 50,
    requests=10,
    queue_us=10,
    input_us=1,
    compute_us=100,
    output_us=1,
)
BUSY = dataclasses.replace(CALM, queue_us=1000)
SINGLE = [(Reason.SINGLE, 1)] * 50


def cut(reason, rows=1, count=50):
    return [(reason, rows)] * count


def facts(base, **changes):
    return dataclasses.replace(base, **changes)


NOTHING = ("Requests hardly wait; no change is needed.", "")
ONE_MORE = "instance_group [ { count: 2 kind: KIND_CPU } ]"


@pytest.mark.parametrize(
    ("found", "word", "change"),
    [
        (facts(CALM, cuts=()), "Send some requests first", ""),
        (
            facts(BUSY, cuts=cut(Reason.FULL, 8, count=49)),
            "needs 50 batches, and there were 49",
            "",
        ),
        (CALM, *NOTHING),
        # Without a batcher.
        (facts(CALM, scheduling="none", cuts=SINGLE), *NOTHING),
        (facts(BUSY, scheduling="none", cuts=SINGLE), "run alone", "dynamic_batching { }"),
        (facts(BUSY, scheduling="none", max_batch_size=0), "one at a time", ""),
        (facts(BUSY, scheduling="none", max_batch_size=0, instances=1), "for 1 instance", ONE_MORE),
        # Shapes.
        (
            facts(CALM, cuts=cut(Reason.SHAPE)),
            "another shape",
            'parameters { key: "batch_by_shape" value: { string_value: "true" } }',
        ),
        (
            facts(BUSY, cuts=cut(Reason.SHAPE), by_shape=True),
            "even with batch_by_shape",
            'parameters { key: "padding" value: { string_value: "true" } }',
        ),
        (facts(CALM, cuts=cut(Reason.SHAPE, count=20) + cut(Reason.NO_DELAY)), *NOTHING),
        # The delay.
        (
            facts(CALM, cuts=cut(Reason.DELAY), max_delay_us=500, queue_us=510),
            "wait up to 500 µs for others, without success",
            "max_queue_delay_microseconds: 50",
        ),
        (
            facts(CALM, cuts=cut(Reason.DELAY), max_delay_us=90, scheduling="sequence"),
            "in sequence_batching",
            "max_queue_delay_microseconds: 9",
        ),
        (facts(CALM, cuts=cut(Reason.DELAY, 6), max_delay_us=500, queue_us=510), *NOTHING),
        (facts(CALM, cuts=cut(Reason.PREFERRED, 1), max_delay_us=500, queue_us=50), *NOTHING),
        # Full batches.
        (facts(BUSY, cuts=cut(Reason.PREFERRED, 8)), "max_batch_size (8)", "max_batch_size: 16"),
        (facts(BUSY, cuts=cut(Reason.FULL, 5)), "max_batch_size (8)", "max_batch_size: 16"),
        (
            facts(BUSY, cuts=cut(Reason.PREFERRED, 4), preferred_rows=frozenset({2, 4})),
            "have the preferred 4 rows",
            "preferred_batch_size: [ 8 ]",
        ),
        # Room for more.
        (facts(BUSY, instances=1), "for 1 instance on 2 cores", ONE_MORE),
        (
            facts(BUSY, instances=1, kind="KIND_GPU"),
            "for 1 instance: add another",
            "instance_group [ { count: 2 kind: KIND_GPU } ]",
        ),
        (BUSY, "the machine is busy", ""),
        (facts(BUSY, instances=2, kind="KIND_GPU", cores=64), "the machine is busy", ""),
        # Sequences.
        (facts(BUSY, scheduling="sequence", instances=1), "behind other sequences", ONE_MORE),
        (facts(CALM, scheduling="sequence", cuts=cut(Reason.SLOTS, 3)), *NOTHING),
        # Tensors.
        (facts(CALM, input_us=300, output_us=200), "Moving tensors", ""),
        # A queue that nobody would notice.
        (facts(CALM, queue_us=90, compute_us=10), *NOTHING),
    ],
)
def test_advice(found, word, change):
    advice = advise(found)
    assert word in advice.sentence
    assert advice.change == change


@pytest.mark.parametrize(
    "found",
    [
        facts(BUSY, scheduling="none", cuts=SINGLE),
        facts(CALM, cuts=cut(Reason.SHAPE)),
        facts(CALM, cuts=cut(Reason.SHAPE), by_shape=True),
        facts(BUSY, cuts=cut(Reason.PREFERRED, 8)),
        facts(BUSY, instances=1),
    ],
)
def test_a_change_can_be_pasted_into_a_config(found):
    change = advise(found).change
    assert change
    assert codec.to_dict(pbtxt.parse_pbtxt(change, "config.pbtxt"))


def test_numbers_and_words():
    seen = cut(Reason.FULL, 8, count=40) + cut(Reason.NO_DELAY, 2, count=20)
    told = explain(facts(CALM, cuts=seen, rows={8: 20, 2: 5}, failed=3))
    assert told["requests"] == {"succeeded": 10, "failed": 3}
    assert told["last_batches"] == {
        "count": 60,
        "mean_rows": 6.0,
        "rows": {"2": 20, "8": 40},
        "cut_because": {Reason.FULL.value: 40, Reason.NO_DELAY.value: 20},
    }
    assert told["executions_by_rows"] == {"2": 5, "8": 20}
    assert told["mean_us"] == {
        "queue": 10,
        "compute_input": 1,
        "compute_infer": 100,
        "compute_output": 1,
    }
    assert sum(told["percent"].values()) == pytest.approx(100, abs=0.2)
    assert told["summary"] == (
        "The last 60 batches had 6.0 rows on average, of at most 8. They were closed: 40 "
        "because the next request would not fit, 20 because no queue delay is configured. A request "
        "takes 112 µs: 9 % in the queue, 1 % for its inputs, 89 % computing, 1 % for its outputs."
    )
    assert (told["advice"], told["change"]) == NOTHING


def test_one_batch_and_one_reason():
    assert (
        "The only batch had 3 of at most 8 rows."
        in explain(facts(CALM, cuts=[(Reason.DELAY, 3)]))["summary"]
    )
    assert "all because no queue delay is configured" in explain(CALM)["summary"]


def test_before_the_first_request():
    told = explain(Facts(max_batch_size=0))
    assert told["summary"] == "No batch has been executed yet."
    assert told["last_batches"]["mean_rows"] == 0
    assert told["percent"] == dict.fromkeys(told["mean_us"], 0.0)


def test_ensembles_point_at_the_slowest_of_their_models():
    steps = [StepFacts("quick", CALM), StepFacts("slow", facts(BUSY, instances=1))]
    told = explain_ensemble(facts(CALM, cuts=(), requests=4), steps)
    assert "91 % of it in 'slow'" in told["summary"]
    assert told["advice"] == "For 'slow': Requests wait for 1 instance on 2 cores: add another one."
    assert told["change"] == ONE_MORE
    assert [step["model"] for step in told["steps"]] == ["quick", "slow"]
    assert told["steps"][1]["mean_us"]["queue"] == 1000


@pytest.mark.parametrize("steps", [[], [StepFacts("quick", Facts(max_batch_size=1))]])
def test_an_ensemble_that_nobody_asked(steps):
    told = explain_ensemble(Facts(max_batch_size=1), steps)
    assert "no batches of its own" in told["summary"]
    assert "Send some requests first" in told["advice"]


def test_prose():
    told = {"name": "m", "version": "3", **explain(facts(BUSY, instances=1))}
    lines = as_text(told).splitlines()
    assert lines[0] == "m, version 3"
    assert lines[-1].strip() == ONE_MORE
    assert len(as_text({**told, "change": ""}).splitlines()) == 3
