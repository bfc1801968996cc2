"""Joining a batch's inputs and splitting its outputs.

Inputs of several requests are joined once; outputs are views into what the model returned. A
batch of one is not copied at all. In a batch of planned and full requests, those of each template
are split as a group; see `group_by_template`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol, TypeAlias, cast

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
POOLED_BYTES = 32 * 1024  # from here on inputs are joined in memory from a pool

TakeMemory: TypeAlias = Callable[[int], memoryview]


def shared_template(batch: Sequence[Request]) -> RequestTemplate | None:
    """The template that all requests were made from, if they can be answered as one group."""
    first = batch[0]
    if not isinstance(first, PlannedRequest):
        return None
    template = first.template
    if template is None:
        return None
    reply_types = template.replies.reply_types
    for request in batch:
        if (
            not isinstance(request, PlannedRequest)
            or request.template is not template
            or type(request.reply) not in reply_types
        ):
            return None
    return template


def group_by_template(batch: Sequence[Request]) -> dict[RequestTemplate | None, list[int]]:
    """The positions of a batch's requests by template; those of full requests under None.

    A planned request counts as a full one when it has other inputs by now, or when another reply
    stands in for its own (to keep responses in order, to cache them).
    """
    if not any([isinstance(request, PlannedRequest) for request in batch]):  # noqa: C419 - faster
        return {None: list(range(len(batch)))}
    groups: dict[RequestTemplate | None, list[int]] = {}
    for position, request in enumerate(batch):
        template = request.template if isinstance(request, PlannedRequest) else None
        if template is not None and type(request.reply) not in template.replies.reply_types:
            template = None
        if template in groups:
            groups[template].append(position)
        else:
            groups[template] = [position]
    return groups


def join(requests: Sequence[Request], take: TakeMemory = pool.take) -> dict[str, np.ndarray]:
    """The inputs of all requests, one array per input, rows in request order.

    The requests passed validation and have equal batch keys, so this cannot fail. Large inputs are
    joined in memory from `take`.
    """
    first = requests[0].inputs
    if len(requests) == 1:
        return {name: tensor.array for name, tensor in first.items()}
    return {
        name: join_tensors([request.inputs[name] for request in requests], take) for name in first
    }


def join_tensors(parts: Sequence[Tensor], take: TakeMemory = pool.take) -> np.ndarray:
    """Concatenates tensors that differ in their first dimension at most."""
    datatype = parts[0].datatype
    if datatype is not BYTES and all(part.has_raw for part in parts):
        flat = np.frombuffer(_joined([part.raw for part in parts], take), datatype.numpy)
        rows = sum([part.shape[0] for part in parts])
        return flat.reshape(rows, *parts[0].shape[1:])
    return np.concatenate([part.array for part in parts])


def _joined(raws: Sequence[Buffer], take: TakeMemory = pool.take) -> Buffer:
    """Concatenates bytes; large ones in aligned memory from `take`."""
    if sum(map(len, raws)) < POOLED_BYTES:
        return b"".join(raws)
    views = [memoryview(raw).cast("B") for raw in raws]
    total = sum(map(len, views))
    whole = take(total)
    if total >= len(views) * _SMALL_BYTES:  # numpy releases the GIL while it copies
        parts = [np.frombuffer(view, np.uint8) for view in views]
        np.concatenate(parts, out=np.frombuffer(whole, np.uint8))
        return whole
    start = 0
    for view in views:
        end = start + len(view)
        whole[start:end] = view
        start = end
    return whole


def join_planned(
    requests: Sequence[PlannedRequest],
    template: RequestTemplate,
    take: TakeMemory = pool.take,
) -> dict[str, np.ndarray]:
    """As `join`, for requests made from one template: their bytes are joined as they came."""
    inputs: dict[str, np.ndarray] = {}
    count = len(requests)
    for index, (name, datatype, one) in enumerate(template.inputs):
        raws = [request.message[request.places[index]] for request in requests]
        shape = one if count == 1 else (count * one[0], *one[1:])
        whole = raws[0] if count == 1 else _joined(raws, take)
        inputs[name] = np.ndarray(shape, datatype.numpy, whole)
    return inputs


def join_mixed(
    batch: Sequence[Request],
    groups: Mapping[RequestTemplate | None, Sequence[int]],
    take: TakeMemory = pool.take,
) -> dict[str, np.ndarray]:
    """As `join`, for a batch with planned requests, for which no tensors are made."""
    rows = sum([request.rows for request in batch])
    known = next(template for template in groups if template is not None)
    inputs: dict[str, np.ndarray] = {}
    for name, datatype, one in known.inputs:  # the same for all, in one order or another
        raws: list[Buffer] = [b""] * len(batch)
        for template, positions in groups.items():
            if template is None:
                for position in positions:
                    raws[position] = batch[position].inputs[name].raw
            else:
                index = [own for own, _, _ in template.inputs].index(name)
                for position in positions:
                    request = cast("PlannedRequest", batch[position])
                    raws[position] = request.message[request.places[index]]
        inputs[name] = np.ndarray((rows, *one[1:]), datatype.numpy, _joined(raws, take))
    return inputs


def wanted_outputs(requests: Sequence[Request], signature: Signature) -> list[str]:
    """The outputs to compute: those that any request needs, in the config's order."""
    if any(not request.requested_outputs for request in requests):
        names = list(signature.outputs)
    else:
        requested = {name for request in requests for name in request.requested_outputs}
        names = [name for name in signature.outputs if name in requested]
    if signature.state_outputs:
        names += [name for name in signature.state_outputs if name not in names]
    return names


def split(
    requests: Sequence[Request],
    names: Sequence[str],
    arrays: Sequence[np.ndarray],
    signature: Signature,
) -> list[list[Tensor]]:
    """Each request's outputs, as views, in the order it requested them.

    Raises BackendFailure when an output does not have one row per row of the batch.
    """
    total = 1
    if signature.max_batch_size:
        total = sum([request.rows for request in requests])
    return split_whole(requests, whole_outputs(names, arrays, signature, total), signature)


def split_whole(
    requests: Sequence[Request], whole: Mapping[str, SplittableOutput], signature: Signature
) -> list[list[Tensor]]:
    """As `split`, from the outputs of the whole batch."""
    if len(requests) == 1:
        requested = requests[0].requested_outputs or signature.outputs
        return [[whole[name].tensor() for name in requested]]
    return split_at(first_rows(requests), requests, whole, signature)


def first_rows(batch: Sequence[Request]) -> list[int]:
    """The first row of each request in its batch."""
    return [0, *accumulate([request.rows for request in batch[:-1]])]


def split_at(
    starts: Sequence[int],
    requests: Sequence[Request],
    whole: Mapping[str, SplittableOutput],
    signature: Signature,
) -> list[list[Tensor]]:
    """As `split_whole`, for some requests of a batch: their rows begin at `starts`."""
    result: list[list[Tensor]] = []
    for start, request in zip(starts, requests, strict=True):
        rows = request.rows
        requested = request.requested_outputs or signature.outputs
        result.append([whole[name].part(start, rows) for name in requested])
    return result


def whole_outputs(
    names: Sequence[str], arrays: Sequence[np.ndarray], signature: Signature, total: int
) -> dict[str, WholeOutput]:
    """The outputs of a batch of `total` rows. Raises as `split` does."""
    return {
        name: WholeOutput(signature, name, array, total)
        for name, array in zip(names, arrays, strict=True)
        if name in signature.outputs
    }


def rows_at(starts: Sequence[int], rows: int) -> slice | list[int]:
    """The index of `rows` rows from each of `starts` on: a slice where they are adjacent."""
    if starts[-1] - starts[0] == rows * (len(starts) - 1):
        return slice(starts[0], starts[-1] + rows)
    return [start + row for start in starts for row in range(rows)]


class PlannedOutputs:
    """Splits the outputs of batches whose requests were made from one template: as `split`, but
    what is the same for all of them is computed once."""

    __slots__ = ("_last", "_order", "_signature", "_template", "_version", "names")

    def __init__(self, template: RequestTemplate, signature: Signature, version: int) -> None:
        requested = template.requested_outputs or tuple(signature.outputs)
        self.names = [name for name in signature.outputs if name in requested]  # to be computed
        self._order: list[int] | None = [self.names.index(name) for name in requested]
        if self._order == list(range(len(self.names))):
            self._order = None
        self._template = template
        self._signature = signature
        self._version = version
        self._last: _LastOutputs | None = None  # replaced as a whole: instances share this

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
        if self._order is not None:
            contents = [contents[index] for index in self._order]
        return PlannedResponses(last.layout, contents)

    def are_small(self, count: int) -> bool:
        """Whether those of `count` requests are small and plain bytes, as the last ones were."""
        last = self._last
        return last is not None and count <= last.most

    def last_form(
        self, count: int
    ) -> tuple[ResponseLayout, list[tuple[str, tuple[int, ...], np.dtype]]] | None:
        """The layout of the last responses, and name, shape and type of the arrays, in the order
        of the response, that give the same for `count` requests; None if they are not small."""
        last = self._last
        if last is None or count > last.most:
            return None
        total = count * self._template.rows
        arrays = [
            (name, (total, *row_shape), dtype)
            for name, (row_shape, dtype) in zip(self.names, last.arrays, strict=True)
        ]
        if self._order is not None:
            arrays = [arrays[index] for index in self._order]
        return last.layout, arrays

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
        if self._order is not None:
            contents = [contents[index] for index in self._order]
            outputs = [outputs[index] for index in self._order]
            requested_sizes = [sizes[index] for index in self._order]
        else:
            requested_sizes = sizes
        last = self._last
        if last is not None and last.layout.outputs == tuple(outputs):
            layout = last.layout
        else:
            name, version = signature.model_name, self._version
            layout = ResponseLayout(name, version, tuple(outputs), tuple(requested_sizes))
        plain = batched and all(whole.plain for whole in wholes)
        most = _SMALL_BYTES // max(sizes) if plain else 0
        self._last = _LastOutputs(
            layout, [(whole.row_shape, whole.array.dtype) for whole in wholes], most
        )
        return PlannedResponses(layout, contents)


class _LastOutputs(NamedTuple):
    """What the outputs of the last batch looked like."""

    layout: ResponseLayout
    arrays: list[tuple[tuple[int, ...], np.dtype]]  # without their first dimension
    most: int  # requests in a batch that is small enough to be copied


class SplittableOutput(Protocol):
    """One output of a whole batch."""

    def tensor(self) -> Tensor:
        """All of it, for a batch of one request."""

    def part(self, row: int, rows: int) -> Tensor:
        """The part of one request of several."""


class WholeOutput:
    """One output of a whole batch, to be split without a copy."""

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
        # Whether responses have the array's own bytes and shape.
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
