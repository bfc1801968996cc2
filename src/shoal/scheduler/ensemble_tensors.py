"""Tensors on their way through an ensemble: handed on under new names, never copied.

    client or step --Value--> step (its names, its shapes) --Value--> client

Batching models and others may follow each other: a batch dimension of one is added or taken away
where the reader's config wants it so. Which sequence a request belongs to travels with the tensors,
so that a step can open and end sequences for the steps behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from shoal.core.device_tensor import DeviceTensor
from shoal.core.dtypes import BYTES
from shoal.core.request import Request
from shoal.core.response import ParameterValue, Response
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.core.validate import substitute
from shoal.errors import InvalidArgument
from shoal.scheduler.ensemble_graph import Graph, Step, fits

logger = logging.getLogger(__name__)


class Place(NamedTuple):
    """Where in which sequence: the id (0 or "" for none), and START and END flags."""

    correlation_id: int | str
    flags: int


class Value(NamedTuple):
    """A tensor of the ensemble as it was computed. `tensor` is None where there is none."""

    tensor: Tensor | None
    batched: bool  # whether it has a batch dimension in front
    place: Place | None = None  # None: it came with the request, which says where


def request_values(graph: Graph, signature: Signature, request: Request) -> dict[str, Value]:
    """What an ensemble is given. Inputs that were left out have a value without a tensor."""
    batched = signature.max_batch_size > 0
    inputs = request.inputs
    return {name: Value(inputs.get(name), batched) for name in graph.inputs}


def step_inputs(step: Step, values: Mapping[str, Value]) -> dict[str, Tensor]:
    """The inputs for a step's model, by its own names. What is not there is left out."""
    inputs: dict[str, Tensor] = {}
    specs = step.model.signature.inputs
    batched = step.model.batched
    for own, name in step.inputs.items():
        value = values[name]
        if value.tensor is not None:
            shape = fitted_shape(value, specs[own].dims, batched=batched)
            inputs[own] = hand_on(value.tensor, own, shape)
    return inputs


def step_place(step: Step, values: Mapping[str, Value], request: Request) -> Place:
    """Where in a sequence a step runs: as the steps before it said, or as the request did."""
    place: Place | None = None
    for name in step.inputs.values():
        told = values[name].place
        if told is None or told == place:
            continue
        if place is None:
            place = told
        else:
            logger.error(
                "%smodel '%s' is told of two places in a sequence; it is run for id %s, flags %d",
                request.log_prefix(),
                step.model.name,
                *place,
            )
    return place or Place(request.correlation_id, request.flags)


def response_values(
    step: Step, asked: Iterable[str], response: Response, place: Place
) -> dict[str, Value]:
    """What one response of a step brings, by the ensemble's names.

    An output that was `asked` for and did not come has a value without a tensor. Raises
    InvalidArgument when the response says nonsense about its sequence.
    """
    place = told_place(response.parameters, place)
    outputs = {tensor.name: tensor for tensor in response.outputs}
    batched = step.model.batched
    return {step.outputs[own]: Value(outputs.get(own), batched, place) for own in asked}


def ensemble_outputs(
    signature: Signature, values: Mapping[str, Value]
) -> tuple[list[Tensor], dict[str, ParameterValue]]:
    """The outputs of a whole response, and its parameters if it belongs to a sequence."""
    outputs: list[Tensor] = []
    parameters: dict[str, ParameterValue] = {}
    batched = signature.max_batch_size > 0
    for name, value in values.items():
        if value.tensor is None:
            logger.debug("Composing models did not output tensor %s", name)
            continue
        shape = _client_shape(value, signature.outputs[name], batched=batched)
        outputs.append(hand_on(value.tensor, name, shape))
        if not parameters and value.place is not None and any(value.place):
            parameters = _parameters(value.place)
    return outputs, parameters


def _client_shape(value: Value, spec: TensorSpec, *, batched: bool) -> tuple[int, ...]:
    inner = spec.dims if spec.reshape is None else spec.reshape
    shape = fitted_shape(value, inner, batched=batched)
    skip = 1 if batched else 0
    if spec.reshape is None or not fits(inner, shape[skip:]):
        return shape
    return shape[:skip] + substitute(inner, shape[skip:], spec.dims)


def fitted_shape(value: Value, dims: tuple[int, ...], *, batched: bool) -> tuple[int, ...]:
    """The shape under which a reader with these `dims` takes a tensor.

    Only where one of the two batches and the other does not is there anything to change: a
    batching reader gets a batch of one, and a batch of one loses its first dimension.
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
    if isinstance(tensor, DeviceTensor):
        return tensor.renamed(name, shape)
    raw, array = tensor._raw, tensor._array
    if array is not None and tensor.datatype is BYTES:
        raw = None  # decoded once: nobody has to look at the bytes again
    if isinstance(raw, memoryview):
        raw = raw.toreadonly()  # other steps, or the client, may get them too
    return Tensor(name, tensor.datatype, shape, raw=raw, array=array)


def told_place(parameters: Mapping[str, ParameterValue], place: Place) -> Place:
    """Where a response says it is in a sequence; `place` where it does not say."""
    told = False
    correlation_id, flags = place.correlation_id, 0
    if "sequence_id" in parameters:
        value = parameters["sequence_id"]
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise InvalidArgument(
                "expected parameter 'sequence_id' of a response to be an integer or a string, "
                f"found {value!r}"
            )
        correlation_id, told = value, True
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
            told = True
    return Place(correlation_id, flags) if told else place


def _parameters(place: Place) -> dict[str, ParameterValue]:
    return {
        "sequence_id": place.correlation_id,
        "sequence_start": bool(place.flags & Request.SEQUENCE_START),
        "sequence_end": bool(place.flags & Request.SEQUENCE_END),
    }
