"""The services above the transport: every method that is not inference."""

from __future__ import annotations

import asyncio
import threading

import pytest

from shoal.errors import Internal, InvalidArgument, Unavailable
from shoal.frontends.grpc.call import Kind
from shoal.frontends.grpc.errors import STATUS
from shoal.frontends.grpc.service import INFERENCE, GrpcOptions, GrpcService
from shoal.frontends.grpc.status import StatusCode
from shoal.wire.proto import messages, schema
from tests.support.grpc_calls import DirectInbox, start
from tests.support.scripted_engine import ScriptedEngine

HEALTH = "/grpc.health.v1.Health/"


def ask(service, name, request, metadata=()):
    """Make a unary call and return its response, which must be there at once."""
    call = start(service, name, metadata).message(request).half_close()
    assert call.status is StatusCode.OK, call.text
    (content,) = call.sent
    return getattr(messages, type(request).__name__.replace("Request", "Response")).FromString(
        content
    )


def refused(service, name, request, metadata=()):
    call = start(service, name, metadata).message(request).half_close()
    assert call.sent == []
    return call.status, call.text


def test_every_method_of_the_schema_is_there_with_its_kind(service):
    for name in (
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ):
        described = schema.pool().FindServiceByName(name)
        for method in described.methods:
            found = service.method(f"/{name}/{method.name}")
            streams = method.client_streaming or method.server_streaming
            assert found.kind is (Kind.STREAM if streams else Kind.UNARY), method.name


def test_unknown_methods_are_none(service):
    assert service.method("/inference.GRPCInferenceService/Nope") is None
    assert service.method("ModelInfer") is None


def test_each_code_has_a_status():
    assert {code.value: status.name for code, status in STATUS.items()} == {
        "Unknown": "UNKNOWN",
        "Internal": "INTERNAL",
        "Not found": "NOT_FOUND",
        "Invalid argument": "INVALID_ARGUMENT",
        "Unavailable": "UNAVAILABLE",
        "Unsupported": "UNIMPLEMENTED",
        "Already exists": "ALREADY_EXISTS",
        "Cancelled": "CANCELLED",
        "Forbidden": "PERMISSION_DENIED",
        "Unauthenticated": "UNAUTHENTICATED",
        "Quota exceeded": "RESOURCE_EXHAUSTED",
        "Deadline exceeded": "DEADLINE_EXCEEDED",
    }


# ---- health


@pytest.mark.parametrize("ready", [True, False])
def test_server_health(service, engine, ready):
    engine.is_ready = ready
    assert ask(service, "ServerLive", messages.ServerLiveRequest()).live
    assert ask(service, "ServerReady", messages.ServerReadyRequest()).ready is ready


def test_server_health_while_it_exits(service, engine):
    engine.is_exiting = True
    assert ask(service, "ServerLive", messages.ServerLiveRequest()).live
    assert not ask(service, "ServerReady", messages.ServerReadyRequest()).ready


def test_model_ready(service):
    assert ask(service, "ModelReady", messages.ModelReadyRequest(name="m")).ready
    assert ask(service, "ModelReady", messages.ModelReadyRequest(name="m", version="1")).ready
    assert not ask(service, "ModelReady", messages.ModelReadyRequest(name="m", version="2")).ready
    assert not ask(service, "ModelReady", messages.ModelReadyRequest(name="nowhere")).ready


# ---- metadata


def test_server_metadata(service):
    response = ask(service, "ServerMetadata", messages.ServerMetadataRequest())
    assert (response.name, response.version) == ("scripted", "1.2")
    assert list(response.extensions) == ["a", "b"]


def test_model_metadata(service):
    response = ask(service, "ModelMetadata", messages.ModelMetadataRequest(name="m", version="1"))
    assert (response.name, list(response.versions), response.platform) == ("m", ["1"], "p")
    (tensor,) = response.inputs
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("IN", "FP32", [-1, 2])
    assert [tensor.name for tensor in response.outputs] == ["OUT"]


def test_model_config(service):
    config = ask(service, "ModelConfig", messages.ModelConfigRequest(name="m")).config
    assert (config.name, config.max_batch_size) == ("m", 8)
    assert config.input[0].data_type == messages.DataType.Value("TYPE_FP32")
    assert list(config.input[0].dims) == [2]
    assert config.WhichOneof("scheduling_choice") == "dynamic_batching"
    assert config.dynamic_batching.max_queue_delay_microseconds == 2**40


@pytest.mark.parametrize("name", ["", "m"])
def test_model_statistics(service, name):
    request = messages.ModelStatisticsRequest(name=name)
    if name:
        response = ask(service, "ModelStatistics", request)
    else:  # of all models: made on a thread
        call = ask_later(service, "ModelStatistics", request)
        response = messages.ModelStatisticsResponse.FromString(call.sent[0])
    (counted,) = response.model_stats
    assert (counted.name, counted.version, counted.last_inference) == ("m", "1", 2**41)
    assert counted.inference_stats.success.ns == 2**60
    assert counted.response_stats["0"].success.count == 3
    assert counted.batch_stats[0].batch_size == 2


BY_NAME = {
    "ModelReady": messages.ModelReadyRequest,
    "ModelMetadata": messages.ModelMetadataRequest,
    "ModelConfig": messages.ModelConfigRequest,
    "ModelStatistics": messages.ModelStatisticsRequest,
}


@pytest.mark.parametrize("name", BY_NAME)
def test_models_nobody_knows_and_versions_that_are_none(service, name):
    if name != "ModelReady":  # such a model is not ready
        status, text = refused(service, name, BY_NAME[name](name="nope"))
        assert status is StatusCode.NOT_FOUND
        assert text == "Request for unknown model: 'nope' is not found"
    status, text = refused(service, name, BY_NAME[name](name="m", version="one"))
    assert status is StatusCode.INVALID_ARGUMENT
    assert text.startswith("failed to get model version from specified version string 'one'")


@pytest.mark.parametrize("name", ["ServerLive", *BY_NAME, HEALTH + "Check"])
def test_bytes_that_are_no_request(service, name):
    status, text = refused(service, name, b"\x0a\x05")
    assert status is StatusCode.INVALID_ARGUMENT
    assert text.startswith("the request is not a valid protobuf message")


def test_fields_of_newer_versions_are_ignored(service):
    call = start(service, "ModelReady").message(b"\x0a\x01m\xa2\x06\x03new")
    assert call.status is StatusCode.OK


def test_a_mistake_of_ours_is_internal_and_in_the_log(service, engine, caplog):
    engine.server_metadata = lambda: 1 / 0
    status, text = refused(service, "ServerMetadata", b"")
    assert status is StatusCode.INTERNAL
    assert "ZeroDivisionError" in text
    assert "unforeseen" in caplog.text


# ---- the repository


def ask_later(service, name, request):
    """Make a call that is answered by a thread."""

    async def main():
        call = start(service, name)
        ended = asyncio.Event()
        finish = call.finish

        def noticed(*arguments, **named):
            finish(*arguments, **named)
            ended.set()

        call.finish = noticed
        call.message(request).half_close()
        await asyncio.wait_for(ended.wait(), 20)
        return call

    return asyncio.run(main())


def test_repository_index(service, engine):
    engine.rows = [
        {"name": "a", "version": "1", "state": "READY"},
        {"name": "b", "version": "2", "state": "UNAVAILABLE", "reason": "unloaded"},
        {"name": "c"},
    ]
    call = ask_later(service, "RepositoryIndex", messages.RepositoryIndexRequest())
    found = messages.RepositoryIndexResponse.FromString(call.sent[0]).models
    rows = [(row.name, row.version, row.state, row.reason) for row in found]
    assert rows == [
        ("a", "1", "READY", ""),
        ("b", "2", "UNAVAILABLE", "unloaded"),
        ("c", "", "", ""),
    ]
    call = ask_later(service, "RepositoryIndex", messages.RepositoryIndexRequest(ready=True))
    found = messages.RepositoryIndexResponse.FromString(call.sent[0]).models
    assert [row.name for row in found] == ["a"]


def test_load_with_a_config_and_files(service, engine):
    request = messages.RepositoryModelLoadRequest(model_name="m")
    request.parameters["config"].string_param = "{}"
    request.parameters["file:1/model.onnx"].bytes_param = b"\x00\xff"
    call = ask_later(service, "RepositoryModelLoad", request)
    assert (call.status, call.sent) == (StatusCode.OK, [b""])
    assert engine.loads == [("m", "{}", {"1/model.onnx": b"\x00\xff"})]


def test_load_runs_on_another_thread(service, engine):
    threads = []
    engine.load = lambda *_: threads.append(threading.current_thread())
    ask_later(service, "RepositoryModelLoad", messages.RepositoryModelLoadRequest(model_name="m"))
    assert threads != [threading.current_thread()]


@pytest.mark.parametrize(
    ("key", "kind", "value", "text"),
    [
        (
            "config",
            "bytes_param",
            b"{}",
            "invalid value type for load parameter 'config', expected string_param.",
        ),
        (
            "file:1/a",
            "string_param",
            "x",
            "invalid value type for load parameter 'file:1/a', expected bytes_param.",
        ),
        ("configs", "string_param", "{}", "unrecognized load parameter 'configs'."),
    ],
)
def test_load_parameters_that_are_wrong(service, engine, key, kind, value, text):
    request = messages.RepositoryModelLoadRequest(model_name="m")
    setattr(request.parameters[key], kind, value)
    call = ask_later(service, "RepositoryModelLoad", request)
    assert (call.status, call.text) == (StatusCode.INVALID_ARGUMENT, text)
    assert engine.loads == []


def test_unload(service, engine):
    request = messages.RepositoryModelUnloadRequest(model_name="m")
    ask_later(service, "RepositoryModelUnload", request)
    request.parameters["unload_dependents"].bool_param = True
    ask_later(service, "RepositoryModelUnload", request)
    assert engine.unloads == [("m", False), ("m", True)]
    request.parameters["unload_dependents"].string_param = "true"
    call = ask_later(service, "RepositoryModelUnload", request)
    assert call.text == "invalid value type for 'unload_dependents' parameter, expected bool_param."


@pytest.mark.parametrize(
    "request_",
    [
        messages.RepositoryIndexRequest(repository_name="r"),
        messages.RepositoryModelLoadRequest(repository_name="r"),
        messages.RepositoryModelUnloadRequest(repository_name="r"),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_repository_cannot_be_named(service, request_):
    call = ask_later(service, type(request_).__name__.removesuffix("Request"), request_)
    assert call.status is StatusCode.UNIMPLEMENTED
    assert call.text == "'repository_name' specification is not supported"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Unavailable("not allowed"), StatusCode.UNAVAILABLE),
        (InvalidArgument("load failed"), StatusCode.INVALID_ARGUMENT),
        (Internal("failed to poll"), StatusCode.INTERNAL),
    ],
)
def test_errors_of_the_repository(service, engine, error, status):
    engine.control_error = error
    for name in ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"):
        call = ask_later(service, name, b"")
        assert (call.status, call.text) == (status, error.message)


# ---- restrictions


def test_restricted_protocols():
    options = GrpcOptions(
        restricted_protocols={"health": ("Key", "secret"), "inference": ("infer", "x")}
    )
    service = GrpcService(ScriptedEngine(), DirectInbox(), options)
    text = "This protocol is restricted, expecting header 'triton-grpc-protocol-Key'"
    for name in ("ServerLive", "ServerReady", "ModelReady", HEALTH + "Check"):
        assert refused(service, name, b"") == (StatusCode.UNAVAILABLE, text)
    wrong = [("triton-grpc-protocol-key", "guess")]
    assert refused(service, "ServerLive", b"", wrong) == (StatusCode.UNAVAILABLE, text)
    right = [("other", "1"), ("triton-grpc-protocol-key", "secret")]
    assert ask(service, "ServerLive", messages.ServerLiveRequest(), right).live
    assert ask(service, "ServerMetadata", messages.ServerMetadataRequest()).name == "scripted"
    text = "This protocol is restricted, expecting header 'triton-grpc-protocol-infer'"
    for name in ("ModelInfer", "ModelStreamInfer"):
        assert refused(service, name, b"") == (StatusCode.UNAVAILABLE, text)
    service.close()


def test_a_forward_pattern_that_is_none():
    with pytest.raises(InvalidArgument, match="is not a regular expression"):
        GrpcService(ScriptedEngine(), DirectInbox(), GrpcOptions(header_forward_pattern="("))


def test_only_inference_is_compressed(service):
    assert service.method(INFERENCE + "ModelInfer").compress
    assert service.method(INFERENCE + "ModelStreamInfer").compress
    assert not service.method(INFERENCE + "ModelConfig").compress
