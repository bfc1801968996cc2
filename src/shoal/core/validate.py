"""Validation of requests: what passes can run, so one bad request never costs its batch-mates.

Sets `rows` and `batch_key` on the request; inputs with a `reshape` are replaced, in a new dict, by
ones of the shape the model sees. Texts are Triton's, because clients match on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from shoal.core import bytes_tensor
from shoal.core.dtypes import BYTES
from shoal.core.request import Request
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument

BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape. If you want to specify the full shape including the batch dim "
    "in your input dims config, try setting max_batch_size to zero."
)
# Beyond this a byte count no longer fits the 64-bit sizes of every client and library.
_MOST_ELEMENTS = 2**62
_MOST_VALIDATED = 256  # combinations of shapes that are cached for a model


def validate(request: Request, signature: Signature) -> None:
    """Check `request` against `signature`; InvalidArgument names the tensor and what was expected.

    On failure the request may be half prepared and must not be queued. Requests with the names,
    datatypes, shapes and sizes of an earlier one are valid, too: that is cached.
    """
    validated = signature.validated
    if validated is None:
        _validate(request, signature)
        return
    key = (
        request.requested_outputs,
        tuple(
            [
                (
                    name,
                    tensor.datatype.name,
                    tensor.shape,
                    tensor.nbytes if tensor.has_raw else None,
                )
                for name, tensor in request.inputs.items()
            ]
        ),
    )
    found = validated.get(key)
    if found is None:
        _validate(request, signature)
        if len(validated) >= _MOST_VALIDATED:
            validated.clear()
        validated[key] = (request.rows, request.batch_key)
    else:
        request.rows, request.batch_key = found


def _validate(request: Request, signature: Signature) -> None:
    # The names first, and without the prefix: clients match on how these texts begin.
    for name in request.requested_outputs:
        if name not in signature.outputs:
            raise _unexpected("output", name, signature.outputs, signature)
    if not signature.required_inputs <= len(request.inputs) <= len(signature.inputs):
        raise InvalidArgument(request.log_prefix() + _wrong_count(request, signature).message)
    for name in request.inputs:
        if name not in signature.inputs:
            raise _unexpected("input", name, signature.inputs, signature)
    try:
        _check(request, signature)
    except InvalidArgument as error:
        raise InvalidArgument(request.log_prefix() + error.message) from None


def _check(request: Request, signature: Signature) -> None:
    inputs = request.inputs
    for name, tensor in inputs.items():
        spec = signature.inputs[name]
        if tensor.datatype is not spec.datatype:
            raise InvalidArgument(
                f"inference input '{name}' data-type is '{tensor.datatype.name}', but model "
                f"'{signature.model_name}' expects '{spec.datatype.name}'"
            )
    if signature.has_optional and any(
        not spec.optional and name not in inputs for name, spec in signature.inputs.items()
    ):
        raise _wrong_count(request, signature)
    request.rows = _rows(inputs, signature) if signature.max_batch_size else 1
    for name, tensor in inputs.items():
        _check_tensor(tensor, signature.inputs[name], signature)
    request.batch_key = _batch_key(request, signature)
    if signature.has_reshape:
        skip = 1 if signature.max_batch_size else 0
        request.inputs = {
            name: _reshaped(tensor, signature.inputs[name], skip) for name, tensor in inputs.items()
        }
    if signature.padding is not None:  # after the reshapes: its dimensions are the model's
        request.batch_key = (request.batch_key, signature.padding.key(request.inputs))


def _rows(inputs: dict[str, Tensor], signature: Signature) -> int:
    """The batch dimension, which all inputs share."""
    rows: int | None = None
    for name, tensor in inputs.items():
        if not tensor.shape:
            raise InvalidArgument(
                f"input '{name}' has no shape but model requires batch dimension for "
                f"'{signature.model_name}'"
            )
        if rows is None:
            rows = tensor.shape[0]
        elif tensor.shape[0] != rows:
            raise InvalidArgument(
                f"input '{name}' batch size does not match other inputs for "
                f"'{signature.model_name}'"
            )
    if rows is None:
        return 1  # every input is optional and none was sent
    if rows > signature.max_batch_size:
        raise InvalidArgument(
            f"inference request batch-size must be <= {signature.max_batch_size} for "
            f"'{signature.model_name}'"
        )
    if rows < 1:
        raise InvalidArgument(
            f"inference request batch-size must be >= 1 for '{signature.model_name}', got {rows}"
        )
    return rows


def _batch_key(request: Request, signature: Signature) -> object:
    """What must be equal for two requests to share a batch."""
    if not signature.shape_keyed and not signature.has_optional:
        return ()
    skip = 1 if signature.max_batch_size else 0
    inputs = request.inputs
    shapes = tuple(
        inputs[name].shape[skip:] if name in inputs else None for name in signature.shape_keyed
    )
    if not signature.has_optional:
        return shapes
    names = frozenset(inputs)
    if signature.padding is not None:
        names |= signature.padding.masks  # generated if the client omits them
    return shapes, names


def _check_tensor(tensor: Tensor, spec: TensorSpec, signature: Signature) -> None:
    """Shape, reshape and byte size of one input."""
    shape = tensor.shape
    skip = 1 if signature.max_batch_size else 0
    dims = shape[skip:]
    fits = len(dims) == len(spec.dims)
    for dim in dims:
        if dim < 0:
            raise InvalidArgument(
                f"All input dimensions should be specified for input '{spec.name}' for model "
                f"'{signature.model_name}', got {format_dims(shape)}"
            )
    if fits:
        for want, got in zip(spec.dims, dims, strict=True):
            if want not in (-1, got):
                fits = False
    if not fits:
        expected = (-1, *spec.dims) if skip else spec.dims
        note = " " + BATCH_NOTE if skip else ""
        raise InvalidArgument(
            f"unexpected shape for input '{spec.name}' for model '{signature.model_name}'. "
            f"Expected {format_dims(expected)}, got {format_dims(shape)}.{note}"
        )
    count = math.prod(shape)
    if count > _MOST_ELEMENTS:
        raise InvalidArgument(
            f"the shape {format_dims(shape)} of input '{spec.name}' for model "
            f"'{signature.model_name}' has more elements than can be addressed"
        )
    if spec.datatype is BYTES:
        if tensor.has_raw:  # also decodes: the model needs the elements anyway
            where = f"inference input '{spec.name}' for model '{signature.model_name}'"
            array = bytes_tensor.decode(tensor.raw, count, where)
            tensor.adopt(array.reshape(shape))
    elif tensor.has_raw and tensor.nbytes != count * spec.datatype.itemsize:
        raise InvalidArgument(
            f"input byte size mismatch for input '{spec.name}' for model "
            f"'{signature.model_name}'. Expected {count * spec.datatype.itemsize}, "
            f"got {tensor.nbytes}"
        )


def _reshaped(tensor: Tensor, spec: TensorSpec, skip: int) -> Tensor:
    """The tensor in the shape of the model; the first `skip` dimensions stay as they are."""
    if spec.reshape is None:
        return tensor
    shape = tensor.shape
    return tensor.with_shape(shape[:skip] + substitute(spec.dims, shape[skip:], spec.reshape))


def substitute(
    pattern: tuple[int, ...], shape: tuple[int, ...], target: tuple[int, ...]
) -> tuple[int, ...]:
    """`target` with its -1s replaced, in order, by the values `shape` has at `pattern`'s -1s."""
    values = iter([got for want, got in zip(pattern, shape, strict=True) if want == -1])
    return tuple(next(values) if dim == -1 else dim for dim in target)


def format_dims(dims: tuple[int, ...]) -> str:
    """A shape as Triton prints it: `[-1,3]`."""
    return "[" + ",".join(map(str, dims)) + "]"


def _unexpected(
    kind: str, name: str, known: dict[str, TensorSpec], signature: Signature
) -> InvalidArgument:
    allowed = f", allowed {kind}s are: {', '.join(known)}" if known else ""
    return InvalidArgument(
        f"unexpected inference {kind} '{name}' for model '{signature.model_name}'{allowed}"
    )


def _wrong_count(request: Request, signature: Signature) -> InvalidArgument:
    total, required = len(signature.inputs), signature.required_inputs
    missing = [n for n, s in signature.inputs.items() if not s.optional and n not in request.inputs]
    wanted = str(total) if total == required else f"number of inputs between {required} and {total}"
    plural = " inputs" if total == required else ""
    return InvalidArgument(
        f"expected {wanted}{plural} but got {len(request.inputs)} inputs for model "
        f"'{signature.model_name}'. Got input(s) {_quoted(request.inputs)}, but missing required "
        f"input(s) {_quoted(missing)}. Please provide all required input(s)."
    )


def _quoted(names: Iterable[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"
