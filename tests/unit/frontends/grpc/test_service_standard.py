"""The standard services above the transport: health and reflection."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from shoal.frontends.grpc.health import HealthMethods
from shoal.frontends.grpc.status import StatusCode
from shoal.wire.proto import messages, schema
from tests.support.grpc_calls import FakeCall, start

CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


# ---- health


@pytest.mark.parametrize("name", ["", "inference.GRPCInferenceService", "whatever"])
def test_check_tells_whether_the_server_is_ready(service, engine, name):
    request = messages.HealthCheckRequest(service=name)
    assert start(service, CHECK).message(request).sent == [SERVING]
    engine.is_ready = False
    assert start(service, CHECK).message(request).sent == [NOT_SERVING]


def test_watch_tells_the_status_and_its_changes(engine):
    async def main():
        health = HealthMethods(engine, look_secs=0.001)
        heard = asyncio.Event()
        calls = [FakeCall(), FakeCall()]
        for call in calls:
            health.watch(call)
            call.message(messages.HealthCheckRequest())
            call.half_close()
            assert call.sent == [SERVING]
        send = calls[1].send
        calls[1].send = lambda parts: (send(parts), heard.set())
        engine.is_ready = False
        await asyncio.wait_for(heard.wait(), 20)
        assert [call.sent for call in calls] == [[SERVING, NOT_SERVING]] * 2

        calls[0].cancel()
        heard.clear()
        engine.is_ready = True
        await asyncio.wait_for(heard.wait(), 20)
        assert calls[0].sent == [SERVING, NOT_SERVING]
        assert calls[1].sent == [SERVING, NOT_SERVING, SERVING]
        assert calls[1].status is None

        late = FakeCall()
        engine.is_ready = False
        health.watch(late)
        late.message(messages.HealthCheckRequest())
        assert late.sent == [NOT_SERVING]
        assert calls[1].sent[-1] == NOT_SERVING
        health.drain()
        assert late.status is calls[1].status is StatusCode.UNAVAILABLE

    asyncio.run(main())


def test_watching_ends_when_the_server_goes_down(service, engine):
    async def main():
        call = start(service, WATCH).message(messages.HealthCheckRequest()).half_close()
        engine.is_exiting = True
        service.drain()
        assert call.sent == [SERVING, NOT_SERVING]
        assert call.status is StatusCode.UNAVAILABLE

    asyncio.run(main())


def test_watch_refuses_what_is_no_request(service):
    call = start(service, WATCH).message(b"\x0a\x05")
    assert call.status is StatusCode.INVALID_ARGUMENT


# ---- reflection


@pytest.fixture(params=["v1", "v1alpha"])
def reflection(service, request):
    return start(service, f"/grpc.reflection.{request.param}.ServerReflection/ServerReflectionInfo")


def ask(call, **fields):
    call.message(messages.ServerReflectionRequest(host="h", **fields))
    response = messages.ServerReflectionResponse.FromString(call.sent[-1])
    assert response.valid_host == "h"
    assert response.original_request == messages.ServerReflectionRequest(host="h", **fields)
    return response


def files(response):
    found = response.file_descriptor_response.file_descriptor_proto
    return [FileDescriptorProto.FromString(content).name for content in found]


def test_services_are_listed(reflection):
    listed = ask(reflection, list_services="*").list_services_response.service
    assert sorted(service.name for service in listed) == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
    ]
    for service in listed:
        assert schema.pool().FindServiceByName(service.name)


def test_files_come_with_what_they_import(reflection):
    wanted = ["grpc_service.proto", "model_config.proto"]
    assert files(ask(reflection, file_by_filename="grpc_service.proto")) == wanted
    for symbol in ("inference.GRPCInferenceService", "inference.ModelInferRequest"):
        assert files(ask(reflection, file_containing_symbol=symbol)) == wanted
    found = ask(reflection, file_containing_symbol="grpc.health.v1.Health")
    assert files(found) == ["health.proto"]


def test_extensions_there_are_none(reflection):
    found = ask(reflection, all_extension_numbers_of_type="inference.ModelConfig")
    numbers = found.all_extension_numbers_response
    assert (numbers.base_type_name, list(numbers.extension_number)) == ("inference.ModelConfig", [])


@pytest.mark.parametrize(
    "fields",
    [
        {"file_by_filename": "nope.proto"},
        {"file_containing_symbol": "inference.Nope"},
        {"all_extension_numbers_of_type": "inference.Nope"},
        {
            "file_containing_extension": messages.ExtensionRequest(
                containing_type="inference.ModelConfig", extension_number=1
            )
        },
    ],
)
def test_what_nobody_knows(reflection, fields):
    error = ask(reflection, **fields).error_response
    assert error.error_code == StatusCode.NOT_FOUND
    assert error.error_message


def test_a_request_for_nothing(reflection):
    assert ask(reflection).error_response.error_code == StatusCode.INVALID_ARGUMENT


def test_reflection_ends_when_the_client_says(reflection):
    ask(reflection, list_services="")
    assert reflection.status is None
    assert reflection.half_close().status is StatusCode.OK


def test_reflection_refuses_what_is_no_request(reflection):
    assert reflection.message(b"\x0a\x05").status is StatusCode.INVALID_ARGUMENT


def test_a_slow_reader_of_reflection_has_to_wait(reflection):
    reflection.writable = False
    ask(reflection, list_services="")
    assert reflection.paused
    reflection.drain()
    assert not reflection.paused
