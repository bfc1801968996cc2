"""Trace settings, and which requests they sample."""

from __future__ import annotations

import json

import pytest

from shoal.config.options.trace import OPENTELEMETRY, OtlpOptions, TraceOptions
from shoal.core.reply import DISCARD
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.errors import InvalidArgument, Unsupported
from shoal.statistics.tracer import Tracer

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0"


def no_header(_name):
    return None


@pytest.fixture
def make(tmp_path):
    made = []

    def build(*levels, file="trace.json", **fields):
        path = str(tmp_path / file) if file else ""
        made.append(Tracer(TraceOptions(levels, file=path, **fields)))
        return made[-1]

    yield build
    for tracer in made:
        tracer.close()


def sampled(tracer, count, model="m", header=no_header):
    """Which of `count` requests are traced, by their number; each is answered at once."""
    found = []
    for number in range(1, count + 1):
        trace = tracer.start(model, header)
        if trace is not None:
            found.append(number)
            request = Request(model, {}, DISCARD)
            trace.attach(request)
            request.reply.send(Response(model, 1))
            trace.finish()
    return found


def written(path):
    return sum("model_name" in item for item in json.loads(path.read_text()))


def test_nothing_is_traced_unless_asked_for(make):
    tracer = Tracer()
    assert not tracer.active
    assert sampled(tracer, 3) == []
    assert tracer.settings() == {
        "trace_level": ["OFF"],
        "trace_rate": ["1000"],
        "trace_count": ["-1"],
        "log_frequency": ["0"],
        "trace_file": [""],
        "trace_mode": ["triton"],
    }


def test_one_in_so_many(make, tmp_path):
    tracer = make("TIMESTAMPS", rate=3)
    assert tracer.active
    assert sampled(tracer, 8) == [3, 6]
    tracer.close()
    assert not tracer.active
    assert written(tmp_path / "trace.json") == 2


def test_so_many_and_no_more(make, tmp_path):
    tracer = make("TIMESTAMPS", rate=2, count=2)
    assert tracer.settings()["trace_count"] == ["2"]
    assert sampled(tracer, 10) == [2, 4]
    assert tracer.settings()["trace_count"] == ["0"]
    assert not tracer.active
    tracer.close()
    assert written(tmp_path / "trace.json.0") == 2
    assert not (tmp_path / "trace.json").exists()


@pytest.mark.parametrize("fields", [{"rate": 0}, {"file": ""}])
def test_settings_that_cannot_work_trace_nothing(make, fields):
    tracer = make("TIMESTAMPS", **{"rate": 1, **fields})
    assert not tracer.active
    assert sampled(tracer, 3) == []


def test_settings_of_one_model(make):
    tracer = make("TIMESTAMPS", rate=4)
    tracer.update("one", {"trace_rate": ["2"]})
    assert sampled(tracer, 5, "one") == [2, 4]
    assert sampled(tracer, 5, "other") == [4]
    tracer.update("one", {"trace_level": ["OFF"]})
    assert sampled(tracer, 5, "one") == []
    assert tracer.active
    tracer.update("one", {"trace_level": None, "trace_rate": None})
    assert tracer.settings("one") == tracer.settings()
    assert sampled(tracer, 3, "one") == [3]  # the count of all goes on where it was


def test_a_model_follows_the_settings_of_all_where_it_says_nothing(make):
    tracer = make("TIMESTAMPS", rate=1)
    tracer.update("one", {"trace_rate": ["12"], "log_frequency": ["34"]})
    tracer.update("", {"trace_rate": ["56"], "trace_count": ["78"], "trace_level": ["OFF"]})
    shown = tracer.settings("one")
    assert (shown["trace_rate"], shown["trace_count"]) == (["12"], ["78"])
    assert (shown["trace_level"], shown["log_frequency"]) == (["OFF"], ["34"])
    tracer.update("", {"trace_rate": None, "trace_count": None})
    shown = tracer.settings()
    assert (shown["trace_rate"], shown["trace_count"]) == (["1"], ["-1"])
    assert tracer.settings("one")["trace_count"] == ["-1"]
    tracer.update("one", {"trace_rate": None})
    assert tracer.settings("one")["trace_rate"] == ["1"]
    assert tracer.settings("one")["log_frequency"] == ["34"]


def test_what_is_left_of_a_count_survives_other_changes(make):
    tracer = make("TIMESTAMPS", rate=1)
    tracer.update("", {"trace_count": ["3"]})
    assert sampled(tracer, 2) == [1, 2]
    tracer.update("", {"log_frequency": ["5"]})
    assert tracer.settings()["trace_count"] == ["1"]
    assert sampled(tracer, 5) == [1]
    tracer.update("", {"trace_count": ["1"]})
    assert sampled(tracer, 5) == [1]


def test_levels_together(make):
    tracer = make("TIMESTAMPS", rate=1)
    tracer.update("", {"trace_level": ["TENSORS", "TIMESTAMPS"]})
    assert tracer.settings()["trace_level"] == ["TIMESTAMPS", "TENSORS"]
    tracer.update("", {"trace_level": ["MAX"]})
    assert tracer.settings()["trace_level"] == ["TIMESTAMPS"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"trace_rate": ["x"]}, "Unable to parse 'trace_rate', got: x"),
        ({"trace_rate": ["1.5"]}, "Unable to parse 'trace_rate', got: 1.5"),
        (
            {"trace_rate": ["10000000000"]},
            "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 10000000000",
        ),
        (
            {"trace_count": ["-2"]},
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: -2",
        ),
        ({"log_frequency": ["1", "2"]}, "expect only 1 value for 'log_frequency'"),
        ({"trace_level": ["OFF", "TENSORS"]}, "Expect only one trace level 'OFF' is specified"),
        (
            {"trace_level": ["LOUD"]},
            "there is no trace level 'LOUD'; use OFF, or TIMESTAMPS and TENSORS",
        ),
        (
            {"trace_mode": ["opentelemetry"]},
            "there is no trace setting 'trace_mode' that can be changed; these can: trace_level, trace_rate, trace_count, log_frequency",
        ),
        (
            {"trace_rate": ["0"]},
            "Attempting to set invalid trace setting :sample rate must be non-zero",
        ),
    ],
)
def test_changes_that_cannot_be(make, changes, text):
    tracer = make("TIMESTAMPS", rate=7)
    before = tracer.settings()
    for model in ("", "one"):
        with pytest.raises(InvalidArgument) as caught:
            tracer.update(model, {"trace_count": ["3"], **changes})
        assert caught.value.message == text
        assert tracer.settings(model) == before


def test_the_file_is_the_operators_choice(make):
    with pytest.raises(Unsupported) as caught:
        make().update("", {"trace_file": ["elsewhere"]})
    assert caught.value.message == (
        "trace file location can not be updated through network protocol"
    )


def test_without_a_file_nothing_can_be_switched_on(make):
    tracer = make(file="", rate=1)
    with pytest.raises(InvalidArgument, match="trace file name is not given"):
        tracer.update("", {"trace_level": ["TIMESTAMPS"]})
    tracer.update("", {"trace_rate": ["0"]})  # off is off


def test_what_was_sampled_before_a_change_is_written_as_it_would_have_been(make, tmp_path):
    tracer = make("TIMESTAMPS", rate=1, log_frequency=10)
    early = tracer.start("m", no_header)
    assert sampled(tracer, 1) == [1]
    tracer.update("", {"log_frequency": ["0"]})
    assert sampled(tracer, 1) == [1]
    early.attach(Request("m", {}, DISCARD))
    early.finish()
    tracer.close()
    assert written(tmp_path / "trace.json") == 1
    assert [written(tmp_path / f"trace.json.{n}") for n in (0, 1)] == [1, 1]


# ---- spans


@pytest.fixture
def spans(make):
    def build(**fields):
        options = OtlpOptions(url="http://127.0.0.1:1", schedule_delay_ms=10**6, max_queue_size=1)
        return make("TIMESTAMPS", mode=OPENTELEMETRY, otlp=options, **fields)

    return build


def header(flag, state=None):
    return {"traceparent": PARENT + str(flag), "tracestate": state}.get


def test_a_caller_that_records_is_always_traced(spans):
    tracer = spans(rate=0)
    assert tracer.active
    assert tracer.start("m", no_header) is None
    assert tracer.start("m", header(0)) is None
    trace = tracer.start("m", header(1, "v=1"))
    assert trace is not None
    assert (trace.context.trace_id, trace.context.state) == (PARENT[3:35], "v=1")


def test_a_caller_that_does_not_record_is_sampled_like_others(spans):
    tracer = spans(rate=2)
    assert [tracer.start("m", header(0)) is not None for _ in range(4)] == [
        *(False, True, False, True)
    ]


def test_a_trace_that_begins_here(spans):
    trace = spans(rate=1).start("m", no_header)
    assert trace.context.span_id == ""
    assert len(trace.context.trace_id) == 32


def test_callers_are_traced_after_the_count_is_used_up(spans):
    tracer = spans(rate=1, count=1)
    assert tracer.start("m", no_header) is not None
    assert tracer.start("m", no_header) is None
    assert tracer.active
    assert tracer.start("m", header(1)) is not None


def test_settings_of_spans(spans):
    tracer = spans(rate=5)
    assert tracer.settings() == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": ["5"],
        "trace_count": ["-1"],
        "trace_mode": ["opentelemetry"],
        "url": ["http://127.0.0.1:1"],
        "resource": ["service.name=triton-inference-server"],
        "bsp_max_queue_size": ["1"],
        "bsp_schedule_delay": ["1000000"],
        "bsp_max_export_batch_size": ["512"],
    }
    tracer.update("m", {"trace_rate": ["0"]})
    assert tracer.settings("m")["trace_rate"] == ["0"]
    with pytest.raises(InvalidArgument, match="spans contain no tensors"):
        tracer.update("", {"trace_level": ["TENSORS"]})
    tracer.update("", {"trace_level": ["OFF"]})
    assert not tracer.active
    assert tracer.start("m", header(1)) is None
