"""Planned requests: made from a template, so that what they share is read and checked once.

    message --template--> PlannedRequest --batch--> PlannedResponses --> BatchReplies, all at once

A template is what is kept of a request that was parsed, validated and accepted. A batch of
requests made from one template is joined and answered as a whole: nothing is computed for each
request that is the same for all of them, and inputs become tensors only if someone reads them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.core.dtypes import BYTES, DataType
from shoal.core.reply import Reply
from shoal.core.request import NEW, Request
from shoal.core.response import ParameterValue, Response
from shoal.core.tensor import Buffer, Tensor
from shoal.errors import QueueRejected

LARGE_BYTES = 64 << 10  # to copy such an input into a batch takes longer than another execution
_NO_PARAMETERS: Mapping[str, ParameterValue] = {}


class BatchReplies(Protocol):
    """Takes the responses of a batch at once. Callable from any thread; must not raise or block."""

    # Of the replies it can answer; a request with another one is answered alone.
    reply_types: tuple[type, ...]

    def send_all(self, responses: PlannedResponses, requests: Sequence[PlannedRequest]) -> None:
        """Answer each of `requests`, in the order of `responses`, with its only response."""

    def refuse_all(self, error: QueueRejected, requests: Sequence[PlannedRequest]) -> None:
        """Answer each of `requests` with the error, whose message gets the request's id."""


@dataclass(slots=True, eq=False)
class RequestTemplate:
    """What all requests made from it have in common; compare with `is`."""

    model_name: str
    model_version: int
    inputs: tuple[tuple[str, DataType, tuple[int, ...]], ...]
    requested_outputs: tuple[str, ...]
    parameters: Mapping[str, ParameterValue]
    priority: int
    timeout_us: int
    rows: int
    batch_key: Any
    replies: BatchReplies
    sizes: tuple[int, ...] = ()  # of the inputs, in bytes
    sent_shapes: tuple[tuple[int, ...], ...] = ()  # of the inputs, before a `reshape`
    model: weakref.ref[Any] | None = None  # the version that accepted it
    expired: bool = False  # another version serves that name now
    large: bool = False  # an input has LARGE_BYTES or more: the loop runs such requests one by one
    linked: Any = None  # what the other process knows of it, where the model is in one

    @classmethod
    def of(
        cls, accepted: Request, sent: Mapping[str, Tensor], replies: BatchReplies
    ) -> RequestTemplate | None:
        """A template from a request that a model has accepted; None if one must be checked anew
        each time: it belongs to a sequence, or its strings have to be decoded.

        `sent` are its inputs as received, in their order: the model's may have another shape.
        """
        model = accepted.served_by
        if model is None or accepted.correlation_id or accepted.flags:
            return None
        tensors = [accepted.inputs[name] for name in sent]
        if any(tensor.datatype is BYTES for tensor in tensors):
            return None
        sizes = tuple([tensor.nbytes for tensor in sent.values()])
        return cls(
            accepted.model_name,
            accepted.model_version,
            tuple([(tensor.name, tensor.datatype, tensor.shape) for tensor in tensors]),
            accepted.requested_outputs,
            dict(accepted.parameters) or _NO_PARAMETERS,
            accepted.priority,
            accepted.timeout_us,
            accepted.rows,
            accepted.batch_key,
            replies,
            sizes,
            tuple([tensor.shape for tensor in sent.values()]),
            weakref.ref(model),
            large=max(sizes, default=0) >= LARGE_BYTES,
        )

    def live_model(self) -> Any:
        """The model for which it holds; None if it was freed or no longer serves."""
        return None if self.expired or self.model is None else self.model()


class PlannedRequest(Request):
    """A request that differs from others of its template in its id and its tensors' bytes alone."""

    __slots__ = ("_inputs", "message", "places", "template")

    def __init__(
        self,
        template: RequestTemplate,
        message: Any,
        places: tuple[Any, ...],
        id: str,
        reply: Reply,
        model: Any,
        start_ns: int,
    ) -> None:
        """The inputs are at `places` in `message`: parts of one buffer, or one of several. `model`
        is about to accept it."""
        self.template: RequestTemplate | None = template  # None once it was given other inputs
        self.message = message
        self.places = places
        self._inputs: dict[str, Tensor] | None = None
        self.model_name = template.model_name
        self.model_version = template.model_version
        self.id = id
        self.requested_outputs = template.requested_outputs
        self.parameters = dict(template.parameters) if template.parameters else {}
        self.priority = template.priority
        self.timeout_us = template.timeout_us
        self.rows = template.rows
        self.batch_key = template.batch_key
        self.reply = reply
        self.served_by = model
        self.start_ns = start_ns
        # As `_begin` does; to call it takes a tenth of this.
        self.state = NEW
        self.queued_ns = 0
        self.moments = None

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The inputs as tensors, made when they are first read."""
        if self._inputs is None:
            assert self.template is not None
            message = self.message
            self._inputs = {
                name: Tensor(name, datatype, shape, raw=message[place])
                for (name, datatype, shape), place in zip(
                    self.template.inputs, self.places, strict=True
                )
            }
        return self._inputs

    @inputs.setter
    def inputs(self, inputs: dict[str, Tensor]) -> None:
        self._inputs = inputs
        self.template = None

    def release_inputs(self) -> None:
        """Free the memory of the inputs, which are not read any more."""
        self.message = b""
        self._inputs = None

    def leave_template(self) -> None:
        """Become a full request, with its inputs as received, to be validated."""
        assert self.template is not None
        sent = zip(self.template.inputs, self.template.sent_shapes, self.places, strict=True)
        self.inputs = {
            name: Tensor(name, datatype, shape, raw=self.message[place])
            for (name, datatype, _), shape, place in sent
        }


class ResponseLayout:
    """Names, shapes and sizes in the responses to requests of one template; compare with `is`."""

    __slots__ = ("encoded", "model_name", "model_version", "outputs", "sizes", "total_bytes")

    def __init__(
        self,
        model_name: str,
        model_version: int,
        outputs: tuple[tuple[str, DataType, tuple[int, ...]], ...],
        sizes: tuple[int, ...],
    ) -> None:
        """`outputs` are name, datatype and shape of one response's, `sizes` their bytes."""
        self.model_name = model_name
        self.model_version = model_version
        self.outputs = outputs
        self.sizes = sizes
        self.total_bytes = sum(sizes)
        self.encoded: Any = None  # what a frontend made of it, for the next batch

    def split(self, whole: bytes, count: int) -> list[bytes]:
        """The contents of each output of `count` requests, which are one behind the other."""
        contents: list[bytes] = []
        end = 0
        for size in self.sizes:
            start, end = end, end + size * count
            contents.append(whole[start:end])
        return contents


class PlannedResponses:
    """The outputs of a batch whose requests were made from one template."""

    __slots__ = ("_contents", "layout", "rows")

    def __init__(
        self,
        layout: ResponseLayout,
        contents: Sequence[Buffer],
        rows: Sequence[bytes] | None = None,
    ) -> None:
        """`contents` are of each output those of all requests in their order. Of requests that were
        executed one by one, `rows` are those of each request instead, one output after the other;
        then `contents` are empty."""
        self.layout = layout
        self.rows = rows
        self._contents = contents

    @property
    def contents(self) -> Sequence[Buffer]:
        """Of each output those of all requests in their order."""
        return self._contents if self.rows is None else list(map(b"".join, self.columns()))

    def columns(self) -> list[list[bytes]]:
        """For each output the bytes of each request: copies, for small ones cheaper than views."""
        columns: list[list[bytes]] = []
        if self.rows is not None:
            end = 0
            for size in self.layout.sizes:
                start, end = end, end + size
                columns.append([row[start:end] for row in self.rows])
            return columns
        for content, size in zip(self._contents, self.layout.sizes, strict=True):
            whole = bytes(content)
            if len(whole) == size:
                columns.append([whole])
            else:
                columns.append([whole[at : at + size] for at in range(0, len(whole), size)])
        return columns

    def pieces(self) -> Iterator[Sequence[bytes]]:
        """For each request the bytes of its outputs, in one or several pieces."""
        if self.rows is not None:
            return zip(self.rows)
        return zip(*self.columns(), strict=True)

    def response(self, index: int, request_id: str) -> Response:
        """The response to one request of the batch."""
        layout = self.layout
        contents: Sequence[Buffer] = self._contents
        if self.rows is not None:
            contents = [column[index] for column in self.columns()]
            index = 0
        outputs = [
            Tensor(name, datatype, shape, raw=content[index * size : (index + 1) * size])
            for (name, datatype, shape), size, content in zip(
                layout.outputs, layout.sizes, contents, strict=True
            )
        ]
        return Response(layout.model_name, layout.model_version, request_id, outputs)
