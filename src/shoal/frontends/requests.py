"""From a decoded request to one of the core: the part that all protocols share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from shoal.core import bytes_tensor
from shoal.core.dtypes import BYTES
from shoal.core.reply import Reply
from shoal.core.request import Request
from shoal.core.response import ParameterValue
from shoal.core.tensor import Tensor
from shoal.engine import Engine
from shoal.errors import InvalidArgument, quoted
from shoal.wire.regions import Lease

_NEWEST_POSSIBLE = 2**63 - 1


class RequestOptions(Protocol):
    """The options of a decoded request, in any protocol."""

    sequence_start: bool
    sequence_end: bool
    priority: int
    timeout_us: int


def build_request(
    model: tuple[str, int],
    options: RequestOptions,
    inputs: dict[str, Tensor],
    reply: Reply,
    *,
    id: str,
    sequence_id: int | str,
    outputs: tuple[str, ...],
    parameters: dict[str, ParameterValue],
) -> Request:
    """A request for `model` (name and version) that the caller owns."""
    return Request(
        model[0],
        inputs,
        reply,
        model_version=model[1],
        id=id,
        requested_outputs=outputs,
        parameters=parameters,
        priority=options.priority,
        timeout_us=options.timeout_us,
        correlation_id=sequence_id,
        flags=Request.SEQUENCE_START * options.sequence_start
        | Request.SEQUENCE_END * options.sequence_end,
    )


def is_slow(inputs: Mapping[str, Tensor], leases: Sequence[Lease]) -> bool:
    """Whether to read the inputs takes milliseconds, so that a thread should `submit` the request:
    large ones in shared memory, and many strings."""
    for tensor in inputs.values():
        if (
            tensor.datatype is BYTES
            and tensor.has_raw
            and bytes_tensor.is_slow(tensor.element_count, tensor.nbytes)
        ):
            return True
    return any(lease.is_large for lease in leases)


def submit(engine: Engine, request: Request, leases: Sequence[Lease]) -> None:
    """Read the inputs of a slow request, and submit it: `Engine.infer`. For any thread."""
    for lease in leases:
        lease.read_ahead()
    engine.infer(request)


def parse_version(text: str) -> int:
    """The number of a model version; -1, the newest, for an empty text. InvalidArgument for what is
    no number."""
    if not text:
        return -1
    if text.isascii() and text.isdigit():
        version = int(text) if len(text) <= 19 else _NEWEST_POSSIBLE + 1
        if version <= _NEWEST_POSSIBLE:
            return version
        details = "it does not fit into 64 bits"
    elif text[0] == "-" and text[1:].isascii() and text[1:].isdigit():
        raise InvalidArgument(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    else:
        details = "it is not a number"
    raise InvalidArgument(
        f"failed to get model version from specified version string '{quoted(text)}' (details: "
        f"{details}), "
        f"version should be an integral value > 0"
    )
