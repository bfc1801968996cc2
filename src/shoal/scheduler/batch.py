"""Joining a batch's inputs and splitting its outputs.

Inputs of several requests are joined once; outputs are views into what the model returned. A
batch of one is not copied at all. In a batch that mixes planned and full requests, those of each
template are joined and split as a group; see `group_by_template`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, cast

import numpy as np

from shoal.core.buffers import pool
from shoal.core.dtypes import BYTES
from shoal.core.planned import PlannedRequest, PlannedResponses, RequestTemplate, ResponseLayout
from shoal.core.request import Request
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Buffer, Tensor
from shoal.core.validate import format_dims, substitute
from shoal.errors import BackendFailure

_SMALL_BYTES = 16 * 1024  # up to here a copy costs less than a view
POOLED_BYTES = 32 * 1024  # from here on inputs are joined in memory that was used before


# Requests of a batch that are split and answered alike: those of one template, or (with None) full
# requests, each of which is answered on its own.
RequestGroup: TypeAlias = tuple[RequestTemplate | None, Sequence[Request]]


def group_by_template(batch: Sequence[Request]) -> list[RequestGroup]:
    """The requests of a batch by template: planned ones first, full ones in one group at the end.

    Templates come in the order of their first requests, requests in the batch's order. A planned
    request counts as a full one when it has other inputs by now, or when another reply stands in
    for its own (to keep responses in order, to cache them).
    """
    first = batch[0]
    if (
        isinstance(first, PlannedRequest) and first.template is not None
    ):  # nearly always all are alike
        template = first.template
        reply_type = template.replies.reply_type
        for request in batch:
            if (
                not isinstance(request, PlannedRequest)
                or request.template is not template
                or type(request.reply) is not reply_type
            ):
                break
        else:
            return [(template, batch)]
    groups: dict[RequestTemplate, list[Request]] = {}
    full: list[Request] = []
    for request in batch:
        own = request.template if isinstance(request, PlannedRequest) else None
        if own is None or type(request.reply) is not own.replies.reply_type:
            full.append(request)
        elif own in groups:
            groups[own].append(request)
        else:
            groups[own] = [request]
    return [*groups.items(), (None, full)] if full else [*groups.items()]


def join(requests: Sequence[Request]) -> dict[str, np.ndarray]:
    """The inputs of all requests, one array per input, rows in request order.

    The requests passed validation and have equal batch keys, so this cannot fail on their account.
    """
    first = requests[0].inputs
    if len(requests) == 1:
        return {name: tensor.array for name, tensor in first.items()}
    return {name: join_tensors([request.inputs[name] for request in requests]) for name in first}


def join_tensors(parts: Sequence[Tensor]) -> np.ndarray:
    """Tensors that differ in their first dimension at most, one after the other."""
    datatype = parts[0].datatype
    if datatype is not BYTES and all(part.has_raw for part in parts):
        flat = np.frombuffer(_joined([part.raw for part in parts]), datatype.numpy)
        rows = sum([part.shape[0] for part in parts])
        return flat.reshape(rows, *parts[0].shape[1:])
    return np.concatenate([part.array for part in parts])


def _joined(raws: Sequence[Buffer]) -> Buffer:
    """All of it in one piece: a large one in memory that is aligned and was used before."""
    if sum(map(len, raws)) < POOLED_BYTES:
        return b"".join(raws)
    views = [memoryview(raw).cast("B") for raw in raws]
    whole = pool.take(sum(map(len, views)))
    start = 0
    for view in views:
        end = start + len(view)
        whole[start:end] = view
        start = end
    return whole


def join_groups(groups: Sequence[RequestGroup]) -> dict[str, np.ndarray]:
    """As `join`, group after group; the first one has a template.

    No tensors are made for planned requests: their bytes are joined as they were received.
    """
    template, first = groups[0]
    assert template is not None
    others = groups[1:]
    rows = len(first) * template.rows
    for _, requests in others:
        rows += sum([request.rows for request in requests])
    planned: Sequence[PlannedRequest] = first  # type: ignore[assignment] # a cast takes 0.1 µs
    inputs: dict[str, np.ndarray] = {}
    for index, (name, datatype, one) in enumerate(template.inputs):
        raws: list[Buffer] = [request.message[request.places[index]] for request in planned]
        for own, requests in others:
            raws += _raws(name, own, requests)
        content = raws[0] if len(raws) == 1 else _joined(raws)
        inputs[name] = np.ndarray((rows, *one[1:]), datatype.numpy, content)
    return inputs


def _raws(name: str, template: RequestTemplate | None, requests: Sequence[Request]) -> list[Buffer]:
    """The bytes of one input, of each request of a group."""
    if template is None:
        return [request.inputs[name].raw for request in requests]
    index = [own for own, _, _ in template.inputs].index(name)
    planned = cast("Sequence[PlannedRequest]", requests)
    return [request.message[request.places[index]] for request in planned]


def wanted_outputs(requests: Sequence[Request], signature: Signature) -> list[str]:
    """The outputs to compute: what any of the requests asked for, in the config's order."""
    if any(not request.requested_outputs for request in requests):
        names = list(signature.outputs)
    else:
        asked = {name for request in requests for name in request.requested_outputs}
        names = [name for name in signature.outputs if name in asked]
    if signature.state_outputs:
        names += [name for name in signature.state_outputs if name not in names]
    return names


def split(
    requests: Sequence[Request],
    names: Sequence[str],
    arrays: Sequence[np.ndarray],
    signature: Signature,
) -> list[list[Tensor]]:
    """Each request's outputs, as views, in the order it asked for them.

    Raises BackendFailure when an output does not have one row per row of the batch.
    """
    total = 1
    if signature.max_batch_size:
        total = sum([request.rows for request in requests])
    whole = {
        name: WholeOutput(signature, name, array, total)
        for name, array in zip(names, arrays, strict=True)
        if name in signature.outputs
    }
    if len(requests) == 1:
        asked = requests[0].requested_outputs or signature.outputs
        return [[whole[name].tensor() for name in asked]]
    result: list[list[Tensor]] = []
    row = 0
    for request in requests:
        rows = request.rows
        asked = request.requested_outputs or signature.outputs
        result.append([whole[name].part(row, rows) for name in asked])
        row += rows
    return result


class PlannedOutputs:
    """Splits the outputs of batches whose requests were made from one template: as `split`, but
    what is the same for all of them is computed once."""

    __slots__ = ("_last", "_places", "_signature", "_template", "_version", "names")

    def __init__(self, template: RequestTemplate, signature: Signature, version: int) -> None:
        asked = template.requested_outputs or tuple(signature.outputs)
        self.names = [name for name in signature.outputs if name in asked]  # to be computed
        self._places: list[int] | None = [self.names.index(name) for name in asked]
        if self._places == list(range(len(self.names))):
            self._places = None
        self._template = template
        self._signature = signature
        self._version = version
        self._last: _Seen | None = None  # replaced as a whole: instances share this

    def split(self, count: int, arrays: Sequence[np.ndarray]) -> PlannedResponses | None:
        """The outputs of `count` requests; None where one is not plain bytes.

        Raises BackendFailure when an output does not have one row per row of the batch.
        """
        last = self._last
        if last is None or count > last.most:
            return self._split_anew(count, arrays)
        total = count * self._template.rows
        contents: list[Buffer] = []
        for array, (row_shape, dtype) in zip(arrays, last.arrays, strict=True):
            if array.shape != (total, *row_shape) or array.dtype != dtype:
                return self._split_anew(count, arrays)
            contents.append(array.tobytes())
        if self._places is not None:
            contents = [contents[place] for place in self._places]
        return PlannedResponses(last.layout, contents)

    def _split_anew(self, count: int, arrays: Sequence[np.ndarray]) -> PlannedResponses | None:
        signature = self._signature
        batched = signature.max_batch_size > 0
        rows = self._template.rows
        total = count * rows if batched else 1
        wholes = [
            WholeOutput(signature, name, array, total)
            for name, array in zip(self.names, arrays, strict=True)
        ]
        contents: list[Buffer] = []
        for whole in wholes:
            if whole.flat is None:
                return None
            small = whole.flat.nbytes <= _SMALL_BYTES
            contents.append(whole.flat.tobytes() if small else whole.flat)
        outputs = [
            (whole.name, whole.datatype, (rows, *whole.row_shape) if batched else whole.shape)
            for whole in wholes
        ]
        sizes = [len(content) // count for content in contents]
        if self._places is not None:
            contents = [contents[place] for place in self._places]
            outputs = [outputs[place] for place in self._places]
            asked_sizes = [sizes[place] for place in self._places]
        else:
            asked_sizes = sizes
        last = self._last
        if last is not None and last.layout.outputs == tuple(outputs):
            layout = last.layout
        else:
            name, version = signature.model_name, self._version
            layout = ResponseLayout(name, version, tuple(outputs), tuple(asked_sizes))
        plain = batched and all(whole.plain for whole in wholes)
        most = _SMALL_BYTES // max(sizes) if plain else 0
        self._last = _Seen(layout, [(whole.row_shape, whole.array.dtype) for whole in wholes], most)
        return PlannedResponses(layout, contents)


class _Seen(NamedTuple):
    """What the last batch's outputs were like."""

    layout: ResponseLayout
    arrays: list[tuple[tuple[int, ...], np.dtype]]  # less their first dimension
    most: int  # requests in a batch for which that is all one needs to know


class WholeOutput:
    """One output of a whole batch, to be handed out in parts without a copy."""

    __slots__ = ("array", "datatype", "flat", "name", "plain", "row_bytes", "row_shape", "shape")

    def __init__(self, signature: Signature, name: str, array: np.ndarray, total: int) -> None:
        shape: tuple[int, ...] = array.shape
        batched = signature.max_batch_size > 0
        check_rows(signature, name, shape, total)
        spec = signature.outputs[name]
        if spec.reshape is not None:
            shape = reshaped(spec, shape, batched=batched)
        self.name = name
        self.datatype = spec.datatype
        self.array = array
        self.shape = shape
        self.row_shape = shape[1:]
        # Slicing bytes is several times cheaper than slicing arrays, and bytes are what is sent.
        self.flat: memoryview | None = None
        self.row_bytes = 0
        # Whether the array's own bytes in its own shape are what is handed out.
        self.plain = spec.reshape is None and array.dtype == spec.datatype.numpy
        if array.dtype.kind != "O" and array.size:
            contiguous = np.ascontiguousarray(array, dtype=spec.datatype.numpy)
            self.flat = contiguous.data.cast("B")
            self.row_bytes = self.flat.nbytes // total

    def tensor(self) -> Tensor:
        """All of it, for a batch of one request."""
        return Tensor(self.name, self.datatype, self.shape, raw=self.flat, array=self.array)

    def part(self, row: int, rows: int) -> Tensor:
        """The part of one request of several."""
        shape = (rows, *self.row_shape)
        if self.flat is None:
            view = self.array[row : row + rows]
            return Tensor(self.name, self.datatype, shape, array=view)
        size = self.row_bytes
        raw = self.flat[row * size : (row + rows) * size]
        return Tensor(self.name, self.datatype, shape, raw=raw)


def check_rows(signature: Signature, name: str, shape: tuple[int, ...], total: int) -> None:
    """Raises BackendFailure when an output does not have one row per row of the batch."""
    if signature.max_batch_size and (not shape or shape[0] != total):
        raise BackendFailure(
            f"output '{name}' of model '{signature.model_name}' has shape {format_dims(shape)} "
            f"for a batch of {total}: its first dimension must be the batch. Set "
            "max_batch_size: 0 if the model does not batch"
        )


def reshaped(spec: TensorSpec, shape: tuple[int, ...], *, batched: bool) -> tuple[int, ...]:
    """The shape the client sees for an output the model gave in its `reshape` form."""
    assert spec.reshape is not None
    skip = 1 if batched else 0
    own = shape[skip:]
    fits = len(own) == len(spec.reshape) and all(
        want in (-1, got) for want, got in zip(spec.reshape, own, strict=True)
    )
    if not fits:
        raise BackendFailure(
            f"output '{spec.name}' has shape {format_dims(own)}, but its reshape in the model "
            f"configuration says {format_dims(spec.reshape)}"
        )
    return shape[:skip] + substitute(spec.reshape, own, spec.dims)
