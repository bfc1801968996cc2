"""Differences of statistics, and models that are composed of others."""

from __future__ import annotations

import itertools

import pytest

from shoal.errors import InvalidArgument
from shoal.perf import model_facts, server_side


def statistics(name, count, *, version="1", queue_ns=10_000, infer_ns=30_000, hits=0):
    """What a model says that has answered `count` requests, a row each."""
    return {
        "name": name,
        "version": version,
        "inference_count": count,
        "execution_count": count // 2,
        "inference_stats": {
            "success": {"count": count, "ns": count * 100_000},
            "queue": {"count": count, "ns": count * queue_ns},
            "compute_input": {"count": count, "ns": count * 5_000},
            "compute_infer": {"count": count, "ns": count * infer_ns},
            "compute_output": {"count": count, "ns": count * 5_000},
            "cache_hit": {"count": hits, "ns": hits * 2_000},
            "cache_miss": {"count": 0, "ns": 0},
        },
    }


def test_a_difference():
    before = server_side.read([statistics("m", 10)])
    after = server_side.read([statistics("m", 30)])
    found = server_side.difference(before, after, ("m", ""))
    assert (found.model.inferences, found.model.executions, found.model.successes) == (20, 10, 20)
    assert found.model.request_us == 100
    assert found.part_us("queue") == 10
    assert found.model.compute_us == 40


def test_versions():
    before = server_side.read([statistics("m", 0), statistics("m", 5, version="2")])
    after = server_side.read([statistics("m", 10), statistics("m", 7, version="2")])
    assert server_side.difference(before, after, ("m", "2")).model.successes == 2
    assert server_side.difference(before, after, ("m", "")).model.successes == 12


def test_a_counter_that_fell_was_started_anew():
    before = server_side.read([statistics("m", 100)])
    after = server_side.read([statistics("m", 7)])
    assert server_side.difference(before, after, ("m", "")).model.successes == 7


def test_nothing_happened():
    same = server_side.read([statistics("m", 100)])
    found = server_side.difference(same, same, ("m", ""))
    assert found.model.request_us == 0
    assert found.part_us("queue") == 0


def test_an_ensemble_spends_its_time_in_its_models():
    before = server_side.read([statistics(name, 0) for name in ("e", "a", "b")])
    after = server_side.read([statistics("e", 10), statistics("a", 10), statistics("b", 20)])
    found = server_side.difference(before, after, ("e", ""), [("a", ""), ("b", "")])
    assert list(found.composing) == [("a", "1"), ("b", "1")]
    assert found.part_us("queue") == 30  # b is asked twice for each request


def test_windows_add_up():
    looks = [server_side.read([statistics("m", count)]) for count in (0, 10, 30)]
    windows = [
        server_side.difference(first, second, ("m", ""))
        for first, second in itertools.pairwise(looks)
    ]
    assert server_side.merge([*windows, None]).model.successes == 30
    assert server_side.merge([None]) is None


# ---- facts about models


METADATA = {
    "name": "m",
    "inputs": [{"name": "A", "datatype": "INT32", "shape": [-1, 16]}],
    "outputs": [{"name": "B", "datatype": "FP32", "shape": [-1, -1]}],
}


def facts(config, configs=None, metadata=METADATA, bls=()):
    known = configs or {}
    return model_facts.read(metadata, config, "", lambda name, _version: known[name], bls)


def test_the_batch_is_taken_off():
    batched, plain = facts({"max_batch_size": 8}), facts({"max_batch_size": 0})
    assert batched.inputs[0].shape == (16,)
    assert plain.inputs[0].shape == (-1, 16)
    assert batched.outputs[0].dynamic
    assert not batched.inputs[0].dynamic


@pytest.mark.parametrize(
    ("max_batch", "batch", "words"),
    [(0, 2, "does not take batches"), (8, 9, "at most 8"), (8, 8, ""), (0, 1, "")],
)
def test_batches(max_batch, batch, words):
    found = facts({"max_batch_size": max_batch})
    if not words:
        found.check_batch(batch)
        return
    with pytest.raises(InvalidArgument, match=words):
        found.check_batch(batch)


def test_kinds_of_models():
    assert facts({"sequence_batching": {"direct": {}}}).sequences
    assert facts({"model_transaction_policy": {"decoupled": True}}).decoupled
    assert facts({"response_cache": {"enable": True}}).cached
    plain = facts({"model_transaction_policy": {"decoupled": False}, "response_cache": {}})
    assert not (plain.sequences)
    assert not (plain.decoupled)
    assert not (plain.cached)
    assert not (plain.ensemble)


def test_ensembles_in_ensembles():
    def ensemble(*names):
        steps = [{"model_name": name, "model_version": -1} for name in names]
        return {"ensemble_scheduling": {"step": steps}}

    configs = {
        "a": {},
        "b": {"response_cache": {"enable": True}},
        "c": {"sequence_batching": {}},
        "inner": ensemble("b", "a"),
    }
    found = facts(ensemble("a", "inner", "a"), configs, bls=[("extra", "3")])
    assert found.composing == (("a", ""), ("b", ""), ("extra", "3"))
    assert found.cached
    assert found.ensemble
