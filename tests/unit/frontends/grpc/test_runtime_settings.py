"""Trace and log settings over gRPC."""

from __future__ import annotations

import pytest

from shoal.config.options.trace import TraceOptions
from shoal.frontends.grpc.status import StatusCode
from shoal.statistics.tracer import Tracer
from shoal.wire.proto import messages
from tests.support.grpc_calls import start
from tests.support.runtime_settings import DEFAULT_LOG
from tests.support.scripted_engine import ScriptedEngine

DEFAULT = {
    "trace_level": ["TIMESTAMPS"],
    "trace_rate": ["5"],
    "trace_count": ["-1"],
    "log_frequency": ["0"],
    "trace_file": ["f.json"],
    "trace_mode": ["triton"],
}
KINDS = {bool: "bool_param", int: "uint32_param", str: "string_param"}


@pytest.fixture
def engine():
    made = ScriptedEngine()
    made.tracer = Tracer(TraceOptions(("TIMESTAMPS",), 5, file="f.json"))
    return made


def call(service, name, request):
    return start(service, name).message(request).half_close()


def trace(service, model="", **settings):
    request = messages.TraceSettingRequest(model_name=model)
    for name, values in settings.items():
        request.settings[name].value.extend(values)
    return call(service, "TraceSetting", request)


def traced(service, model="", **settings):
    done = trace(service, model, **settings)
    assert done.status is StatusCode.OK, done.text
    response = messages.TraceSettingResponse.FromString(done.sent[0])
    return {name: list(setting.value) for name, setting in response.settings.items()}


def log(service, **settings):
    request = messages.LogSettingsRequest()
    for name, value in settings.items():
        if value is None:
            request.settings[name].SetInParent()
        else:
            setattr(request.settings[name], KINDS[type(value)], value)
    return call(service, "LogSettings", request)


def logged(service, **settings):
    done = log(service, **settings)
    assert done.status is StatusCode.OK, done.text
    response = messages.LogSettingsResponse.FromString(done.sent[0])
    return {
        name: getattr(setting, setting.WhichOneof("parameter_choice"))
        for name, setting in response.settings.items()
    }


def test_trace_settings(service):
    assert traced(service) == traced(service, "m") == DEFAULT
    changed = {**DEFAULT, "trace_rate": ["2"], "trace_level": ["TIMESTAMPS", "TENSORS"]}
    assert traced(service, "m", trace_rate=["2"], trace_level=["TENSORS", "TIMESTAMPS"]) == changed
    assert traced(service) == DEFAULT
    assert traced(service, "m", trace_rate=[], trace_level=[]) == DEFAULT


@pytest.mark.parametrize(
    ("settings", "status", "text"),
    [
        (
            {"trace_file": ["x"]},
            StatusCode.UNIMPLEMENTED,
            "trace file location can not be updated through network protocol",
        ),
        (
            {"trace_rate": ["1", "2"]},
            StatusCode.INVALID_ARGUMENT,
            "expect only 1 value for 'trace_rate'",
        ),
        (
            {"trace_count": ["-5"]},
            StatusCode.INVALID_ARGUMENT,
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: -5",
        ),
    ],
)
def test_trace_settings_that_cannot_be(service, settings, status, text):
    done = trace(service, **settings)
    assert (done.status, done.text) == (status, text)
    assert traced(service) == DEFAULT


def test_trace_settings_of_no_model(service):
    done = trace(service, "x", trace_file=["y"])
    assert done.status is StatusCode.INVALID_ARGUMENT
    assert done.text == "Request for unknown model : x"


def test_log_settings(service):
    assert logged(service) == DEFAULT_LOG
    change = {"log_info": False, "log_verbose_level": 2, "log_format": "ISO8601"}
    assert logged(service, **change) == {**DEFAULT_LOG, **change}
    assert logged(service) == {**DEFAULT_LOG, **change}


@pytest.mark.parametrize(
    ("settings", "status", "text"),
    [
        (
            {"log_file": "x"},
            StatusCode.UNIMPLEMENTED,
            "log file location can not be updated through network protocol",
        ),
        ({"log_info": "yes"}, StatusCode.INVALID_ARGUMENT, "expect boolean for 'log_info'"),
        ({"log_error": None}, StatusCode.INVALID_ARGUMENT, "log setting 'log_error' has no value"),
        (
            {"log_format": "xml"},
            StatusCode.INVALID_ARGUMENT,
            "invalid argument for log_format, got: xml; write 'default', 'ISO8601' or 'json'",
        ),
    ],
)
def test_log_settings_that_cannot_be(service, settings, status, text):
    done = log(service, log_warning=False, **settings)
    assert (done.status, done.text) == (status, text)
    assert logged(service) == DEFAULT_LOG
