"""The codecs of clients that choose a replica for each call.

Calls about models name their target. Calls about the server as a whole have none: they go to the
ingress, over HTTP, which makes them on all replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeAlias, TypeVar, cast

from shoal.client.address import GRPC, Address
from shoal.client.codec import (
    CallOptions,
    Headers,
    InferenceCall,
    PreparedCall,
    RawRequest,
    Target,
)
from shoal.client.errors import InvalidInput
from shoal.client.grpc_codec import GrpcCodec
from shoal.client.http_codec import HttpCodec
from shoal.client.replicas import ingress_of
from shoal.client.result import Result
from shoal.core.tensor import Buffer

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., PreparedCall[Any]])

# The methods of codecs whose calls are about the server as a whole.
_ABOUT_ALL = (
    "live",
    "ready",
    "server_metadata",
    "statistics",
    "index",
    "load",
    "unload",
    "trace_settings",
    "log_settings",
)


def _to_replica(call: PreparedCall[T], target: Target) -> PreparedCall[T]:
    parts, size, block, _ = call.request
    call.request = RawRequest(parts, size, block, target)
    return call


def _of_model(method: Method) -> Method:
    """A codec's method for calls about a model, which is its first argument: to a replica."""

    @wraps(method)
    def prepare(codec: Any, model: str, *arguments: Any, **more: Any) -> PreparedCall[Any]:
        return _to_replica(method(codec, model, *arguments, **more), Target(model))

    return cast("Method", prepare)


class _NoSharedMemory:
    """Refuses shared memory."""

    def register(
        self, name: str, key: str, byte_size: int, options: CallOptions
    ) -> PreparedCall[None]:
        """Raises InvalidInput, as the others do."""
        del key, byte_size, options
        raise _no_shared_memory(name)

    def unregister(self, name: str, options: CallOptions) -> PreparedCall[None]:
        """Raises InvalidInput."""
        del options
        raise _no_shared_memory(name)

    def regions(self, options: CallOptions) -> PreparedCall[list[dict[str, Any]]]:
        """Raises InvalidInput."""
        del options
        raise _no_shared_memory("")


class ReplicaHttpCodec(_NoSharedMemory, HttpCodec):
    """HTTP, for replicas and their ingress."""

    @property
    def list_request(self) -> RawRequest:
        """GET /v2/replicas."""
        return self._get("/v2/replicas", CallOptions())

    def infer(self, infer_call: InferenceCall, options: CallOptions) -> PreparedCall[Result]:
        """To a replica."""
        return _to_replica(super().infer(infer_call, options), _target(infer_call))

    def perform(
        self,
        operation: str,
        model: str,
        version: str,
        values: Mapping[str, Any],
        form: tuple[str, bytes] | None,
        options: CallOptions,
    ) -> PreparedCall[dict[str, Any]]:
        """To a replica."""
        call = super().perform(operation, model, version, values, form, options)
        return _to_replica(call, Target(model))

    generate = _of_model(HttpCodec.generate)
    model_ready = _of_model(HttpCodec.model_ready)
    metadata = _of_model(HttpCodec.metadata)
    config = _of_model(HttpCodec.config)


class ReplicaGrpcCodec(_NoSharedMemory, GrpcCodec):
    """gRPC for replicas, HTTP for their ingress."""

    def __init__(self, address: Address, headers: Headers) -> None:
        super().__init__(address, headers)
        ingress = ReplicaHttpCodec(ingress_of(address), headers)
        self.list_request = ingress.list_request
        for name in _ABOUT_ALL:
            setattr(self, name, getattr(ingress, name))

    def infer(self, infer_call: InferenceCall, options: CallOptions) -> PreparedCall[Result]:
        """To a replica."""
        return _to_replica(super().infer(infer_call, options), _target(infer_call))

    def infer_message(self, infer_call: InferenceCall) -> tuple[list[Buffer], int]:
        """Raises InvalidInput for one with shared memory."""
        _target(infer_call)
        return super().infer_message(infer_call)

    def stream(self, model: str, options: CallOptions) -> RawRequest:
        """To a replica."""
        return super().stream(model, options)._replace(target=Target(model))

    model_ready = _of_model(GrpcCodec.model_ready)
    metadata = _of_model(GrpcCodec.metadata)
    config = _of_model(GrpcCodec.config)


ReplicaCodec: TypeAlias = ReplicaHttpCodec | ReplicaGrpcCodec


def make(address: Address, headers: Headers) -> ReplicaCodec:
    """The codec for an address. Raises InvalidInput for an invalid header."""
    kind = ReplicaGrpcCodec if address.protocol == GRPC else ReplicaHttpCodec
    return kind(address, headers)


def _target(infer_call: InferenceCall) -> Target:
    """Where an inference goes. Raises InvalidInput for one with shared memory."""
    for place in infer_call.places.values():
        raise _no_shared_memory(place.region.name)
    for tensor in infer_call.tensors:
        if tensor.placed is not None:
            raise _no_shared_memory(tensor.placed.region)
    given = infer_call.parameters
    sequence = given.get("sequence_id")
    if not sequence:
        return Target(infer_call.model)
    start, end = bool(given.get("sequence_start")), bool(given.get("sequence_end"))
    return Target(infer_call.model, sequence, start, end)


def _no_shared_memory(name: str) -> InvalidInput:
    region = f"'{name}' is in shared memory" if name else "shared memory is registered with servers"
    return InvalidInput(
        f"{region}, which replicas on other machines cannot read; send tensors with the request, "
        f"or use the address of one server on this machine"
    )
