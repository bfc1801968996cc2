"""Models that load at their first request, and go when memory is needed for others."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from shoal.repository.loader import ModelLoader
from shoal.testing.server import running_server, wait_until
from tests.support.client import Infer, outputs
from tests.support.ensembles import chain
from tests.support.fakes import WAIT_SECS, FakeClock, HeldLoads
from tests.support.repositories import add_fake, add_model

NOT_LOADED = "not loaded: it loads at its first request"
AGAIN = "; it loads again at its next request"
MIB = 1 << 20
ENSEMBLE = chain("first", "second", first="A", last="B")
CALLER = """
backend: "python"
max_batch_size: 0
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1, 1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1, 1 ] }
parameters { key: "python_execution" value: { string_value: "%s" } }
"""
CALLER_CODE = b"""
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            asked = pb_utils.InferenceRequest(
                model_name="other", requested_output_names=["OUTPUT0"], inputs=[given])
            answer = asked.exec()
            if answer.has_error():
                error = pb_utils.TritonError("other: " + answer.error().message())
                responses.append(pb_utils.InferenceResponse(error=error))
            else:
                found = pb_utils.get_output_tensor_by_name(answer, "OUTPUT0")
                responses.append(pb_utils.InferenceResponse([found]))
        return responses
"""


DECOUPLED = """
backend: "python"
model_transaction_policy { decoupled: true }
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
"""
SLOW_ANSWERS = b"""
import threading
import time
from pathlib import Path

import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.folder = Path(args["model_repository"])

    def execute(self, requests):
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy().copy()
            sender = request.get_response_sender()
            threading.Thread(target=self.answer, args=(given, sender), daemon=True).start()

    def answer(self, given, sender):
        (self.folder / "begun").touch()
        while not (self.folder / "go").exists():
            time.sleep(0.01)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", given)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture
def fake():
    backend = HeldLoads()
    yield backend
    backend.gate.set()
    backend.load_gate.set()


@pytest.fixture
def serve(fake):
    def start(*repositories, **options):
        backends = fake.registry()
        options.setdefault("model_control_mode", "lazy")
        return running_server(*repositories, backends=backends, **options)

    return start


def add_heavy(repository, name, mebibytes=64, more=""):
    """A fake model whose file is large, but takes no room on the disk."""
    folder = add_fake(repository, name, more)
    with (folder / "1" / "weights.bin").open("wb") as file:
        file.truncate(mebibytes * MIB)
    return folder


def infer(number=7, name="INPUT0", **parameters):
    return Infer(**parameters).add(name, np.array([[number]], np.int32))


def ask(running, model, number=7, **parameters):
    answer = infer(number, **parameters).send(running, model)
    assert outputs(answer)["OUTPUT0"][0, 0] == number
    return answer


def row(running, name):
    (found,) = [entry for entry in running.index() if entry["name"] == name]
    return found


def loaded(running):
    return [entry["name"] for entry in running.index() if entry.get("state") == "READY"]


class TestFirstUse:
    def test_at_start_every_model_is_known_and_none_loaded(self, repository, fake, serve):
        add_fake(repository, "a")
        add_fake(repository, "b")
        with serve(repository) as running:
            assert running.get("/v2/health/ready").status == 200
            assert running.index() == [
                {"name": name, "state": "UNAVAILABLE", "reason": NOT_LOADED} for name in "ab"
            ]
            assert running.get("/v2/models/a/ready").status == 200  # it can be asked
            assert running.get("/v2/models/a/versions/1/ready").status == 200
            assert running.get("/v2/models/a/versions/2/ready").status == 400
            answer = running.get("/v2/models/a/stats")
            assert (answer.status, answer.error) == (503, f"model 'a' is {NOT_LOADED}")
            assert running.get("/v2/models/stats").json == {"model_stats": []}
            assert running.get("/v2/models/a/trace/setting").status == 200
            assert fake.names == []
            ask(running, "a")
            assert row(running, "a")["state"] == "READY"
            assert loaded(running) == ["a"]
            assert fake.names == ["a"]
            assert running.metric("shoal_on_demand_loads_total", model="a") == 1
            assert running.metric("shoal_on_demand_waiting", model="a") == 0

    @pytest.mark.parametrize("namespaced", [False, True])
    def test_a_request_before_the_models_are_known_waits(
        self, repository, fake, serve, monkeypatch, namespaced
    ):
        known, reached = threading.Event(), threading.Event()
        find = ModelLoader.found

        def found(loader):
            reached.set()
            assert known.wait(WAIT_SECS)
            return find(loader)

        monkeypatch.setattr(ModelLoader, "found", found)
        with serve(repository, start=False, model_namespacing=namespaced) as running:
            running.run(running.server.listen())
            with ThreadPoolExecutor(1) as starting:
                start = starting.submit(running.run, running.server.load())
                assert reached.wait(WAIT_SECS)
                calls = [infer().call(running, name) for name in ("late", "none")]
                assert running.get("/v2/models/late/ready").status != 200
                assert running.get("/v2/health/ready").status == 400
                assert running.get("/v2/health/live").status == 200
                add_fake(repository, "late")
                known.set()
                start.result(WAIT_SECS)
            assert outputs(calls[0].response())["OUTPUT0"].item() == 7
            unknown = calls[1].response()
            assert (unknown.status, unknown.error) == (
                400 if namespaced else 404,
                "Request for unknown model: 'none' is not found",
            )
            assert running.get("/v2/health/ready").status == 200

    @pytest.mark.parametrize("place", ["", "/config", "/versions/1", "/versions/1/config"])
    def test_metadata_and_config_load_too(self, repository, fake, serve, place):
        add_fake(repository, "a")
        with serve(repository) as running:
            assert running.get(f"/v2/models/a{place}").json["name"] == "a"
            assert fake.names == ["a"]

    @pytest.mark.parametrize("kind", ["generate", "generate_stream"])
    def test_generate_loads_too(self, repository, fake, serve, kind):
        add_fake(repository, "a", max_batch_size=0)
        with serve(repository) as running:
            answer = running.post(f"/v2/models/a/{kind}", {"INPUT0": 5})
            assert answer.status == 200
            assert b'"OUTPUT0":5' in answer.body
            assert fake.names == ["a"]

    def test_some_from_the_start(self, repository, serve):
        for name in "abc":
            add_fake(repository, name)
        with serve(repository, load_model=("b",)) as running:
            assert loaded(running) == ["b"]
        with serve(repository, load_model=("*",)) as running:
            assert loaded(running) == ["a", "b", "c"]

    def test_unknown_names(self, repository, fake, serve):
        add_fake(repository, "a")
        with serve(repository) as running:
            for path in ("nothing", ".hidden", "..%2Fmodels", "x" * 300, "a%00"):
                answer = infer().send(running, path)
                assert answer.status == 404, answer
                assert "is not found" in answer.error
            answer = infer().send(running, "a/versions/9")
            assert (answer.status, fake.names) == (404, ["a"])

    def test_a_model_that_came_later_is_found(self, repository, serve):
        with serve(repository) as running:
            assert infer().send(running, "late").status == 404
            add_fake(repository, "late")
            ask(running, "late")

    def test_concurrent_requests_share_the_load(self, repository, fake, serve):
        add_fake(repository, "a")
        fake.load_gate.clear()
        with serve(repository) as running:
            calls = [infer(number).call(running, "a") for number in range(20)]
            calls += [running.call("GET", "/v2/models/a/config")]
            assert fake.loading.acquire(timeout=WAIT_SECS)
            assert running.get("/v2/health/ready").status == 200  # no other request waits
            assert row(running, "a")["state"] == "LOADING"
            fake.load_gate.set()
            answers = [call.response() for call in calls]
            assert [outputs(answer)["OUTPUT0"][0, 0] for answer in answers[:20]] == list(range(20))
            assert answers[20].json["name"] == "a"
            assert fake.names == ["a"]

    def test_a_traced_request_waits_like_any_other(self, repository, fake, serve, tmp_path):
        add_fake(repository, "a")
        with serve(
            repository, trace_level=("TIMESTAMPS",), trace_rate=1, trace_file=str(tmp_path / "t")
        ) as running:
            ask(running, "a")
            assert fake.names == ["a"]

    def test_compressed_and_raw_bodies_wait_too(self, repository, fake, serve):
        import gzip

        add_fake(repository, "a")
        add_fake(repository, "raw", max_batch_size=0)
        with serve(repository) as running:
            body, headers = infer(3).body()
            body = gzip.compress(body + b" " * 20_000)
            headers |= {"Content-Encoding": "gzip"}
            assert running.post("/v2/models/a/infer", body, headers).status == 200
            headers = {"Inference-Header-Content-Length": "0"}
            raw = np.array([9], np.int32).tobytes()
            assert running.post("/v2/models/raw/infer", raw, headers).status == 200
            assert fake.names == ["a", "raw"]


class TestFailures:
    def test_the_loads_own_sentence_and_another_try(self, repository, fake, serve):
        add_fake(repository, "a")
        fake.failure = RuntimeError("the weights are torn")
        fake.load_gate.clear()
        with serve(repository) as running:
            clock = running.server.repository._lazy._loads._clock = FakeClock(0)  # in seconds
            calls = [infer().call(running, "a") for _ in range(3)]
            assert fake.loading.acquire(timeout=WAIT_SECS)
            fake.load_gate.set()
            answers = [call.response() for call in calls]
            for answer in answers:
                assert answer.status == 503
                assert answer.error.startswith("load failed for model 'a': version 1 is at")
                assert "RuntimeError: the weights are torn" in answer.error
            again = infer().send(running, "a")  # the back-off: no load, the same sentence
            assert (again.status, again.error) == (503, answers[0].error)
            assert not fake.loading.acquire(blocking=False)
            assert "the weights are torn" in row(running, "a")["reason"]
            assert running.get("/v2/models/a/ready").status == 400
            assert running.get("/v2/health/ready").status == 200  # the server is as ready as ever

            fake.failure = None
            clock.advance(1)
            ask(running, "a")  # the next try
            assert row(running, "a")["state"] == "READY"
            assert running.get("/v2/models/a/ready").status == 200

    def test_a_config_that_cannot_be_read(self, repository, serve):
        folder = add_fake(repository, "a", "no_such_field: 1")
        with serve(repository) as running:
            answer = infer().send(running, "a")
            assert answer.status == 503
            assert "no_such_field" in answer.error
            add_fake(repository, "a")
            assert folder.exists()
            assert running.load("a").status == 200  # by hand there is no back-off
            ask(running, "a")

    def test_a_client_that_disconnects_while_it_waits(self, repository, fake, serve):
        add_fake(repository, "a")
        fake.load_gate.clear()
        with serve(repository) as running:
            gone = infer(1).call(running, "a")
            stays = infer(2).call(running, "a")
            assert fake.loading.acquire(timeout=WAIT_SECS)
            waiting = partial(running.metric, "shoal_on_demand_waiting", model="a")
            wait_until(lambda: waiting() == 2, "both wait")
            gone.disconnect()
            wait_until(
                lambda: running.server.ports.http.open_connections == 1, "one client is left"
            )
            fake.load_gate.set()
            assert outputs(stays.response())["OUTPUT0"][0, 0] == 2
            assert running.statistics("a")["inference_count"] == 1

    def test_a_request_waits_no_longer_than_its_own_time(self, repository, fake, serve):
        add_fake(repository, "a")
        fake.load_gate.clear()
        with serve(repository) as running:
            answer = infer(timeout=1000).send(running, "a")
            assert (answer.status, answer.error) == (503, "Request timeout expired")
            fake.load_gate.set()
            ask(running, "a")

    def test_the_end_of_the_server_waits_for_a_load(self, repository, fake, serve):
        add_fake(repository, "a")
        fake.load_gate.clear()
        with serve(repository) as running:
            call = infer().call(running, "a")
            assert fake.loading.acquire(timeout=WAIT_SECS)
            call.disconnect()
            threading.Timer(0.1, fake.load_gate.set).start()
        assert fake.open_models == 0


class TestByHand:
    def test_load_and_unload(self, repository, fake, serve):
        add_fake(repository, "a")
        with serve(repository) as running:
            assert running.load("a").status == 200
            assert loaded(running) == ["a"]
            assert running.unload("a").status == 200
            gone = {"name": "a", "version": "1", "state": "UNAVAILABLE"}
            wait_until(lambda: row(running, "a") == gone | {"reason": f"unloaded{AGAIN}"})
            ask(running, "a")
            assert fake.names == ["a", "a"]

    def test_what_a_load_brought_along_stays(self, repository, fake, serve):
        add_fake(repository, "a")
        with serve(repository) as running:
            config = running.get("/v2/models/a/config").json | {"max_batch_size": 3}
            assert running.load("a", config=config).status == 200
            assert running.unload("a").status == 200
            assert running.get("/v2/models/a/config").json["max_batch_size"] == 3


class TestModelsOfModels:
    def test_an_ensemble_brings_its_models(self, repository, fake, serve):
        add_model(repository, "both", ENSEMBLE)
        for name in ("first", "second", "third"):
            add_fake(repository, name)
        with serve(repository) as running:
            answer = infer(4, "A").send(running, "both")
            assert outputs(answer)["B"][0, 0] == 4
            assert loaded(running) == ["both", "first", "second"]
            assert sorted(fake.names) == ["first", "second"]
            assert running.unload("both").status == 200
            ask(running, "second")
            assert sorted(fake.names) == ["first", "second"]  # both are still there
            assert running.unload("first").status == 200
            assert running.load("second").status == 200
            assert loaded(running) == ["second"]  # no request was for the ensemble

    def test_a_model_alone_does_not_bring_its_ensemble_back(self, repository, fake, serve):
        add_model(repository, "both", ENSEMBLE)
        add_fake(repository, "first")
        add_fake(repository, "second")
        with serve(repository) as running:
            assert infer(4, "A").send(running, "both").status == 200
            assert running.unload("first").status == 200  # and with it the ensemble
            assert loaded(running) == ["second"]
            ask(running, "first")
            assert loaded(running) == ["first", "second"]
            assert infer(4, "A").send(running, "both").status == 200
            assert fake.names.count("first") == 2

    def test_an_ensemble_whose_model_fails(self, repository, fake, serve):
        add_model(repository, "both", ENSEMBLE)
        add_fake(repository, "first")
        add_fake(repository, "second")
        fake.failure = RuntimeError("torn")
        with serve(repository) as running:
            answer = infer(4, "A").send(running, "both")
            assert answer.status == 503
            assert "depends on 'first'" in answer.error
            assert "torn" in answer.error

    @pytest.mark.parametrize("execution", ["thread", "process"])
    def test_a_python_model_that_calls_another(self, repository, fake, serve, execution):
        code = {"1/model.py": CALLER_CODE}
        add_model(repository, "caller", CALLER % execution, code)
        add_fake(repository, "other")
        with serve(repository) as running:
            ask(running, "caller", 11)
            assert loaded(running) == ["caller", "other"]
            assert running.unload("other").status == 200
            fake.failure = RuntimeError("torn")
            answer = infer().send(running, "caller")
            assert answer.status == 500
            assert "other: load failed for model 'other'" in answer.error
            again = infer().send(running, "caller")  # the back-off
            assert "other: load failed for model 'other'" in again.error
            assert running.statistics("caller")["memory_usage"][0]["byte_size"] > (
                10 * MIB if execution == "process" else 0
            )


class TestBudget:
    def test_the_least_recently_used_model_is_unloaded(self, repository, fake, serve):
        for name in "abc":
            add_heavy(repository, name)
        with serve(repository, model_memory_budget="150M") as running:
            ask(running, "a")
            ask(running, "b")
            ask(running, "a")
            ask(running, "c")
            wait_until(lambda: loaded(running) == ["a", "c"], "the model b has gone")
            reason = f"unloaded to make room within --model-memory-budget{AGAIN}"
            wait_until(lambda: row(running, "b").get("reason") == reason)
            assert row(running, "a")["reason"].startswith("holds about 6")
            usage = running.statistics("a")["memory_usage"]
            assert [entry["type"] for entry in usage] == ["CPU"]
            assert usage[0]["byte_size"] >= 64 * MIB
            assert running.metric("shoal_model_memory_bytes", model="a", version="1") >= 64 * MIB
            assert running.metric("shoal_model_memory_budget_bytes") == 150 * MIB
            assert running.metric("shoal_model_evictions_total", model="b") == 1
            ask(running, "b")
            wait_until(lambda: loaded(running) == ["b", "c"], "the model a has gone")
            wait_until(lambda: fake.open_models == 2)

    def test_what_is_in_use_stays_until_it_is_done(self, repository, fake, serve):
        add_heavy(repository, "a")
        add_heavy(repository, "b")
        with serve(repository, model_memory_budget="100M") as running:
            fake.gate.clear()
            held = infer(1).call(running, "a")
            assert fake.started.acquire(timeout=WAIT_SECS)
            other = infer(2).call(running, "b")
            assert fake.started.acquire(timeout=WAIT_SECS)
            assert loaded(running) == ["a", "b"]
            fake.gate.set()
            assert outputs(held.response())["OUTPUT0"][0, 0] == 1
            assert outputs(other.response())["OUTPUT0"][0, 0] == 2
            wait_until(lambda: len(loaded(running)) == 1, "one of them has gone")

    def test_a_model_larger_than_the_budget_is_served_alone(self, repository, serve, caplog):
        add_heavy(repository, "huge", 200)
        add_heavy(repository, "a", 10)
        with serve(repository, model_memory_budget="100M") as running:
            ask(running, "a")
            ask(running, "huge")
            wait_until(lambda: loaded(running) == ["huge"], "the other has gone")
            wait_until(lambda: "alone uses more than" in caplog.text)
            ask(running, "huge")
            assert running.metric("shoal_on_demand_loads_total", model="huge") == 1
            ask(running, "a")
            wait_until(lambda: loaded(running) == ["a"], "the large one has gone")

    def test_an_ensemble_is_unloaded_before_its_models(self, repository, fake, serve):
        add_model(repository, "both", ENSEMBLE)
        for name in ("first", "second", "third"):
            add_heavy(repository, name, 40)
        with serve(repository, model_memory_budget="100M") as running:
            assert infer(1, "A").send(running, "both").status == 200
            ask(running, "third")
            wait_until(lambda: len(loaded(running)) == 2, "one part has gone")
            assert "both" not in loaded(running)
            assert infer(1, "A").send(running, "both").status == 200
            wait_until(lambda: loaded(running) == ["both", "first", "second"])

    def test_a_sequence_under_way_keeps_its_model(self, repository, serve):
        more = "sequence_batching { max_sequence_idle_microseconds: 60000000 }"
        add_heavy(repository, "counting", more=more)
        add_heavy(repository, "b")
        add_heavy(repository, "c")
        with serve(repository, model_memory_budget="100M") as running:
            ask(running, "counting", 1, sequence_id=5, sequence_start=True)
            ask(running, "b")
            ask(running, "c")
            wait_until(lambda: loaded(running) == ["c", "counting"], "the model b has gone")
            ask(running, "counting", 2, sequence_id=5, sequence_end=True)
            ask(running, "c")
            wait_until(lambda: loaded(running) == ["c"], "the sequence is over")

    def test_no_request_is_lost_while_models_come_and_go(self, repository, serve):
        for name in "abcd":
            add_heavy(repository, name)
        with serve(repository, model_memory_budget="70M") as running:

            def client(number):
                for turn in range(12):
                    model = "abcd"[(number * 7 + turn * (number + 1)) % 4]
                    given = np.array([[turn]], np.int32)
                    asked = Infer().add("INPUT0", given, binary=True)  # such are remembered
                    answer = asked.want("OUTPUT0", binary_data=True).send(running, model)
                    assert outputs(answer)["OUTPUT0"][0, 0] == turn
                return True

            with ThreadPoolExecutor(4) as pool:
                assert all(pool.map(client, range(4)))
            assert running.metric("nv_inference_pending_request_count", model="x") is None

    def test_a_model_with_unsent_responses_stays_loaded(self, repository, serve):
        """A decoupled model that answers after its execution is over is in use until then."""
        code = {"1/model.py": SLOW_ANSWERS, "1/weights.bin": bytes(64 * MIB)}
        add_model(repository, "later", DECOUPLED, code)
        add_heavy(repository, "b")
        with serve(repository, model_memory_budget="100M") as running:
            call = running.call("POST", "/v2/models/later/generate_stream", {"INPUT0": 5})
            wait_until((repository / "later" / "begun").exists, "the model has begun")
            ask(running, "b")
            assert loaded(running) == ["b", "later"]
            (repository / "later" / "go").touch()
            assert b'"OUTPUT0":5' in call.response().body
            ask(running, "b")
            wait_until(lambda: loaded(running) == ["b"], "what it owed has been answered")


class TestNamespaces:
    def test_names_of_several_repositories(self, tmp_path, serve):
        for team, names in (("eel", "ab"), ("crab", "ac")):
            for name in names:
                add_fake(tmp_path / team, name)
        with serve(tmp_path / "eel", tmp_path / "crab", model_namespacing=True) as running:
            ask(running, "b")
            ask(running, "c")
            answer = infer().send(running, "a")
            assert answer.status == 400
            assert "There are 2 identifiers of model 'a'" in answer.error
            key = str(tmp_path / "crab" / "a").replace("/", "%2F")
            ask(running, key)
            assert infer().send(running, "a").status == 400  # one that is loaded wins nothing
            add_fake(tmp_path / "eel", "late")
            ask(running, "late")


def test_a_budget_needs_lazy_mode(repository, serve):
    with (
        pytest.raises(Exception, match="--model-memory-budget=1G needs"),
        serve(repository, model_control_mode="explicit", model_memory_budget="1G"),
    ):
        pass
