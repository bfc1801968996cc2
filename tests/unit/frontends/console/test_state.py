"""What the console is told: counters as they are, and nothing looked at before it asks."""

import json

import pytest

import shoal.frontends.console.state as module
from shoal.core.readiness import Problem, Readiness
from shoal.core.request import Request
from shoal.frontends.console.state import ConsoleState
from shoal.statistics.gpu import GpuReading
from shoal.statistics.machine import MachineReading
from shoal.statistics.model import FailureReason, ModelStatistics, Moments
from shoal.statistics.recent_errors import RecentErrors
from shoal.wire import json_text

MS = 1_000_000


class Counting:
    def __init__(self):
        self.statistics = ModelStatistics("eel", 3, clock=lambda: 100 * MS)

    def model_statistics(self):
        return iter([self.statistics])

    def in_flight(self):
        return 2

    def readiness(self):
        return Readiness(
            True, (Problem("eel is slow", "eel", blocks=False), Problem("cod is gone", "cod"))
        )

    def server_metadata(self):
        return {"name": "triton", "version": "1", "extensions": []}


class Looked:
    """Stands for the machine; counts the looks at it."""

    made = 0

    def __init__(self):
        Looked.made += 1

    def read(self):
        return MachineReading(cpu_utilization=0.5, memory_total_bytes=10, memory_used_bytes=4)


class Card:
    @staticmethod
    def find():
        return Card()

    def read(self):
        return [GpuReading("GPU-1", utilization=0.25)]


@pytest.fixture
def engine():
    return Counting()


@pytest.fixture
def errors():
    return RecentErrors()


@pytest.fixture
def state(engine, errors, monkeypatch):
    monkeypatch.setattr(module, "Machine", Looked)
    monkeypatch.setattr(module, "Gpus", Card)
    monkeypatch.setattr(Looked, "made", 0)
    return ConsoleState(
        engine, model_control_mode="explicit", addresses=["s3://sea/models"], errors=errors
    )


def test_nothing_is_looked_at_before_somebody_asks(state):
    assert Looked.made == 0
    state.document()
    state.document()
    assert Looked.made == 1


def test_the_document_is_json_and_says_who_it_is(state):
    document = json.loads(json.dumps(state.document()))
    assert document["server"]["name"] == "triton"
    assert document["server"]["model_control_mode"] == "explicit"
    assert (document["server"]["ready"], document["server"]["in_flight"]) == (True, 2)
    slow, gone = ({"text": "eel is slow", "blocks": False}, {"text": "cod is gone", "blocks": True})
    assert document["server"]["problems"] == [slow, gone]
    permitted = state.document(allow=lambda name: name == "eel")
    assert permitted["server"]["problems"] == [slow]
    assert document["server"]["addresses"] == ["s3://sea/models"]
    assert permitted["server"]["addresses"] == []  # for callers who may use all models only
    assert document["machine"]["cpu_utilization"] == 0.5
    assert document["machine"]["cores"] >= 1
    assert document["gpus"][0]["utilization"] == 0.25


def test_counters_and_histograms(state, engine):
    request = Request("eel", {}, None)
    request.start_ns, request.queued_ns, request.rows = 80 * MS, 81 * MS, 4
    moments = Moments(90 * MS, 91 * MS, 98 * MS, 99 * MS)
    engine.statistics.executed([request], 4, moments)
    engine.statistics.failed(request, FailureReason.REJECTED, 100 * MS)
    engine.statistics.pending = lambda: 7
    document = state.document()
    (model,) = document["models"]
    assert (model["name"], model["version"], model["pending"]) == ("eel", "3", 7)
    assert (model["success"], model["rows"], model["executions"]) == (1, 4, 1)
    assert model["failures"]["REJECTED"] == 1
    assert (model["queue_ns"], model["infer_ns"]) == (9 * MS, 7 * MS)
    edges = document["duration_edges_ns"]
    assert len(model["histograms"]["request"]) == len(edges) + 1
    # 20 ms: in the bucket from 10 to 25 ms, and in all that follow.
    assert model["histograms"]["request"][edges.index(25 * MS)] == 1
    assert model["histograms"]["request"][edges.index(10 * MS)] == 0
    assert model["histograms"]["batch"][document["batch_size_edges"].index(4)] == 1


def test_errors_come_with_the_model_they_are_about(state, errors):
    errors.note("HTTP", "POST /v2/models/big%20eel/infer", "400", "wrong")
    errors.note("HTTP", "POST /v2/models/m/versions/99999999999999999999/infer", "400", "too large")
    errors.note("HTTP", "GET /nowhere", "404", "Not Found")
    errors.note("gRPC", "ModelInfer", "NOT_FOUND", "unknown", "eel")
    told = state.document()["errors"]
    assert [entry["model"] for entry in told] == ["eel", "", "", "big eel"]
    assert state.document(told[0]["number"])["errors"] == []


def test_half_a_character_is_no_problem(state, errors):
    errors.note("HTTP", "POST /v2/models/m/generate", "400", "no input '\ud800'")
    (told,) = json_text.loads(json_text.dumps(state.document()))["errors"]
    assert told["text"] == "no input '?'"


def test_what_is_switched_off_is_left_out(engine, errors, monkeypatch):
    monkeypatch.setattr(module, "Machine", None)
    monkeypatch.setattr(module, "Gpus", None)
    document = ConsoleState(engine, cpu=False, gpu=False, errors=errors).document()
    assert (document["machine"], document["gpus"]) == (None, [])
