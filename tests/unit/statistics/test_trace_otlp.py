"""Spans: what they say, and how they leave."""

from __future__ import annotations

import json
import queue
import threading

import pytest

from shoal.config.options.trace import OtlpOptions
from shoal.statistics import trace_otlp
from shoal.statistics.trace import FinishedTrace, RequestRecord
from shoal.statistics.trace_context import SpanContext
from shoal.statistics.trace_otlp import OtlpExporter, spans

WAIT_SECS = 20
COMPUTE = (
    *(("COMPUTE_START", 30), ("COMPUTE_INPUT_END", 40)),
    *(("COMPUTE_OUTPUT_START", 50), ("COMPUTE_END", 60)),
)


def record(number, parent=0, name="m", compute=COMPUTE, error="", request_id=""):
    events = (("REQUEST_START", 10), ("QUEUE_START", 20), ("REQUEST_END", 70))
    return RequestRecord(
        number, parent, name, 2, request_id, events, compute, (), f"{number:016x}", error
    )


def make_trace(*records, parent="", state="", error=""):
    events = (("HTTP_RECV_START", 5), ("HTTP_SEND_END", 90))
    context = SpanContext("a" * 32, parent, state=state)
    return FinishedTrace(1, events, records or (record(1),), 1000, context, "f" * 16, error)


def test_the_spans_of_a_trace():
    whole, model, compute = spans(make_trace(record(1, request_id="r"), parent="c" * 16))
    assert (whole["name"], model["name"], compute["name"]) == ("InferRequest", "m", "compute")
    assert {span["traceId"] for span in (whole, model, compute)} == {"a" * 32}
    assert whole["parentSpanId"] == "c" * 16
    assert model["parentSpanId"] == whole["spanId"] == "f" * 16
    assert compute["parentSpanId"] == model["spanId"]
    assert [event["name"] for event in compute["events"]] == [name for name, _ in COMPUTE]
    assert whole["events"] == [
        {"name": "HTTP_RECV_START", "timeUnixNano": "1005"},
        {"name": "HTTP_SEND_END", "timeUnixNano": "1090"},
    ]
    ends = [
        (span["startTimeUnixNano"], span["endTimeUnixNano"]) for span in (whole, model, compute)
    ]
    assert ends == [("1005", "1090"), ("1010", "1070"), ("1030", "1060")]
    assert model["attributes"] == [
        {"key": "triton.model_name", "value": {"stringValue": "m"}},
        {"key": "triton.model_version", "value": {"intValue": "2"}},
        {"key": "triton.trace_id", "value": {"intValue": "1"}},
        {"key": "triton.trace_parent_id", "value": {"intValue": "0"}},
        {"key": "triton.request_id", "value": {"stringValue": "r"}},
    ]
    assert not any("status" in span or "traceState" in span for span in (whole, model, compute))


def test_steps_are_inside_their_ensemble():
    made = list(spans(make_trace(record(1, name="e", compute=()), record(2, 1), record(3, 1))))
    assert [span["name"] for span in made] == ["InferRequest", "e", "m", "compute", "m", "compute"]
    assert [made[2]["parentSpanId"], made[4]["parentSpanId"]] == [made[1]["spanId"]] * 2


def test_errors_and_states():
    made = list(spans(make_trace(record(1, error="it broke"), error="it broke", state="v=1")))
    status = {"code": 2, "message": "it broke"}
    assert [span.get("status") for span in made] == [status, status, None]
    assert {span["traceState"] for span in made} == {"v=1"}


def test_one_that_was_refused():
    """It has no end of its own: the trace's is taken."""
    refused = RequestRecord(1, 0, "m", -1, "", (("REQUEST_START", 10),), (), (), "1" * 16, "")
    _, model = spans(make_trace(refused))
    assert (model["startTimeUnixNano"], model["endTimeUnixNano"]) == ("1010", "1090")


class Collector:
    """Stands for the one spans are sent to."""

    def __init__(self):
        self.posts = queue.Queue()
        self.answers = []  # exceptions to raise, one per post

    def __call__(self, url, body, headers):
        self.posts.put((url, json.loads(body), dict(headers)))
        if self.answers:
            answer = self.answers.pop(0)
            if answer is not None:
                raise answer

    def next(self):
        return self.posts.get(timeout=WAIT_SECS)

    def next_names(self):
        _, body, _ = self.next()
        return [span["name"] for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]]


class Refusal(OSError):
    def __init__(self, code):
        super().__init__("no")
        self.code = code


@pytest.fixture
def collector():
    return Collector()


@pytest.fixture
def make(collector):
    made = []

    def build(**fields):
        options = OtlpOptions(**{"schedule_delay_ms": 10**6, **fields})
        made.append(OtlpExporter(options, collector))
        return made[-1]

    yield build
    for exporter in made:
        exporter.close()


def test_what_is_sent_where(make, collector):
    exporter = make(
        url="localhost:4318/v1/traces",
        resource={"service.name": "fish"},
        headers={"api-key": "k"},
        max_export_batch_size=3,
    )
    exporter.take(make_trace(), last=False)
    url, body, headers = collector.next()
    assert url == "http://localhost:4318/v1/traces"
    assert headers == {"Content-Type": "application/json", "api-key": "k"}
    (resource,) = body["resourceSpans"]
    assert resource["resource"] == {
        "attributes": [{"key": "service.name", "value": {"stringValue": "fish"}}]
    }
    (scope,) = resource["scopeSpans"]
    assert scope["scope"]["name"] == "shoal"
    assert len(scope["spans"]) == 3


def test_batches_are_cut_to_size(make, collector):
    exporter = make(max_export_batch_size=2)
    exporter.take(make_trace(), last=False)
    assert collector.next_names() == ["InferRequest", "m"]
    exporter.close()
    assert collector.next_names() == ["compute"]


def test_a_delay_sends_what_there_is(make, collector):
    exporter = make(schedule_delay_ms=1)
    exporter.take(make_trace(), last=False)
    assert len(collector.next_names()) == 3
    exporter.take(make_trace(), last=False)
    assert len(collector.next_names()) == 3


def test_closing_sends_the_rest(make, collector):
    exporter = make()
    exporter.take(make_trace(), last=False)
    exporter.close()
    assert len(collector.next_names()) == 3
    exporter.take(make_trace(), last=False)  # too late
    assert collector.posts.empty()


def test_a_full_queue_costs_spans_and_a_line_in_the_log(make, collector, caplog):
    exporter = make(max_queue_size=4)
    exporter.take(make_trace(), last=False)
    exporter.take(make_trace(), last=False)
    exporter.take(make_trace(), last=False)
    exporter.close()
    assert len(collector.next_names()) == 6  # whole traces, not bits of them
    assert caplog.text.count("spans of traces were lost") == 1
    assert "3 spans of traces were lost: they come faster than they are sent" in caplog.text


def test_a_busy_collector_is_asked_again(make, collector, monkeypatch):
    monkeypatch.setattr(trace_otlp, "_RETRY_SECS", (0.0, 0.0))
    collector.answers = [Refusal(503), OSError("connection reset"), None]
    exporter = make(max_export_batch_size=3)
    exporter.take(make_trace(), last=False)
    assert [collector.next_names() for _ in range(3)] == [["InferRequest", "m", "compute"]] * 3


@pytest.mark.parametrize(
    ("answers", "posts", "why"),
    [
        ([Refusal(400)], 1, "400 no"),
        ([OSError("nobody there")] * 3, 3, "nobody there"),
        ([ValueError("unknown url type")] * 3, 3, "unknown url type"),
    ],
)
def test_spans_nobody_takes_are_lost(make, collector, caplog, monkeypatch, answers, posts, why):
    monkeypatch.setattr(trace_otlp, "_RETRY_SECS", (0.0, 0.0))
    lost = threading.Event()
    monkeypatch.setattr(
        trace_otlp._logger, "warning", lambda *words: (caplog.records.append(words), lost.set())
    )
    collector.answers = list(answers)
    exporter = make(max_export_batch_size=3)
    exporter.take(make_trace(), last=False)
    assert lost.wait(WAIT_SECS)
    assert collector.posts.qsize() == posts
    assert caplog.records[-1][1:] == (
        3,
        f"http://localhost:4318/v1/traces does not take them: {why}",
    )


def test_nothing_to_send_no_thread(make):
    exporter = make()
    assert exporter._thread is None
    exporter.close()
