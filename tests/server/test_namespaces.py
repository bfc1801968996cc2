"""Models of equal name in two repositories, in every control mode."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.client import Infer, outputs
from tests.support.repositories import add_model, add_onnx

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input { name: "IN" data_type: TYPE_INT32 dims: [ 16 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 16 ] }
ensemble_scheduling { step {
    model_name: "inner" model_version: -1
    input_map { key: "INPUT0" value: "IN" } input_map { key: "INPUT1" value: "IN" }
    output_map { key: "OUTPUT0" value: "OUT" }
} }
"""
ADD, SUBTRACT = 6, 0  # what OUT is where IN is 3


def subtract():
    """OUTPUT0 and OUTPUT1 change places."""
    built = onnx_models.add_sub("INT32")
    for node in built.graph.node:
        node.output[0] = {"OUTPUT0": "OUTPUT1", "OUTPUT1": "OUTPUT0"}[node.output[0]]
    return built


@pytest.fixture
def one(tmp_path):
    """A repository whose `inner` adds."""
    folder = tmp_path / "one"
    add_onnx(folder, "inner", onnx_models.add_sub("INT32"), "max_batch_size: 8")
    return folder


@pytest.fixture
def two(tmp_path):
    """A repository whose `inner` subtracts."""
    folder = tmp_path / "two"
    add_onnx(folder, "inner", subtract(), "max_batch_size: 8")
    return folder


def serve(*folders, **options):
    return running_server(*folders, model_namespacing=True, **options)


def ask(running, model):
    return Infer().add("IN", np.full((1, 16), 3, np.int32)).send(running, model)


def result(running, model):
    return outputs(ask(running, model))["OUT"][0, 0]


def ask_inner(running, model="inner"):
    array = np.full((1, 16), 3, np.int32)
    return Infer().add("INPUT0", array).add("INPUT1", array).send(running, model)


def test_names_that_are_unique_are_all_there_is_to_know(one, two):
    shutil.move(two / "inner", two / "other")
    add_model(two, "whole", ENSEMBLE)  # its model is in the other repository
    with serve(one, two) as running:
        assert running.get("/v2/health/ready").status == 200
        assert result(running, "whole") == ADD
        assert outputs(ask_inner(running))["OUTPUT0"][0, 0] == ADD
        assert outputs(ask_inner(running, "other"))["OUTPUT0"][0, 0] == SUBTRACT
        assert running.get("/v2/models/inner").json["versions"] == ["1"]
        assert running.get("/v2/models/inner/ready").status == 200
        assert running.statistics("inner")["inference_count"] == 2


def test_ensembles_take_the_model_beside_them(one, two):
    add_model(one, "adds", ENSEMBLE)
    add_model(two, "subtracts", ENSEMBLE)
    with serve(one, two) as running:
        assert running.get("/v2/health/ready").status == 200
        assert (result(running, "adds"), result(running, "subtracts")) == (ADD, SUBTRACT)
        for answer in (ask_inner(running), running.get("/v2/models/inner")):
            assert answer.status == 400
            assert answer.error.startswith(
                "There are 2 identifiers of model 'inner' in global map, model namespace must be "
                "provided to resolve ambiguity."
            )
        rows = [row["name"] for row in running.index()]
        assert rows == ["adds", "inner", "inner", "subtracts"]
        path = f"{one.as_posix()}/inner".replace("/", "%2F")
        assert outputs(ask_inner(running, path))["OUTPUT0"][0, 0] == ADD


def test_unknown_names(one, two):
    with serve(one, two) as running:
        answer = ask(running, "nothing")
        text = "Request for unknown model: 'nothing' is not found"
        assert (answer.status, answer.error) == (400, text)


def test_metrics_distinguish_them(one, two):
    with serve(one, two) as running:
        for folder in (one, two):
            labels = {"model": "inner", "version": "1", "namespace": folder.as_posix()}
            assert running.metric("nv_inference_count", **labels) == 0


def test_without_namespaces_such_names_are_a_mistake(one, two):
    with running_server(one, two, exit_on_error=False) as running:
        (row,) = running.index()
        assert row["reason"] == "model appears in two or more repositories"


def test_explicit_control(one, two):
    add_model(one, "adds", ENSEMBLE)
    add_model(two, "subtracts", ENSEMBLE)
    with serve(one, two, model_control_mode="explicit") as running:
        assert running.load("adds").status == 200
        assert result(running, "adds") == ADD
        assert outputs(ask_inner(running))["OUTPUT0"][0, 0] == ADD  # the other is not loaded
        assert running.load("subtracts").status == 200
        assert (result(running, "adds"), result(running, "subtracts")) == (ADD, SUBTRACT)
        assert ask_inner(running).status == 400
        assert running.unload("inner").status == 200
        assert ask(running, "adds").status == 404
        assert ask_inner(running).status == 404
        refused = running.load("inner", config={"max_batch_size": 4})
        assert (refused.status, "several models 'inner'" in refused.error) == (400, True)
        assert running.load("inner").status == 200
        assert (result(running, "adds"), result(running, "subtracts")) == (ADD, SUBTRACT)


def test_load_at_start(one, two):
    with serve(one, two, model_control_mode="explicit", load_model=("inner",)) as running:
        assert [row["state"] for row in running.index()] == ["READY", "READY"]


def test_ensembles_of_equal_name(one, two):
    add_model(one, "whole", ENSEMBLE)
    add_model(two, "whole", ENSEMBLE)
    with serve(one, two, model_control_mode="explicit") as running:
        assert running.load("whole").status == 200
        assert "ambiguity" in ask(running, "whole").error


def test_a_model_that_is_loaded_and_unloaded(one, two, tmp_path):
    """Without its own model an ensemble takes the other; when it is back, its own again."""
    add_model(one, "adds", ENSEMBLE)
    add_model(two, "subtracts", ENSEMBLE)
    aside = tmp_path / "aside"
    with serve(one, two, model_control_mode="poll", repository_poll_secs=0.1) as running:
        assert result(running, "adds") == ADD
        shutil.move(one / "inner", aside)

        def now(model, expected):
            answer = ask(running, model)
            return answer.status == 200 and outputs(answer)["OUT"][0, 0] == expected

        wait_until(lambda: now("adds", SUBTRACT), "the ensemble takes the other model")
        assert result(running, "subtracts") == SUBTRACT
        wait_until(lambda: ask_inner(running).status == 200, "the name is unique now")
        shutil.move(aside, one / "inner")
        wait_until(lambda: now("adds", ADD), "the ensemble takes its own model again")
        assert result(running, "subtracts") == SUBTRACT
        wait_until(lambda: ask_inner(running).status == 400, "the name is ambiguous again")
