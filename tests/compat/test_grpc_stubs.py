"""grpcio's own stubs and channels: typed contents, raw bytes, nonsense, and the standard services."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import numpy as np
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from tritonclient.grpc import service_pb2, service_pb2_grpc

from shoal.wire.proto import messages
from tests.support.fakes import WAIT_SECS

INFER = "/inference.GRPCInferenceService/ModelInfer"
TYPED = [
    ("BOOL", "bool_contents", [True, False], "?"),
    ("INT8", "int_contents", [-128, 127], "i1"),
    ("INT16", "int_contents", [-(2**15), 7], "i2"),
    ("INT32", "int_contents", [-(2**31), 7], "i4"),
    ("INT64", "int64_contents", [-(2**63), 7], "i8"),
    ("UINT8", "uint_contents", [255, 7], "u1"),
    ("UINT16", "uint_contents", [2**16 - 1, 7], "u2"),
    ("UINT32", "uint_contents", [2**32 - 1, 7], "u4"),
    ("UINT64", "uint64_contents", [2**64 - 1, 7], "u8"),
    ("FP32", "fp32_contents", [1.5, -0.1], "f4"),
    ("FP64", "fp64_contents", [1.5, -0.1], "f8"),
]


WHERE = "for input tensor 'INPUT0' for model 'echo_INT32'"
WRONG_SIZE = (
    "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'echo_INT32'"
    ". Expected 8, got "
)


@pytest.fixture
def channel(address):
    with grpc.insecure_channel(address) as made:
        yield made


@pytest.fixture
def stub(channel):
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


def make_request(datatype="INT32", shape=(1, 2), model=None):
    request = service_pb2.ModelInferRequest(model_name=model or f"echo_{datatype}")
    request.inputs.add(name="INPUT0", datatype=datatype, shape=shape)
    return request


@pytest.mark.parametrize(("datatype", "field", "elements", "dtype"), TYPED)
def test_typed_contents(stub, datatype, field, elements, dtype):
    request = make_request(datatype)
    getattr(request.inputs[0].contents, field).extend(elements)
    response = stub.ModelInfer(request)
    assert response.raw_output_contents[0] == np.array(elements, dtype).tobytes()
    assert not response.outputs[0].HasField("contents")


def test_typed_strings(stub):
    request = make_request("BYTES")
    request.inputs[0].contents.bytes_contents.extend([b"ab", b""])
    assert stub.ModelInfer(request).raw_output_contents[0] == b"\x02\0\0\0ab\0\0\0\0"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda r: (
                r.inputs[0].contents.int_contents.append(1),
                r.raw_input_contents.append(b""),
            ),
            "contents field must not be specified when using raw_input_contents for 'INPUT0'",
        ),
        (
            lambda r: r.inputs[0].contents.fp32_contents.extend([1, 2]),
            f"unexpected explicit tensor data {WHERE} of type 'FP32', expected datatype 'INT32'",
        ),
        (
            lambda r: r.inputs[0].contents.int_contents.extend([1, 2, 3]),
            WRONG_SIZE + "12",
        ),
        (
            lambda r: r.raw_input_contents.append(b"12345"),
            WRONG_SIZE + "5",
        ),
        (
            lambda r: None,
            "unable to find data for input tensor 'INPUT0' for model 'echo_INT32' in request.",
        ),
    ],
)
def test_mistakes_in_tensors(stub, change, text):
    request = make_request()
    change(request)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().startswith(text)


def test_an_unknown_output_has_tritons_message(stub):
    request = make_request()
    request.id = "output name validation"
    request.raw_input_contents.append(bytes(8))
    request.outputs.add(name="DUMMY")
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request)
    assert caught.value.details().startswith("unexpected inference output 'DUMMY' for model")


def test_bytes_that_are_no_request(channel, stub):
    send = channel.unary_unary(INFER)
    with pytest.raises(grpc.RpcError) as caught:
        send(b"\x0a\x05nope")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "not a valid protobuf message" in caught.value.details()
    assert stub.ServerLive(service_pb2.ServerLiveRequest()).live


def test_fields_of_newer_versions_are_ignored(channel):
    request = make_request()
    request.raw_input_contents.append(bytes(8))
    content = b"\xa2\x06\x03new" + request.SerializeToString() + b"\xa8\x06\x05"
    answer = service_pb2.ModelInferResponse.FromString(channel.unary_unary(INFER)(content))
    assert answer.raw_output_contents[0] == bytes(8)


def test_unknown_methods(channel):
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/inference.GRPCInferenceService/Nope")(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_aio_stub(address):
    async def main():
        async with grpc.aio.insecure_channel(address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = make_request()
            request.raw_input_contents.append(bytes(8))
            answers = await asyncio.gather(*(stub.ModelInfer(request) for _ in range(50)))
            assert all(answer.raw_output_contents[0] == bytes(8) for answer in answers)

            stream = stub.ModelStreamInfer()
            await stream.write(request)
            answer = await stream.read()
            assert answer.infer_response.raw_output_contents[0] == bytes(8)
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF
            assert await stream.code() is grpc.StatusCode.OK

    asyncio.run(main())


# ---- the standard services


def test_health_check(channel):
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=messages.HealthCheckRequest.SerializeToString,
        response_deserializer=messages.HealthCheckResponse.FromString,
    )
    for service in ("", "inference.GRPCInferenceService"):
        assert check(messages.HealthCheckRequest(service=service)).status == 1


def test_health_watch(channel):
    watch = channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=messages.HealthCheckRequest.SerializeToString,
        response_deserializer=messages.HealthCheckResponse.FromString,
    )
    watching = watch(messages.HealthCheckRequest(), timeout=WAIT_SECS)
    assert next(watching).status == 1
    watching.cancel()


def test_reflection(channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    assert "inference.GRPCInferenceService" in database.get_services()
    pool = DescriptorPool(database)
    service = pool.FindServiceByName("inference.GRPCInferenceService")
    assert len(service.methods) == 20
    request = pool.FindMessageTypeByName("inference.ModelInferRequest")
    assert request.fields_by_name["raw_input_contents"].number == 7
    assert pool.FindMessageTypeByName("inference.ModelConfig")
    assert pool.FindServiceByName("grpc.health.v1.Health")
    with pytest.raises(KeyError):
        pool.FindMessageTypeByName("inference.Nope")
