"""A request as plain values, for the process that executes it.

request --entry_of--> message --request_of--> request, with another reply
"""

from __future__ import annotations

from typing import Any

from shoal.core.reply import DISCARD
from shoal.core.request import Request
from shoal.link.link import Link

# Its number, its header, parameters, requested outputs, packed inputs, and its place in a trace.
Entry = tuple[int, tuple[Any, ...], dict[str, Any], list[str], list[Any], Any]


def entry_of(key: int, request: Request, link: Link) -> Entry:
    """The request with the number `key`, for one message of `link`."""
    packed = link.pack(request.inputs.values())
    about = (
        *(request.id, request.correlation_id, request.flags, request.timeout_us),
        request.one_answer,
    )
    traced = None if request.trace is None else (request.trace.context(),)
    return (key, about, request.parameters, list(request.requested_outputs), packed, traced)


def request_of(entry: Entry, model_name: str, link: Link) -> Request:
    """The request of an entry that `link` has received. Its replies are discarded."""
    _, about, parameters, wanted, packed, _ = entry
    identity, correlation_id, flags, timeout_us, one_answer = about
    request = Request(
        model_name,
        {tensor.name: tensor for tensor in link.unpack(packed)},
        DISCARD,
        id=identity,
        requested_outputs=tuple(wanted),
        parameters=parameters,
        timeout_us=timeout_us,
        correlation_id=correlation_id,
        flags=flags,
    )
    if one_answer:
        request.one_answer = True
    return request
