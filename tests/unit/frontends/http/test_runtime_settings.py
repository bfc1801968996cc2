"""Trace and log settings over HTTP."""

from __future__ import annotations

import pytest

from shoal.config.options.trace import TraceOptions
from shoal.statistics.tracer import Tracer
from tests.support.runtime_settings import DEFAULT_LOG

DEFAULT = {
    "trace_level": ["TIMESTAMPS"],
    "trace_rate": "5",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "f.json",
    "trace_mode": "triton",
}
ALL, ONE = "/v2/trace/setting", "/v2/models/m/trace/setting"


@pytest.fixture
def traced(front):
    front.engine.tracer = Tracer(TraceOptions(("TIMESTAMPS",), 5, file="f.json"))
    return front


@pytest.mark.parametrize("path", [ALL, ONE])
def test_reading_trace_settings(traced, path):
    answer = traced.ask("GET", path)
    assert (answer.status, answer.json) == (200, DEFAULT)
    assert traced.ask("POST", path).json == DEFAULT
    assert traced.ask("POST", path, {}).json == DEFAULT


def test_changing_trace_settings(traced):
    answer = traced.ask("POST", ONE, {"trace_rate": "2", "trace_level": ["TIMESTAMPS", "TENSORS"]})
    changed = {**DEFAULT, "trace_rate": "2", "trace_level": ["TIMESTAMPS", "TENSORS"]}
    assert (answer.status, answer.json) == (200, changed)
    assert traced.ask("GET", ONE).json == changed
    assert traced.ask("GET", ALL).json == DEFAULT
    answer = traced.ask("POST", ONE, {"trace_rate": None, "trace_level": None})
    assert answer.json == DEFAULT


def test_numbers_and_single_words_are_understood(traced):
    answer = traced.ask("POST", ALL, {"trace_rate": 2, "trace_count": 3, "trace_level": "OFF"})
    assert answer.status == 200
    assert (answer.json["trace_rate"], answer.json["trace_level"]) == ("2", ["OFF"])


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (
            {"trace_file": "x"},
            501,
            "trace file location can not be updated through network protocol",
        ),
        ({"trace_rate": "x"}, 400, "Unable to parse 'trace_rate', got: x"),
        ({"trace_rate": 1.5}, 400, "attempt to access JSON non-string as string: 'trace_rate'"),
        ({"trace_rate": True}, 400, "attempt to access JSON non-string as string: 'trace_rate'"),
        ({"trace_level": [None]}, 400, "attempt to access JSON non-string as string"),
        ({"trace_speed": "1"}, 400, "there is no trace setting 'trace_speed'"),
        ([], 400, "settings are changed with a JSON object"),
        (b"{", 400, "failed to parse the request JSON buffer"),
    ],
)
@pytest.mark.parametrize("path", [ALL, ONE])
def test_trace_settings_that_cannot_be(traced, path, body, status, text):
    answer = traced.ask("POST", path, body)
    assert answer.status == status
    assert answer.error.startswith(text)
    assert traced.ask("GET", path).json == DEFAULT


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_trace_settings_of_no_model(traced, method):
    answer = traced.ask(method, "/v2/models/x/trace/setting", {"trace_file": "y"})
    assert (answer.status, answer.error) == (400, "Request for unknown model : x")
    assert traced.ask(method, "/v2/models/m/versions/1/trace/setting").status == 404


def test_reading_log_settings(front):
    answer = front.ask("GET", "/v2/logging")
    assert (answer.status, answer.json) == (200, DEFAULT_LOG)


@pytest.mark.parametrize(
    "change",
    [
        {"log_info": False},
        {"log_warning": False, "log_error": False},
        {"log_verbose_level": 3, "log_format": "ISO8601"},
    ],
)
def test_changing_log_settings(front, change):
    answer = front.ask("POST", "/v2/logging", {**change, "log_file": None})
    assert (answer.status, answer.json) == (200, {**DEFAULT_LOG, **change})
    assert front.ask("GET", "/v2/logging").json == {**DEFAULT_LOG, **change}


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"log_file": "x"}, 501, "log file location can not be updated through network protocol"),
        ({"log_format": "xml"}, 503, "invalid argument for --log_format, got: xml"),
        ({"log_format": 1}, 400, "expect string for 'log_format'"),
        ({"log_info": "yes"}, 400, "expect boolean for 'log_info'"),
        ({"log_info": 1}, 400, "expect boolean for 'log_info'"),
        ({"log_verbose_level": -1}, 400, "expect int32 for 'log_verbose_level'"),
        ({"log_verbose_level": True}, 400, "expect int32 for 'log_verbose_level'"),
        ({"log_verbose_level": 2**31}, 400, "expect int32 for 'log_verbose_level'"),
        ({"log_loud": True}, 400, "log setting 'log_loud' does not exist"),
        ("[]", 400, "settings are changed with a JSON object"),
    ],
)
def test_log_settings_that_cannot_be(front, body, status, text):
    if isinstance(body, dict):
        body = {"log_warning": False, **body}  # what is right beside it does not happen either
    answer = front.ask("POST", "/v2/logging", body)
    assert answer.status == status
    assert answer.error.startswith(text)
    assert front.ask("GET", "/v2/logging").json == DEFAULT_LOG
