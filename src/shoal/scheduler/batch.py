"""Joining a batch's inputs and handing out its outputs.

Inputs of several requests are joined once; outputs are views into what the model returned. A
batch of one is not copied at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.core.dtypes import BYTES
from shoal.core.request import Request
from shoal.core.signature import Signature, TensorSpec
from shoal.core.tensor import Tensor
from shoal.core.validate import format_dims, substitute
from shoal.errors import BackendFailure


def join(requests: Sequence[Request], signature: Signature) -> dict[str, np.ndarray]:
    """The inputs of all requests, one array per input, rows in request order.

    The requests passed validation and have equal batch keys, so this cannot fail on their account.
    """
    first = requests[0].inputs
    if len(requests) == 1:
        return {name: tensor.array for name, tensor in first.items()}
    joined: dict[str, np.ndarray] = {}
    for name, tensor in first.items():
        datatype = signature.inputs[name].datatype
        parts = [request.inputs[name] for request in requests]
        if datatype is not BYTES and all(part.has_raw for part in parts):
            flat = np.frombuffer(b"".join([part.raw for part in parts]), datatype.numpy)
            rows = sum(part.shape[0] for part in parts)
            joined[name] = flat.reshape(rows, *tensor.shape[1:])
        else:
            joined[name] = np.concatenate([part.array for part in parts])
    return joined


def wanted_outputs(requests: Sequence[Request], signature: Signature) -> list[str]:
    """The outputs to compute: what any of the requests asked for, in the config's order."""
    if any(not request.requested_outputs for request in requests):
        return list(signature.outputs)
    asked = {name for request in requests for name in request.requested_outputs}
    return [name for name in signature.outputs if name in asked]


def split(
    requests: Sequence[Request],
    names: Sequence[str],
    arrays: Sequence[np.ndarray],
    signature: Signature,
) -> list[list[Tensor]]:
    """Each request's outputs, as views, in the order it asked for them.

    Raises BackendFailure when an output does not have one row per row of the batch.
    """
    batched = signature.max_batch_size > 0
    total = sum(request.rows for request in requests)
    by_name: dict[str, tuple[TensorSpec, np.ndarray]] = {}
    for name, array in zip(names, arrays, strict=True):
        if batched and (array.ndim == 0 or array.shape[0] != total):
            raise BackendFailure(
                f"output '{name}' of model '{signature.model_name}' has shape "
                f"{format_dims(array.shape)} for a batch of {total}: its first dimension must be "
                f"the batch. Set max_batch_size: 0 if the model does not batch"
            )
        by_name[name] = (signature.outputs[name], array)
    result: list[list[Tensor]] = []
    row = 0
    for request in requests:
        end = row + request.rows
        outputs: list[Tensor] = []
        for name in request.requested_outputs or signature.outputs:
            spec, array = by_name[name]
            view = array if len(requests) == 1 else array[row:end]
            shape = view.shape
            if spec.reshape is not None:
                shape = _reshaped(spec, shape, batched=batched)
            outputs.append(Tensor(name, spec.datatype, shape, array=view))
        result.append(outputs)
        row = end
    return result


def _reshaped(spec: TensorSpec, shape: tuple[int, ...], *, batched: bool) -> tuple[int, ...]:
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
