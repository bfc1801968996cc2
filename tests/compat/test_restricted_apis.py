"""Restricted APIs as tritonclient meets them: a header opens what an operator has closed."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from shoal.config.options import NamedSetting
from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.repositories import add_onnx

SETTINGS = (
    NamedSetting("model-repository,trace", "admin-key", "secret=1"),
    NamedSetting("inference", "infer-key", "other"),
    NamedSetting("logging,statistics", "admin-key", "secret=1"),
)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    add_onnx(folder, "sum", onnx_models.add_sub("INT32"), "max_batch_size: 8")
    with running_server(
        folder,
        http_restricted_api=SETTINGS,
        grpc_restricted_protocol=SETTINGS,
        model_control_mode="explicit",
        load_model=("*",),
    ) as made:
        yield made


class Http:
    module = httpclient
    refusal = "This API is restricted, expecting header '%s'"
    prefix = ""
    status = "403"

    def __init__(self, running):
        self.client = httpclient.InferenceServerClient(running.http_address)


class Grpc:
    module = grpcclient
    refusal = "This protocol is restricted, expecting header 'triton-grpc-protocol-%s'"
    prefix = "triton-grpc-protocol-"
    status = "StatusCode.UNAVAILABLE"

    def __init__(self, running):
        self.client = grpcclient.InferenceServerClient(running.grpc_address)


@pytest.fixture(params=[Http, Grpc])
def over(request, running):
    made = request.param(running)
    yield made
    made.client.close()


def infer(over, headers):
    tensors = []
    for name in ("INPUT0", "INPUT1"):
        tensor = over.module.InferInput(name, [1, 16], "INT32")
        tensor.set_data_from_numpy(np.ones((1, 16), np.int32))
        tensors.append(tensor)
    over.client.infer("sum", tensors, headers=headers)


CALLS = {
    "index": ("admin-key", lambda over, h: over.client.get_model_repository_index(headers=h)),
    "load": ("admin-key", lambda over, h: over.client.load_model("sum", headers=h)),
    "trace": ("admin-key", lambda over, h: over.client.get_trace_settings(headers=h)),
    "log": ("admin-key", lambda over, h: over.client.get_log_settings(headers=h)),
    "statistics": ("admin-key", lambda over, h: over.client.get_inference_statistics(headers=h)),
    "infer": ("infer-key", infer),
}
VALUES = {"admin-key": "secret=1", "infer-key": "other"}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_closed(over, name):
    key, call = CALLS[name]
    header = over.prefix + key
    for headers in ({}, {header: "guess"}, {header: ""}, {key + "s": VALUES[key]}):
        with pytest.raises(InferenceServerException) as caught:
            call(over, headers)
        assert caught.value.message() == over.refusal % key
        assert caught.value.status() == over.status
    call(over, {header: VALUES[key]})


def test_what_is_open(over):
    assert over.client.is_server_live()
    assert over.client.is_model_ready("sum")
    over.client.get_server_metadata()
    over.client.get_model_config("sum")
