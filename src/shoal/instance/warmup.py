"""Warm-up: executions before a model is READY, on every instance, as its config lists them.

Samples pass the same validation as requests, so a sample that does not fit the model is refused
with the same messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from shoal.backends.base import Executor, RequestExecutor
from shoal.config.model import ModelWarmup
from shoal.core import dtypes
from shoal.core.reply import DISCARD
from shoal.core.request import Request
from shoal.core.signature import Signature
from shoal.core.tensor import Tensor
from shoal.core.validate import validate
from shoal.errors import ConfigError, Internal, ShoalError
from shoal.instance.pending_request import InstancePendingRequest
from shoal.scheduler.assembly import Assembly
from shoal.scheduler.batch import join, wanted_outputs
from shoal.statistics.model import ModelStatistics

WarmUp: TypeAlias = Callable[[Executor | RequestExecutor], None]


def warm_up(
    samples: Sequence[ModelWarmup],
    signature: Signature,
    model_folder: Path,
    server_inputs: Callable[[], Mapping[str, Tensor]] | None = None,
    assembly: Assembly | None = None,
) -> WarmUp:
    """A function that runs every sample on an executor; ConfigError when a sample is wrong.

    `server_inputs` makes inputs that no client sends, where a sample does not give them. Inputs
    that an `assembly` makes from a batch are made from samples, too.
    """
    made = frozenset[str]() if assembly is None else assembly.made_inputs
    batches = [
        (sample, _requests(sample, signature, model_folder, server_inputs, made))
        for sample in samples
        if sample.batch_size
    ]

    def run(executor: Executor | RequestExecutor) -> None:
        for sample, requests in batches:
            try:
                for _ in range(max(1, sample.count)):
                    _execute(executor, requests, signature, assembly)
            except Exception as failure:
                raise ConfigError(
                    f"the warm-up sample '{sample.name}' failed: {failure}",
                    file="config.pbtxt",
                    field="model_warmup",
                    fix="Correct the sample's inputs or remove it",
                ) from failure

    return run


def _execute(
    executor: Executor | RequestExecutor,
    requests: Sequence[Request],
    signature: Signature,
    assembly: Assembly | None,
) -> None:
    if isinstance(executor, RequestExecutor):
        uncounted = ModelStatistics(signature.model_name, 0)
        pending = [InstancePendingRequest(r, signature.model_name, 0, uncounted) for r in requests]
        executor.execute(pending)
        if any(one.failed for one in pending):
            raise Internal("the model answered with an error")
    else:
        joined = join(requests) if assembly is None else assembly.join(requests)
        executor.run(joined, wanted_outputs(requests, signature))


def _requests(
    sample: ModelWarmup,
    signature: Signature,
    folder: Path,
    server_inputs: Callable[[], Mapping[str, Tensor]] | None,
    made_of_batches: frozenset[str],
) -> list[Request]:
    requests: list[Request] = []
    made = {} if server_inputs is None else dict(server_inputs())
    for _ in range(sample.batch_size if signature.max_batch_size else 1):
        inputs = {
            name: _tensor(sample, name, signature, folder)
            for name in sample.inputs
            if name not in made_of_batches
        }
        given = {name: inputs.pop(name) for name in made if name in inputs}
        request = Request(signature.model_name, inputs, DISCARD, id=f"warm-up {sample.name}")
        try:
            validate(request, signature)
        except ShoalError as error:
            raise _wrong(sample, error.message) from None
        if made:
            request.inputs = {**made, **given, **request.inputs}
        requests.append(request)
    if sum(request.rows for request in requests) > max(1, signature.max_batch_size):
        raise _wrong(
            sample,
            f"batch_size {sample.batch_size} exceeds max_batch_size {signature.max_batch_size}",
        )
    return requests


def _tensor(sample: ModelWarmup, name: str, signature: Signature, folder: Path) -> Tensor:
    spec = sample.inputs[name]
    datatype = dtypes.BY_CONFIG_NAME.get(spec.data_type)
    if datatype is None:
        raise _wrong(sample, f"input '{name}' has no valid data_type")
    shape = ((1,) if signature.max_batch_size else ()) + tuple(spec.dims)
    if any(dim < 0 for dim in shape):
        raise _wrong(sample, f"input '{name}' has dims {list(spec.dims)}; give every size")
    count = math.prod(shape)
    if spec.input_data_file is not None:
        return Tensor(name, datatype, shape, raw=_read(sample, spec.input_data_file, folder))
    if datatype is dtypes.BYTES:  # random strings are empty ones, as Triton does it
        array = np.full(count, b"", dtype=object)
    elif spec.random_data:
        raw = np.random.default_rng(0).bytes(count * datatype.itemsize)
        array = np.frombuffer(raw, np.uint8).view(_safe(datatype)).astype(datatype.numpy)
    else:
        array = np.zeros(count, datatype.numpy)
    return Tensor(name, datatype, shape, array=array.reshape(shape))


def _safe(datatype: dtypes.DataType) -> np.dtype[np.generic]:
    """A type for random bits: floats converted from random integers are never NaN."""
    if datatype.numpy.kind == "f":
        return np.dtype(f"i{datatype.itemsize}")
    return np.dtype(np.uint8) if datatype is dtypes.BOOL else datatype.numpy


def _read(sample: ModelWarmup, file: str, folder: Path) -> bytes:
    base = (folder / "warmup").resolve()
    path = (base / file).resolve()
    if not path.is_relative_to(base):
        raise _wrong(sample, f"input_data_file '{file}' lies outside the warmup folder")
    try:
        return path.read_bytes()
    except OSError as error:
        raise _wrong(sample, f"cannot read warmup/{file}: {error.strerror}") from None


def _wrong(sample: ModelWarmup, text: str) -> ConfigError:
    return ConfigError(
        f"warm-up sample '{sample.name}': {text}", file="config.pbtxt", field="model_warmup"
    )
