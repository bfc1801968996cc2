"""The mark `run_in_frontends`: which models can have it, and what the others are told."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from shoal.models import replicas
from shoal.repository.inspection import Inspection
from shoal.repository.preparation import PreparationSettings
from shoal.scheduler.drain import Load, Waiting
from shoal.statistics.model import ModelStatistics
from tests.support.repositories import add_model, parameter

MARK = parameter("run_in_frontends", "true")
ROW = 'name: "a" data_type: TYPE_FP32 dims: [ 1 ]'
RESULT = ROW.replace('"a"', '"b"')
PLAIN = f'backend: "identity" max_batch_size: 4 input {{ {ROW} }}'
STEP = 'step { model_name: "m" model_version: -1 input_map { key: "a" value: "a" } '
STEP += 'output_map { key: "a_output" value: "b" } }'
ENSEMBLE = f'platform: "ensemble" max_batch_size: 4 input {{ {ROW} }} output {{ {RESULT} }} '
ENSEMBLE += f"ensemble_scheduling {{ {STEP} }}"


def checked(folder, text, settings=None):
    add_model(folder, "other", text + MARK, {"1/model.py": b"class TritonPythonModel: pass"})
    if "ensemble" in text:
        add_model(folder, "m", PLAIN)
    inspection = Inspection([folder], settings or PreparationSettings())
    report = inspection.report("other")
    inspection.close()
    assert not report.problems
    return report


@pytest.mark.parametrize("more", ["", "dynamic_batching { }", "response_cache { enable: true }"])
def test_a_model_that_can_run_in_front_ends(tmp_path, more):
    report = checked(tmp_path, PLAIN + more)
    assert replicas.may_have_replicas(report.spec)
    assert not [text for text in report.warnings if "run_in_frontends" in text]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (PLAIN + "sequence_batching { }", "Remove sequence_batching"),
        (PLAIN + "model_transaction_policy { decoupled: true }", "decoupled to false"),
        (PLAIN + "dynamic_batching { preserve_ordering: true }", "preserve_ordering to false"),
        (PLAIN + parameter("execution_timeout_ms", "100"), "Remove execution_timeout_ms"),
        (PLAIN + parameter("isolation", "process"), "The mark is for model files"),
        (PLAIN.replace("identity", "python") + f"output {{ {ROW} }}", "backend 'python' may keep"),
        (ENSEMBLE, "an ensemble runs other models"),
    ],
    ids=["sequence", "decoupled", "ordered", "limit", "isolated", "python", "ensemble"],
)
def test_a_model_that_cannot(tmp_path, text, why):
    report = checked(tmp_path, text)
    assert not replicas.may_have_replicas(report.spec)
    (warning,) = [text for text in report.warnings if "run_in_frontends" in text]
    assert "parameters['run_in_frontends'] has no effect, because " in warning
    assert why in warning


@pytest.mark.parametrize(
    ("more", "settings", "why"),
    [
        ("response_cache { enable: true }", {"cache": object()}, "response_cache.enable to false"),
        (
            "instance_group { kind: KIND_CPU rate_limiter { priority: 1 } }",
            {"limiter": object()},
            "Remove instance_group.rate_limiter",
        ),
    ],
)
def test_options_of_the_server_matter(tmp_path, more, settings, why):
    report = checked(tmp_path, PLAIN + more, PreparationSettings(**settings))
    (warning,) = [text for text in report.warnings if "run_in_frontends" in text]
    assert why in warning


def test_one_on_gpus_cannot(tmp_path):
    spec = checked(tmp_path, PLAIN).spec
    group = dataclasses.replace(spec.config.instance_group[0], kind="KIND_GPU", gpus=(0,))
    spec = dataclasses.replace(
        spec, config=dataclasses.replace(spec.config, instance_group=(group,))
    )
    assert "Set instance_group.kind to KIND_CPU" in replicas.obstacle(spec)


def test_one_without_the_mark_runs_in_the_engine(tmp_path):
    add_model(tmp_path, "other", PLAIN + parameter("run_in_frontends", "false"))
    inspection = Inspection([tmp_path], PreparationSettings())
    report = inspection.report("other")
    inspection.close()
    assert not replicas.may_have_replicas(report.spec)
    assert not report.warnings


def test_the_load_of_all_front_ends_counts():
    model = SimpleNamespace(statistics=ModelStatistics("m", 1))
    everywhere = replicas.ModelReplicas(model)
    own = Load(Waiting(), [], 2)
    assert everywhere.add_loads(own) == own
    state = replicas.ReplicaState(5, 2, 0, False, "threads", "", 0.0, (), 10, (4, 1))
    everywhere.take("a", (None, [0, 0, 0], tuple(state)))
    on_loop = state._replace(pending=1, waiting_rows=2, running=(), on_loop=True)
    everywhere.take("b", (None, [0, 0, 0], tuple(on_loop)))
    assert everywhere.add_loads(own) == Load(Waiting(6, 12), [4, 1], 3)
    assert model.statistics.pending() == 6
