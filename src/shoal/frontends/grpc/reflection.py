"""Server reflection: the services and the schema of their messages.

Version 1 and its elder v1alpha have the same messages, so one method serves both.
"""

from __future__ import annotations

from typing import Any

from shoal.core.tensor import Buffer
from shoal.frontends.grpc.call import Call
from shoal.frontends.grpc.errors import fail
from shoal.frontends.grpc.status import StatusCode
from shoal.wire.grpc_request import parse
from shoal.wire.proto import messages, schema

SERVICES = (
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)


def reflect(call: Call) -> None:
    """ServerReflectionInfo: responds to each request in order, until the client half-closes."""

    def answer_next(message: Buffer) -> None:
        try:
            call.send([answer(message)])
        except Exception as error:  # noqa: BLE001 - becomes the response
            fail(call, error)
            return
        if not call.writable:
            call.pause_receiving()

    call.on_message = answer_next
    call.on_drain = call.resume_receiving
    call.on_half_close = call.finish


def answer(message: Buffer) -> bytes:
    """The response to one request."""
    request = parse(messages.ServerReflectionRequest, message)
    response = messages.ServerReflectionResponse(valid_host=request.host, original_request=request)
    asked = request.WhichOneof("message_request")
    try:
        if asked == "list_services":
            for name in SERVICES:
                response.list_services_response.service.add(name=name)
        elif asked == "file_by_filename":
            _add_file(response, request.file_by_filename)
        elif asked == "file_containing_symbol":
            file: Any = schema.pool().FindFileContainingSymbol(request.file_containing_symbol)
            _add_file(response, file.name)
        elif asked == "all_extension_numbers_of_type":
            name = request.all_extension_numbers_of_type
            schema.pool().FindMessageTypeByName(name)
            response.all_extension_numbers_response.base_type_name = name
        elif asked == "file_containing_extension":
            raise KeyError(request.file_containing_extension.containing_type)
        else:
            _fail(response, StatusCode.INVALID_ARGUMENT, "the request asks for nothing")
    except KeyError as missing:
        _fail(response, StatusCode.NOT_FOUND, f"not found: {missing.args[0]}")
    content: bytes = response.SerializeToString()
    return content


def _add_file(response: Any, name: str) -> None:
    """A file and, before it, those it imports. KeyError for an unknown name."""
    files = {file.name: file for file in schema.file_protos()}
    wanted = [name]
    for found in wanted:  # grows during the iteration
        wanted += [other for other in files[found].dependency if other not in wanted]
    for found in wanted:
        content = files[found].SerializeToString()
        response.file_descriptor_response.file_descriptor_proto.append(content)


def _fail(response: Any, code: StatusCode, text: str) -> None:
    response.error_response.error_code = code
    response.error_response.error_message = text
