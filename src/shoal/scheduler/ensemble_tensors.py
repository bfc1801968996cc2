"""Tensors on their way through an ensemble: passed on under new names, never copied.

    client or step --TensorValue--> step (its names, its shapes) --TensorValue--> client

Models with and without batching may follow each other: a batch dimension of one is added or
removed as the reader's config requires. The sequence of a request travels with the tensors, so that
a step can start and end sequences for the steps after it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from shoal.core.device_tensor import DeviceTensor
from shoal.core.dtypes import BYTES
from shoal.core.lazy_tensor import LazyTensor
from shoal.core.request import Request
from shoal.core.response import ParameterValue, Response
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.core.validate import substitute
from shoal.errors import InvalidArgument
from shoal.scheduler.ensemble_graph import EnsembleGraph, EnsembleStep, fits

logger = logging.getLogger(__name__)


class SequenceInfo(NamedTuple):
    """A position in a sequence: the id (0 or "" for none), and START and END flags."""

    correlation_id: int | str
    flags: int


class TensorValue(NamedTuple):
    """A tensor of the ensemble as it was computed; `tensor` is None if it was not."""

    tensor: Tensor | None
    batched: bool  # whether it has a leading batch dimension
    position: SequenceInfo | None = None  # None: that of the request


def request_values(
    graph: EnsembleGraph, signature: Signature, request: Request
) -> dict[str, TensorValue]:
    """The ensemble's inputs. Those that were left out have a value without a tensor."""
    batched = signature.max_batch_size > 0
    inputs = request.inputs
    return {name: TensorValue(inputs.get(name), batched) for name in graph.inputs}


def step_inputs(step: EnsembleStep, values: Mapping[str, TensorValue]) -> dict[str, Tensor]:
    """The inputs for a step's model, by its own names, without those that have no tensor."""
    inputs: dict[str, Tensor] = {}
    specs = step.model.signature.inputs
    batched = step.model.batched
    for own, name in step.inputs.items():
        value = values[name]
        if value.tensor is not None:
            shape = fitted_shape(value, specs[own].dims, batched=batched)
            inputs[own] = hand_on(value.tensor, own, shape)
    return inputs


def step_position(
    step: EnsembleStep, values: Mapping[str, TensorValue], request: Request
) -> SequenceInfo:
    """The position in a sequence that the steps before this one reported, or the request's."""
    position: SequenceInfo | None = None
    for name in step.inputs.values():
        reported = values[name].position
        if reported is None or reported == position:
            continue
        if position is None:
            position = reported
        else:
            logger.error(
                "%sinputs of model '%s' have two positions in a sequence; using id %s, flags %d",
                request.log_prefix(),
                step.model.name,
                *position,
            )
    return position or SequenceInfo(request.correlation_id, request.flags)


def response_values(
    step: EnsembleStep, requested: Iterable[str], response: Response, position: SequenceInfo
) -> dict[str, TensorValue]:
    """The tensors of one response of a step, by the ensemble's names.

    An output that was `requested` and is missing has a value without a tensor. Raises
    InvalidArgument when the response's sequence parameters are invalid.
    """
    position = reported_position(response.parameters, position)
    outputs = {tensor.name: tensor for tensor in response.outputs}
    batched = step.model.batched
    return {
        step.outputs[own]: TensorValue(outputs.get(own), batched, position) for own in requested
    }


def ensemble_outputs(
    signature: Signature, values: Mapping[str, TensorValue]
) -> tuple[list[Tensor], dict[str, ParameterValue]]:
    """The outputs of a response, and its parameters if it belongs to a sequence."""
    outputs: list[Tensor] = []
    parameters: dict[str, ParameterValue] = {}
    batched = signature.max_batch_size > 0
    for name, value in values.items():
        if value.tensor is None:
            logger.debug("Composing models did not output tensor %s", name)
            continue
        shape = _client_shape(value, signature.outputs[name], batched=batched)
        outputs.append(hand_on(value.tensor, name, shape))
        if not parameters and value.position is not None and any(value.position):
            parameters = _parameters(value.position)
    return outputs, parameters


def _client_shape(value: TensorValue, spec: TensorSpec, *, batched: bool) -> tuple[int, ...]:
    inner = spec.dims if spec.reshape is None else spec.reshape
    shape = fitted_shape(value, inner, batched=batched)
    skip = 1 if batched else 0
    if spec.reshape is None or not fits(inner, shape[skip:]):
        return shape
    return shape[:skip] + substitute(inner, shape[skip:], spec.dims)


def fitted_shape(value: TensorValue, dims: tuple[int, ...], *, batched: bool) -> tuple[int, ...]:
    """The shape in which a reader with these `dims` takes a tensor.

    It changes only if exactly one of writer and reader is batched: a batched reader gets a batch
    of one, and for others a batch of one loses its first dimension.
    """
    assert value.tensor is not None
    shape = value.tensor.shape
    if batched == value.batched:
        return shape
    if batched:
        return (1, *shape) if fits(dims, shape) else shape
    return shape[1:] if shape[0] == 1 and not fits(dims, shape) else shape


def hand_on(tensor: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """The same elements under another name, and a shape with as many of them."""
    if isinstance(tensor, DeviceTensor | LazyTensor):
        return tensor.renamed(name, shape)
    raw, array = tensor._raw, tensor._array
    if array is not None and tensor.datatype is BYTES:
        raw = None  # it is decoded already
    if isinstance(raw, memoryview):
        raw = raw.toreadonly()  # other steps, or the client, may get them too
    return Tensor(name, tensor.datatype, shape, raw=raw, array=array)


def reported_position(
    parameters: Mapping[str, ParameterValue], position: SequenceInfo
) -> SequenceInfo:
    """The position in a sequence from a response's parameters; `position` without any."""
    reported = False
    correlation_id, flags = position.correlation_id, 0
    if "sequence_id" in parameters:
        value = parameters["sequence_id"]
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise InvalidArgument(
                "expected parameter 'sequence_id' of a response to be an integer or a string, "
                f"found {value!r}"
            )
        correlation_id, reported = value, True
    for name, flag in (
        ("sequence_start", Request.SEQUENCE_START),
        ("sequence_end", Request.SEQUENCE_END),
    ):
        if name in parameters:
            value = parameters[name]
            if not isinstance(value, bool):
                raise InvalidArgument(
                    f"expected parameter '{name}' of a response to be a boolean, found {value!r}"
                )
            flags |= flag if value else 0
            reported = True
    return SequenceInfo(correlation_id, flags) if reported else position


def _parameters(position: SequenceInfo) -> dict[str, ParameterValue]:
    return {
        "sequence_id": position.correlation_id,
        "sequence_start": bool(position.flags & Request.SEQUENCE_START),
        "sequence_end": bool(position.flags & Request.SEQUENCE_END),
    }
