"""The compiled schema: read from schema.binpb on first use, once per process."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import Message

BINARY = Path(__file__).with_name("schema.binpb")
PACKAGES = ("inference", "grpc.health.v1", "grpc.reflection.v1", "grpc.reflection.v1alpha")


@functools.cache
def file_protos() -> tuple[FileDescriptorProto, ...]:
    """The files of the schema, each after those it imports; what gRPC reflection hands out."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    return tuple(FileDescriptorSet.FromString(BINARY.read_bytes()).file)


@functools.cache
def pool() -> DescriptorPool:
    """The private pool that holds every message, enum and service of the schema."""
    from google.protobuf.descriptor_pool import DescriptorPool

    private = DescriptorPool()
    for file in file_protos():
        private.Add(file)
    return private


@functools.cache
def message_class(name: str) -> type[Message]:
    """The class of a message by its full name, `inference.ModelConfig`. KeyError if unknown."""
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(pool().FindMessageTypeByName(name))


@functools.cache
def enum_wrapper(name: str) -> Any:
    """An enum by its full name, with `Name(number)` and `Value(name)`. KeyError if unknown."""
    from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

    return EnumTypeWrapper(pool().FindEnumTypeByName(name))
