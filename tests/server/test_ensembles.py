"""Ensembles over HTTP: a graph of models that clients see as one."""

from __future__ import annotations

import contextlib
from functools import partial

import numpy as np
import pytest

from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.client import Infer, outputs
from tests.support.ensembles import chain, ensemble, tensors
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import EXECUTION_MODES, add_fake, add_model, add_onnx, execution


@pytest.fixture
def serve(repository, fake):
    """Start the server once the test has filled the repository."""
    with contextlib.ExitStack() as servers:

        def start(**options):
            options.setdefault("backends", fake.registry())
            return servers.enter_context(running_server(repository, **options))

        yield start
        fake.gate.set()


def number(value, name="IN"):
    return Infer().add(name, np.array([[value]], np.int32))


@pytest.fixture(scope="module", params=EXECUTION_MODES)
def sums(request, tmp_path_factory):
    """Ensembles of ONNX models: sums and differences, one after the other and side by side."""
    folder = tmp_path_factory.mktemp("sums")
    mode = execution(request.param)
    two = (
        tensors("input", ["A", "B"], dims="16"),
        tensors("output", ["SUM", "DIFFERENCE"], dims="16"),
    )
    add_onnx(
        folder,
        "sum",
        onnx_models.add_sub("INT32"),
        f"max_batch_size: 8 version_policy {{ all {{ }} }} {mode}",
        versions=(1, 2),
    )
    # (A + B) and (A - B), then the sum and the difference of those: 2A and 2B.
    twice = ensemble(
        ("sum", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT0": "s", "OUTPUT1": "d"}),
        ("sum", {"INPUT0": "s", "INPUT1": "d"}, {"OUTPUT0": "SUM", "OUTPUT1": "DIFFERENCE"}),
        inputs=two[0],
        outputs=two[1],
    )
    add_model(folder, "twice", twice)
    pinned = ensemble(
        ("sum", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT0": "SUM"}, 1),
        ("sum", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT1": "DIFFERENCE"}, 2),
        inputs=two[0],
        outputs=two[1],
    )
    add_model(folder, "pinned", pinned)
    nested = ensemble(
        ("twice", {"A": "A", "B": "B"}, {"SUM": "s", "DIFFERENCE": "d"}),
        ("pinned", {"A": "s", "B": "d"}, {"SUM": "SUM", "DIFFERENCE": "DIFFERENCE"}),
        inputs=two[0],
        outputs=two[1],
    )
    add_model(folder, "nested", nested)
    with running_server(folder) as running:
        yield running


def rows(first, second):
    return np.array([[first] * 16], np.int32), np.array([[second] * 16], np.int32)


def ask(running, model, first, second, *wanted, binary=False):
    a, b = rows(first, second)
    infer = Infer().add("A", a, binary=binary).add("B", b, binary=binary)
    for name in wanted:
        infer.want(name, binary_data=binary)
    found = outputs(infer.send(running, model))
    return {name: int(array[0, 0]) for name, array in found.items()}


class TestSums:
    @pytest.mark.parametrize("binary", [False, True])
    def test_one_after_the_other(self, sums, binary):
        for first in range(3):  # the later ones may go by a plan
            answer = ask(sums, "twice", first, 5, "SUM", "DIFFERENCE", binary=binary)
            assert answer == {"SUM": 2 * first, "DIFFERENCE": 10}

    def test_an_ensemble_of_ensembles(self, sums):
        assert ask(sums, "nested", 3, 4) == {"SUM": 14, "DIFFERENCE": -2}

    def test_only_the_steps_that_are_needed_run(self, sums):
        before = [sums.statistics("sum", version)["execution_count"] for version in (1, 2)]
        assert ask(sums, "pinned", 3, 4, "DIFFERENCE") == {"DIFFERENCE": -1}
        after = [sums.statistics("sum", version)["execution_count"] for version in (1, 2)]
        assert after == [before[0], before[1] + 1]

    def test_statistics_add_up(self, sums):
        for _ in range(3):
            ask(sums, "twice", 1, 2)
        before = sums.statistics("sum", 2), sums.statistics("twice")
        for _ in range(5):
            ask(sums, "twice", 1, 2)
        after = sums.statistics("sum", 2), sums.statistics("twice")

        def grown(which, *path):
            first, last = before[which], after[which]
            for key in path:
                first, last = first[key], last[key]
            return last - first

        assert grown(1, "execution_count") == grown(1, "inference_count") == 5
        assert grown(0, "execution_count") == 10
        for part in ("compute_input", "compute_infer", "compute_output"):
            assert grown(1, "inference_stats", part, "ns") == grown(
                0, "inference_stats", part, "ns"
            )
            assert grown(1, "inference_stats", part, "count") == 5
        assert grown(1, "inference_stats", "success", "count") == 5
        assert grown(1, "inference_stats", "queue", "count") == 5
        spent = grown(1, "inference_stats", "success", "ns")
        assert spent > grown(1, "inference_stats", "compute_infer", "ns")

    def test_metrics(self, sums):
        ask(sums, "twice", 1, 2)
        labels = {"model": "twice", "version": "1"}
        assert sums.metric("nv_inference_request_success", **labels) >= 1
        assert sums.metric("nv_inference_pending_request_count", **labels) == 0

    def test_metadata_and_config(self, sums):
        metadata = sums.get("/v2/models/twice").json
        assert metadata["platform"] == "ensemble"
        assert [tensor["name"] for tensor in metadata["outputs"]] == ["SUM", "DIFFERENCE"]
        config = sums.get("/v2/models/pinned/config").json
        steps = config["ensemble_scheduling"]["step"]
        assert [(step["model_name"], step["model_version"]) for step in steps] == [
            ("sum", 1),
            ("sum", 2),
        ]
        assert steps[0]["input_map"] == {"INPUT0": "A", "INPUT1": "B"}
        assert "instance_group" not in config or config["instance_group"] == []

    def test_a_wrong_request_is_refused_at_the_door(self, sums):
        a, _ = rows(1, 1)
        answer = Infer().add("A", a).send(sums, "twice")
        assert answer.status == 400
        assert "expected 2 inputs but got 1 inputs for model 'twice'" in answer.error


class TestSteps:
    def test_tensors_reach_the_next_model_without_a_copy(self, serve, repository, fake):
        made = np.arange(100_000, dtype=np.int32).reshape(1, 100_000)
        fake.compute = lambda inputs, names: [made for _ in names]
        for name in ("one", "two"):
            add_fake(repository, name, dims="-1")
        add_model(repository, "pipe", chain("one", "two", dims="-1"))
        running = serve()
        answer = outputs(Infer().add("IN", made, binary=True).send(running, "pipe"))
        assert np.array_equal(answer["OUT"], made)
        _, second = fake.batches
        assert np.shares_memory(second["INPUT0"], made)

    def test_a_step_is_batched_with_other_traffic(self, serve, repository, fake):
        batching = "\ndynamic_batching { }"
        add_fake(repository, "first", execution("threads"))
        add_fake(repository, "shared", batching + execution("threads"))
        add_model(repository, "pipe", chain("first", "shared"))
        running = serve()
        fake.gate.clear()
        busy = number(1, "INPUT0").call(running, "shared")
        assert fake.started.acquire(timeout=WAIT_SECS)
        direct = number(2, "INPUT0").call(running, "shared")
        running.wait_for_pending("shared", 1)
        through = number(3).call(running, "pipe")
        assert fake.started.acquire(timeout=WAIT_SECS)  # in the first model
        fake.gate.set()
        assert busy.response().status == 200
        assert outputs(direct.response())["OUTPUT0"].tolist() == [[2]]
        assert outputs(through.response())["OUT"].tolist() == [[3]]
        stats = running.statistics("shared")
        assert stats["inference_count"] == 3

    def test_branches_run_side_by_side(self, serve, repository, fake):
        add_fake(repository, "left", execution("threads"))
        add_fake(repository, "right", execution("threads"))
        config = ensemble(
            ("left", {"INPUT0": "IN"}, {"OUTPUT0": "A"}),
            ("right", {"INPUT0": "IN"}, {"OUTPUT0": "B"}),
            inputs=tensors("input", ["IN"]),
            outputs=tensors("output", ["A", "B"]),
        )
        add_model(repository, "fork", config)
        running = serve()
        fake.gate.clear()
        call = number(5).call(running, "fork")
        for _ in range(2):  # both have begun, and none has ended
            assert fake.started.acquire(timeout=WAIT_SECS)
        fake.gate.set()
        found = outputs(call.response())
        assert {name: array.tolist() for name, array in found.items()} == {"A": [[5]], "B": [[5]]}

    def test_batches_go_through_models_without_them_and_back(self, serve, repository):
        add_fake(repository, "batching", dims="2")
        add_fake(repository, "whole", dims="-1, 2", max_batch_size=0)
        add_model(repository, "mixed", chain("batching", "whole", "batching", dims="2"))
        add_fake(repository, "single", dims="2", max_batch_size=0)
        add_model(
            repository,
            "one",
            chain("single", "batching", "single", dims="2", max_batch_size=0),
        )
        running = serve()
        array = np.arange(6, dtype=np.int32).reshape(3, 2)
        found = outputs(Infer().add("IN", array).send(running, "mixed"))
        assert found["OUT"].tolist() == array.tolist()
        found = outputs(Infer().add("IN", array[0]).send(running, "one"))
        assert found["OUT"].tolist() == [0, 1]  # it came and went without a batch dimension

    def test_an_ordered_model_twice_in_a_row(self, serve, repository):
        ordered = "\ndynamic_batching { preserve_ordering: true }"
        add_fake(repository, "ordered", ordered + execution("threads"))
        add_model(repository, "pipe", chain("ordered", "ordered", "ordered"))
        running = serve()
        calls = [number(value).call(running, "pipe") for value in range(8)]
        found = [outputs(call.response())["OUT"].tolist() for call in calls]
        assert found == [[[value]] for value in range(8)]

    def test_labels_of_the_models(self, serve, repository):
        scores = onnx_models.identity("FP32", dims=(3,))
        labelled = (
            "max_batch_size: 8\n"
            'input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 3 ] }\n'
            'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "l.txt" }'
        )
        add_onnx(repository, "scores", scores, labelled, files={"l.txt": b"eel\nray\ncod\n"})
        config = ensemble(
            ("scores", {"INPUT0": "IN"}, {"OUTPUT0": "OUT"}),
            inputs=tensors("input", ["IN"], "FP32", "3"),
            outputs=tensors("output", ["OUT"], "FP32", "3"),
        )
        add_model(repository, "theirs", config)
        own = config.replace(
            "dims: [ 3 ] }\nensemble", 'dims: [ 3 ] label_filename: "own.txt" }\nensemble'
        )
        add_model(repository, "own", own, {"own.txt": b"a\nb\nc\n"})
        running = serve()
        infer = Infer().add("IN", np.array([[0.1, 0.7, 0.2]], np.float32))
        infer.want("OUT", classification=1)
        for model, label in (("theirs", b"ray"), ("own", b"b")):
            (best,) = outputs(infer.send(running, model))["OUT"][0]
            assert best.endswith(b":1:" + label)


class TestTrouble:
    def test_a_step_that_fails(self, serve, repository):
        picker = onnx_models.picker(size=4)
        add_onnx(repository, "picker", picker, "max_batch_size: 8")
        config = ensemble(
            ("picker", {"INPUT0": "IN"}, {"OUTPUT0": "mid"}),
            ("picker", {"INPUT0": "mid"}, {"OUTPUT0": "OUT"}),
            inputs=tensors("input", ["IN"], "INT64"),
            outputs=tensors("output", ["OUT"], "INT64"),
        )
        add_model(repository, "pipe", config)
        running = serve()
        good = Infer().add("IN", np.array([[0]], np.int64)).send(running, "pipe")
        assert outputs(good)["OUT"].tolist() == [[0]]
        bad = Infer().add("IN", np.array([[1]], np.int64)).send(running, "pipe")  # 10 is no index
        assert bad.status == 500
        assert bad.error.startswith("in ensemble 'pipe', ")
        assert "indices element out of data bounds" in bad.error
        assert running.statistics("pipe")["inference_stats"]["fail"]["count"] == 1
        assert running.statistics("picker")["inference_stats"]["fail"]["count"] == 1
        failures = partial(running.metric, "nv_inference_request_failure", version="1")
        assert failures(model="picker", reason="BACKEND") == 1
        assert failures(model="pipe", reason="OTHER") == 1  # whatever the step's reason is
        assert failures(model="pipe", reason="BACKEND") == 0
        assert running.statistics("picker")["inference_stats"]["success"]["count"] == 3

    def test_a_queue_that_is_full(self, serve, repository, fake):
        full = "\ndynamic_batching { default_queue_policy { max_queue_size: 1 } }"
        add_fake(repository, "slow", full + execution("threads"))
        add_model(repository, "pipe", chain("slow"))
        running = serve()
        fake.gate.clear()
        calls = [number(1).call(running, "pipe")]
        assert fake.started.acquire(timeout=WAIT_SECS)
        calls.append(number(2).call(running, "pipe"))
        running.wait_for_pending("slow", 1)
        refused = number(3).send(running, "pipe")
        assert refused.status == 503
        assert "in ensemble 'pipe', " in refused.error
        assert "Exceeds maximum queue size" in refused.error
        fake.gate.set()
        assert [call.response().status for call in calls] == [200, 200]

    def test_a_client_that_disconnects(self, serve, repository, fake):
        for name in ("first", "second"):
            add_fake(repository, name, execution("threads"))
        add_model(repository, "pipe", chain("first", "second"))
        running = serve()
        fake.gate.clear()
        busy = number(1, "INPUT0").call(running, "first")
        assert fake.started.acquire(timeout=WAIT_SECS)
        call = number(2).call(running, "pipe")
        running.wait_for_pending("first", 1)
        call.disconnect()

        def failed(model):
            return running.statistics(model)["inference_stats"]["fail"]["count"]

        wait_until(lambda: failed("pipe") == 1, "the request has ended")
        assert failed("first") == 1  # it left the queue
        wait_until(lambda: running.model("pipe").in_flight() == 0, "nothing is left of it")
        fake.gate.set()
        assert busy.response().status == 200
        assert running.statistics("second")["execution_count"] == 0

    def test_too_large_a_batch_for_a_model(self, serve, repository):
        add_fake(repository, "whole", dims="2, 1", max_batch_size=0)
        add_model(repository, "pipe", chain("whole"))
        running = serve()
        three = Infer().add("IN", np.zeros((3, 1), np.int32)).send(running, "pipe")
        assert three.status == 400
        assert "in ensemble 'pipe', " in three.error
        assert "unexpected shape for input 'INPUT0' for model 'whole'" in three.error

    def test_no_more_in_flight_than_allowed(self, serve, repository, fake):
        add_fake(repository, "slow", execution("threads") + "\ninstance_group { count: 4 }")
        add_model(repository, "pipe", chain("slow", more="max_inflight_requests: 2"))
        running = serve()
        fake.gate.clear()
        calls = [number(value).call(running, "pipe") for value in range(6)]
        for _ in range(2):
            assert fake.started.acquire(timeout=WAIT_SECS)
        pipe = running.model("pipe")
        wait_until(lambda: pipe.in_flight() == 6, "all have come")
        assert running.model("slow").in_flight() == 2
        fake.gate.set()
        assert [outputs(call.response())["OUT"].tolist() for call in calls] == [
            [[value]] for value in range(6)
        ]


class TestControl:
    def test_load_and_unload(self, serve, repository):
        for name in ("a", "b"):
            add_fake(repository, name)
        add_model(repository, "pipe", chain("a", "b"))
        running = serve(model_control_mode="explicit")
        assert running.load("pipe").status == 200
        assert [running.states(name) for name in ("pipe", "a", "b")] == [{"1": "READY"}] * 3
        assert running.unload("a").status == 200
        wait_until(lambda: running.states("pipe") == {"1": "UNAVAILABLE"})
        assert running.get("/v2/models/pipe/ready").status != 200
        assert running.get("/v2/health/ready").status == 200
        refused = number(1).send(running, "pipe")
        assert refused.status == 404
        assert running.load("a").status == 200
        assert outputs(number(1).send(running, "pipe"))["OUT"].tolist() == [[1]]
        body = {"parameters": {"unload_dependents": True}}
        assert running.post("/v2/repository/models/pipe/unload", body).status == 200
        # Somebody asked for `a` by name; `b` came with the ensemble and goes with it.
        for name, state in {"pipe": "UNAVAILABLE", "b": "UNAVAILABLE", "a": "READY"}.items():
            wait_until(lambda at=(name, state): running.states(at[0]) == {"1": at[1]}, name)

    def test_a_graph_that_does_not_fit_is_refused_at_load(self, serve, repository):
        add_fake(repository, "a")
        add_fake(repository, "wide", dims="3")
        add_model(repository, "pipe", chain("a", "wide"))
        running = serve(model_control_mode="explicit")
        answer = running.load("pipe")
        assert answer.status == 400
        assert "pipe/config.pbtxt: ensemble_scheduling.step[1].input_map: " in answer.error
        assert (
            "ensemble tensor t0: inconsistent shape: [-1,1] is inferred from model a"
            in answer.error
        )

    def test_models_change_under_load(self, serve, repository):
        """Requests in flight while a model is replaced again and again: none is lost."""
        for name in ("a", "b"):
            add_fake(repository, name)
        add_model(repository, "pipe", chain("a", "b"))
        running = serve(model_control_mode="explicit", load_model=("pipe",))
        for turn in range(10):
            calls = [number(value).call(running, "pipe") for value in range(5)]
            (repository / "b" / "1" / "weights").write_text(str(turn))
            assert running.load("b").status == 200
            assert [outputs(call.response())["OUT"].tolist() for call in calls] == [
                [[value]] for value in range(5)
            ]
