"""GET …/explain of a real server: batches are cut for reasons the test brings about."""

import numpy as np
import pytest

from shoal.config.options import NamedSetting
from shoal.scheduler.policy import Reason
from shoal.testing.server import running_server
from tests.support.client import Infer
from tests.support.ensembles import chain
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.repositories import EXECUTION_MODES, add_fake, add_model, execution


@pytest.fixture
def fake():
    backend = FakeBackend(may_run_on_loop=True)
    yield backend
    backend.gate.set()


@pytest.fixture
def repository(tmp_path):
    add_fake(tmp_path, "plain", execution("threads"))
    one = "instance_group { count: 1 kind: KIND_CPU }" + execution("threads")
    add_fake(tmp_path, "batched", "dynamic_batching { }" + one, dims="-1")
    add_fake(tmp_path, "two", "version_policy { all { } }", versions=(1, 2))
    add_fake(tmp_path, "in_turns", "sequence_batching { }")
    add_model(tmp_path, "both", chain("plain", first="A", last="B"))
    for mode in EXECUTION_MODES:
        add_fake(tmp_path, f"on_{mode}", "dynamic_batching { }" + execution(mode))
    return tmp_path


@pytest.fixture
def running(repository, fake):
    with running_server(repository, backends=fake.registry()) as server:
        yield server


def infer(rows=1, width=1, name="INPUT0", **parameters):
    return Infer(**parameters).add(name, np.ones((rows, width), np.int32))


def explain(running, model, **headers):
    answer = running.get(f"/v2/models/{model}/explain", headers)
    assert answer.status == 200, answer
    return answer.json


def test_before_the_first_request(running):
    told = explain(running, "plain")
    assert (told["name"], told["version"]) == ("plain", "1")
    assert told["summary"] == "No batch has been executed yet."
    assert told["execution"]["mode"] == "threads"


def test_why_batches_were_cut(running, fake):
    fake.gate.clear()
    calls = [infer().call(running, "batched")]
    assert fake.started.acquire(timeout=WAIT_SECS)  # the only instance is busy from here on
    for rows, width in ((5, 1), (5, 1), (2, 1), (1, 2)):
        calls.append(infer(rows, width).call(running, "batched"))
        running.wait_for_pending("batched", len(calls) - 1)
    fake.gate.set()
    assert [call.response().status for call in calls] == [200] * 5
    told = explain(running, "batched")
    assert told["requests"] == {"succeeded": 5, "failed": 0}
    assert told["last_batches"] == {
        "count": 4,
        "mean_rows": 3.5,
        "rows": {"1": 2, "5": 1, "7": 1},
        "cut_because": {
            Reason.NO_DELAY.value: 2,
            Reason.FULL.value: 1,
            Reason.SHAPE.value: 1,
        },
    }
    assert told["executions_by_rows"] == {"1": 2, "5": 1, "7": 1}
    counted = running.statistics("batched")["inference_stats"]
    spent = {name: counted[name]["ns"] for name in told["percent"]}
    assert spent["queue"] > 0
    for name, percent in told["percent"].items():
        assert percent == pytest.approx(100 * spent[name] / sum(spent.values()), abs=0.1)
    assert "4 batches had 3.5 rows on average, of at most 8" in told["summary"]


def test_requests_that_wait_for_each_other(running, fake):
    fake.gate.clear()
    calls = [infer().call(running, "plain") for _ in range(50)]
    running.wait_for_pending("plain", 49)
    fake.gate.set()
    assert [call.response().status for call in calls] == [200] * 50
    told = explain(running, "plain")
    assert told["last_batches"]["cut_because"] == {Reason.SINGLE.value: 50}
    assert told["change"] == "dynamic_batching { }"


@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_wherever_it_runs(running, mode):
    for _ in range(3):
        assert infer(2).send(running, f"on_{mode}").status == 200
    told = explain(running, f"on_{mode}")
    assert told["last_batches"]["rows"] == {"2": 3}
    assert told["execution"] == {"mode": mode, "reason": "set by the configuration"}


def test_sequences(running):
    start = infer(sequence_id=3, sequence_start=True, sequence_end=True)
    assert start.send(running, "in_turns").status == 200
    told = explain(running, "in_turns")
    assert told["last_batches"]["count"] == 1
    assert told["last_batches"]["rows"] == {"1": 1}


def test_ensembles(running):
    assert infer(name="A").send(running, "both").status == 200
    told = explain(running, "both")
    assert [step["model"] for step in told["steps"]] == ["plain"]
    assert "100 % of it in 'plain'" in told["summary"]
    assert told["advice"].startswith("For 'plain': ")


def test_all_models(running):
    assert infer().send(running, "plain").status == 200
    models = running.get("/v2/explain").json["models"]
    names = [(model["name"], model["version"]) for model in models]
    assert ("two", "1") in names
    assert ("two", "2") in names
    assert len(names) == 8
    (plain,) = [model for model in models if model["name"] == "plain"]
    assert plain["requests"]["succeeded"] == 1


def test_versions(running):
    assert explain(running, "two")["version"] == "2"
    assert explain(running, "two/versions/1")["version"] == "1"


@pytest.mark.parametrize(
    ("place", "headers"),
    [
        ("?format=text", {}),
        ("", {"Accept": "text/plain"}),
        ("", {"Accept": "text/plain; q=0.9, */*"}),
        ("?format=text", {"Accept": "application/json"}),
    ],
)
def test_prose(running, place, headers):
    answer = running.get(f"/v2/models/plain/explain{place}", headers)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert answer.body.decode().splitlines() == [
        "plain, version 1",
        "  No batch has been executed yet.",
        "  Send some requests first.",
    ]
    everything = running.get(f"/v2/explain{place}", headers).body.decode()
    assert everything.count("version") == 8


@pytest.mark.parametrize("headers", [{}, {"Accept": "*/*"}, {"Accept": "text/html, text/plain"}])
def test_json_unless_asked(running, headers):
    answer = running.get("/v2/models/plain/explain", headers)
    assert answer.headers["content-type"] == "application/json"
    assert running.get("/v2/explain?format=json", {"Accept": "text/plain"}).json


def test_wrong_uses(running):
    answer = running.get("/v2/models/nobody/explain")
    assert answer.status == 404
    assert answer.error == "Request for unknown model: 'nobody' is not found"
    answer = running.get("/v2/models/plain/versions/9/explain")
    assert answer.status == 404
    assert answer.error == "Request for unknown model: 'plain' version 9 is not found"
    answer = running.get("/v2/explain?format=yaml")
    assert (answer.status, answer.error) == (
        400,
        "unknown format 'yaml': write format=text or format=json",
    )
    assert running.post("/v2/explain").status == 405


def test_it_belongs_to_the_statistics(repository, fake):
    secret = NamedSetting("statistics", "x-key", "open")
    with running_server(
        repository,
        backends=fake.registry(),
        http_restricted_api=(secret,),
    ) as server:
        for path in ("/v2/explain", "/v2/models/plain/explain"):
            assert server.get(path).status == 403
            assert server.get(path, {"x-key": "open"}).status == 200


def test_no_models(tmp_path):
    with running_server(tmp_path) as server:
        assert server.get("/v2/explain").json == {"models": []}
        assert server.get("/v2/explain?format=text").body == b"No model is loaded.\n"
