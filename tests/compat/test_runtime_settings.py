"""tritonclient, unchanged, asks for trace and log settings and changes them, over both protocols."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcclient_aio
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from shoal.config.options import NamedSetting
from shoal.testing.server import running_server, wait_until
from tests.support import onnx_models
from tests.support.repositories import add_onnx
from tests.support.runtime_settings import DEFAULT_LOG

TRACE = {
    "trace_level": ["TIMESTAMPS"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_mode": "triton",
}
CLEAR = dict.fromkeys(("trace_level", "trace_rate", "trace_count", "log_frequency"))


class OverHttp:
    def __init__(self, running):
        self.client = httpclient.InferenceServerClient(running.http_address)
        self.module = httpclient

    def trace(self, model=None, **settings):
        if not settings:
            return self.client.get_trace_settings(model)
        return self.client.update_trace_settings(model, settings)

    def log(self, **settings):
        if not settings:
            return self.client.get_log_settings()
        return self.client.update_log_settings(settings)


class OverGrpc:
    def __init__(self, running):
        self.client = grpcclient.InferenceServerClient(running.grpc_address)
        self.module = grpcclient

    def trace(self, model=None, **settings):
        if settings:
            answer = self.client.update_trace_settings(model, settings)
        else:
            answer = self.client.get_trace_settings(model)
        found = {name: list(setting.value) for name, setting in answer.settings.items()}
        return {
            name: values if name == "trace_level" else values[0] for name, values in found.items()
        }

    def log(self, **settings):
        if settings:
            answer = self.client.update_log_settings(settings)
        else:
            answer = self.client.get_log_settings()
        return {
            name: getattr(setting, setting.WhichOneof("parameter_choice"))
            for name, setting in answer.settings.items()
        }


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("trace") / "trace.json"


@pytest.fixture(scope="module", params=["native", "grpcio"])
def running(request, tmp_path_factory, file):
    folder = tmp_path_factory.mktemp("models")
    add_onnx(folder, "sum", onnx_models.add_sub("INT32"), "max_batch_size: 8")
    traced = (NamedSetting("triton", "file", str(file)), NamedSetting("", "level", "TIMESTAMPS"))
    with running_server(folder, trace_config=traced, grpc_transport=request.param) as made:
        yield made


@pytest.fixture(params=[OverHttp, OverGrpc])
def over(request, running):
    made = request.param(running)
    yield made
    made.trace("sum", **CLEAR)
    made.trace(**CLEAR)
    made.log(**{name: value for name, value in DEFAULT_LOG.items() if name != "log_file"})
    made.client.close()


def test_trace_settings(over, file):
    expected = {**TRACE, "trace_file": str(file)}
    assert over.trace() == over.trace("sum") == expected
    for_sum = {"trace_rate": "12", "log_frequency": "34"}
    assert over.trace("sum", **for_sum) == {**expected, **for_sum}
    for_all = {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "56", "trace_count": "78"}
    assert over.trace(**for_all) == {**expected, **for_all}
    assert over.trace("sum") == {**expected, **for_all, **for_sum}
    assert over.trace("sum", **CLEAR) == {**expected, **for_all}
    assert over.trace(**CLEAR) == expected


@pytest.mark.parametrize(
    ("model", "settings", "text"),
    [
        (None, {"trace_file": "x"}, "trace file location can not be updated through network"),
        ("sum", {"trace_rate": "-1"}, "Unable to parse 'trace_rate', value is out of range"),
        ("sum", {"trace_count": "many"}, "Unable to parse 'trace_count', got: many"),
        ("nothing", {"trace_rate": "1"}, "Request for unknown model : nothing"),
    ],
)
def test_trace_settings_that_cannot_be(over, model, settings, text):
    with pytest.raises(InferenceServerException, match=text):
        over.trace(model, **settings)


def test_trace_settings_of_no_model(over):
    with pytest.raises(InferenceServerException, match="Request for unknown model : nothing"):
        over.trace("nothing")


def test_the_client_can_have_its_requests_traced(over, file):
    for written in file.parent.iterdir():
        written.unlink()
    number = over.trace("sum", trace_rate="1", trace_count="2", log_frequency="2")["trace_count"]
    assert number == "2"
    tensors = []
    for name in ("INPUT0", "INPUT1"):
        tensor = over.module.InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(np.ones((1, 16), np.int32))
        tensors.append(tensor)
    for _ in range(3):
        over.client.infer("sum", tensors, headers={})
    assert over.trace("sum")["trace_count"] == "0"
    # They are written in the background; nothing of this may come in the midst of another test.
    wait_until(lambda: len(list(file.parent.iterdir())) == 1, "one file of two traces")


def test_log_settings(over):
    assert over.log() == DEFAULT_LOG
    changes = {"log_info": False, "log_verbose_level": 2, "log_format": "ISO8601"}
    assert over.log(**changes) == {**DEFAULT_LOG, **changes}
    assert over.log() == {**DEFAULT_LOG, **changes}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"log_file": "x"}, "log file location can not be updated through network protocol"),
        ({"log_format": "xml"}, "got: xml"),
    ],
)
def test_log_settings_that_cannot_be(over, settings, text):
    with pytest.raises(InferenceServerException, match=text):
        over.log(**settings)
    assert over.log() == DEFAULT_LOG


def test_the_aio_client(running):
    async def ask():
        async with grpcclient_aio.InferenceServerClient(running.grpc_address) as client:
            trace = await client.get_trace_settings(as_json=True)
            log = await client.get_log_settings(as_json=True)
            return trace, log

    trace, log = asyncio.run(ask())
    assert trace["settings"]["trace_mode"] == {"value": ["triton"]}
    assert log["settings"]["log_format"] == {"string_param": "default"}
    json.dumps([trace, log])


@pytest.mark.perf_analyzer
@pytest.mark.parametrize("running", ["native"], indirect=True)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_has_requests_traced(running, file, perf_analyzer, protocol):
    address = running.http_address if protocol == "http" else running.grpc_address
    before = len(list(file.parent.iterdir()))
    perf_analyzer(
        *("-m", "sum", "-i", protocol, "-u", address, "--trace-level", "TIMESTAMPS"),
        *("--trace-rate", 10, "--trace-count", 4, "--log-frequency", 2),
    )
    client = httpclient.InferenceServerClient(running.http_address)
    assert client.get_trace_settings("sum")["trace_count"] == "0"
    wait_until(lambda: len(list(file.parent.iterdir())) == before + 2, "two files of two traces")
    client.update_trace_settings("sum", CLEAR)
    client.update_trace_settings(None, CLEAR)
    client.close()
