"""Requests, responses and models as plain values, for the messages of a link."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shoal.config import codec
from shoal.config.model import ModelConfig
from shoal.core import dtypes
from shoal.core.interface import FunctionInterface
from shoal.core.planned import RequestTemplate, ResponseLayout
from shoal.core.reply import Reply
from shoal.core.request import Request
from shoal.core.response import Response
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.engine.linked.replicas import plan_of
from shoal.engine.linked.tracing import reference_of
from shoal.link import failure
from shoal.link.link import Link
from shoal.wire.proto import messages as schema

_TYPES = {kind.number: kind for kind in dtypes.ALL}

Plain = tuple[Any, ...]
TRACE, TENSORS = 13, 14  # where they are in a packed request

# ---- requests


def pack_request(link: Link, request: Request, inputs: Mapping[str, Tensor]) -> Plain:
    """A full request; `inputs` are as they were received."""
    return (
        request.model_name,
        request.model_version,
        request.id,
        request.requested_outputs,
        request.parameters,
        request.priority,
        request.timeout_us,
        request.correlation_id,
        request.flags,
        request.start_ns,
        request.one_answer,
        request.answer_by_ns,
        request.admitted,
        reference_of(request),
        link.pack(inputs.values()),
    )


def unpack_request(link: Link, packed: Plain, reply: Reply) -> Request:
    """The request, whose responses go to `reply`. Unavailable if there is no memory for it."""
    name, version, request_id, outputs, parameters, priority, timeout_us = packed[:7]
    correlation_id, flags, start_ns, one_answer, answer_by_ns, admitted = packed[7:13]
    tensors = packed[TENSORS]
    request = Request(
        name,
        {tensor.name: tensor for tensor in link.unpack(tensors)},
        reply,
        model_version=version,
        id=request_id,
        requested_outputs=outputs,
        parameters=parameters,
        priority=priority,
        timeout_us=timeout_us,
        correlation_id=correlation_id,
        flags=flags,
    )
    request.start_ns = start_ns  # the clock is the machine's
    if one_answer:
        request.one_answer = True
    if answer_by_ns is not None:
        request.answer_by_ns = answer_by_ns
    if admitted:
        request.admitted = True
    return request


def pack_template(template: RequestTemplate) -> Plain:
    """What all requests of a template have in common."""
    shapes = zip(template.inputs, template.sent_shapes, strict=True)
    return (
        template.model_name,
        template.model_version,
        tuple([(name, kind.number, shape) for (name, kind, _), shape in shapes]),
        template.sizes,
        template.requested_outputs,
        dict(template.parameters),
        template.priority,
        template.timeout_us,
    )


# ---- responses


def pack_response(link: Link, response: Response) -> Plain:
    """One response to a full request."""
    error = response.error
    return (
        response.model_name,
        response.model_version,
        response.request_id,
        response.parameters,
        None if error is None else failure.pack(error),
        response.final,
        link.pack(response.outputs),
    )


def unpack_response(link: Link, packed: Plain) -> Response:
    """The response. Unavailable if there is no memory for its outputs."""
    name, version, request_id, parameters, error, final, outputs = packed
    return Response(
        name,
        version,
        request_id,
        link.unpack(outputs),
        parameters,
        None if error is None else failure.unpack(error),
        final,
    )


def pack_layout(layout: ResponseLayout) -> Plain:
    """Names, shapes and sizes of outputs."""
    return (
        layout.model_name,
        layout.model_version,
        tuple([(name, kind.number, shape) for name, kind, shape in layout.outputs]),
        layout.sizes,
    )


def unpack_layout(packed: Plain) -> ResponseLayout:
    """A layout of its own for each template: frontends keep what they make of it there."""
    name, version, outputs, sizes = packed
    kinds = tuple([(output, _TYPES[kind], shape) for output, kind, shape in outputs])
    return ResponseLayout(name, version, kinds, sizes)


# ---- models


class ModelDescription(NamedTuple):
    """A version that serves, as plain values."""

    key: int  # another one for each version that was ever loaded
    name: str
    version: int
    decoupled: bool
    folders: tuple[str, ...]
    loaded_ms: int
    versions: tuple[int, ...]  # all that serve
    config: bytes
    inputs: tuple[Plain, ...]
    outputs: tuple[Plain, ...]
    plan: Plain | None  # for a front end that is to run it itself; see `replicas`
    interface: dict[str, Any] | None  # of a function
    classifies_photos: bool

    @classmethod
    def of(cls, key: int, model: Any, versions: list[int]) -> ModelDescription:
        """Of a ServedModel."""
        signature: Signature = model.signature
        return cls(
            key,
            model.name,
            model.version,
            model.decoupled,
            tuple([str(folder) for folder in model.folders]),
            model.loaded_ms,
            tuple(versions),
            codec.to_message(model.config).SerializeToString(),
            tuple([_packed_spec(spec) for spec in signature.inputs.values()]),
            tuple([_packed_spec(spec) for spec in signature.outputs.values()]),
            plan_of(model),
            None if model.interface is None else model.interface.to_plain(),
            model.classifies_photos,
        )

    def read_config(self) -> ModelConfig:
        """The config."""
        return codec.from_message(schema.ModelConfig.FromString(self.config))

    def read_signature(self, max_batch_size: int) -> Signature:
        """The tensors. How batches are padded concerns the engine only."""
        return Signature(
            self.name, max_batch_size, _unpacked_specs(self.inputs), _unpacked_specs(self.outputs)
        )

    def read_interface(self) -> FunctionInterface | None:
        """What callers know of a function."""
        return None if self.interface is None else FunctionInterface.from_plain(self.interface)

    def read_folders(self) -> tuple[Path, ...]:
        """Where its files are."""
        return tuple([Path(folder) for folder in self.folders])


def _packed_spec(spec: TensorSpec) -> Plain:
    return (
        spec.name,
        spec.datatype.number,
        spec.dims,
        spec.reshape,
        spec.optional,
        spec.ragged,
        spec.labels,
    )


def _unpacked_specs(packed: tuple[Plain, ...]) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(name, _TYPES[kind], dims, reshape, optional, ragged, labels)
        for name, kind, dims, reshape, optional, ragged, labels in packed
    }
