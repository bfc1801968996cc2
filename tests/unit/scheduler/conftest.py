"""Ensembles from a few lines: signatures of models, and configs of the steps between them."""

from __future__ import annotations

import pytest

from shoal.config.model import (
    ModelConfig,
    ModelEnsembling,
    ModelInput,
    ModelOutput,
    ModelTensorReshape,
)
from shoal.core import dtypes
from shoal.core.signature import Signature, TensorSpec
from shoal.scheduler.ensemble_graph import ComposingModel, build

FILE = "models/pipe/config.pbtxt"


def spec(name, datatype=dtypes.INT32, dims=(1,), **options):
    return TensorSpec(name, datatype, dims, **options)


def signature(name, inputs, outputs, max_batch_size=8):
    def specs(tensors):
        made = [tensor if isinstance(tensor, TensorSpec) else spec(tensor) for tensor in tensors]
        return {tensor.name: tensor for tensor in made}

    return Signature(name, max_batch_size, specs(inputs), specs(outputs))


def model(name, inputs=("x",), outputs=("y",), *, version=-1, decoupled=False, max_batch_size=8):
    return ComposingModel(
        name, version, signature(name, inputs, outputs, max_batch_size), decoupled
    )


def tensor_config(kind, tensor):
    if isinstance(tensor, str):
        tensor = spec(tensor)
    options = {"optional": tensor.optional} if kind is ModelInput else {}
    if tensor.reshape is not None:
        options["reshape"] = ModelTensorReshape(shape=tensor.reshape)
    return kind(
        name=tensor.name, data_type=tensor.datatype.config_name, dims=tensor.dims, **options
    )


def pipe_config(steps, inputs=("IN",), outputs=("OUT",), *, max_batch_size=8, max_inflight=0):
    """The config of an ensemble; `steps` are (model, inputs by name, outputs by name)."""
    return ModelConfig(
        name="pipe",
        platform="ensemble",
        max_batch_size=max_batch_size,
        input=tuple(tensor_config(ModelInput, tensor) for tensor in inputs),
        output=tuple(tensor_config(ModelOutput, tensor) for tensor in outputs),
        ensemble_scheduling=ModelEnsembling(
            step=tuple(
                ModelEnsembling.Step(one.name, one.version, taken, given)
                for one, taken, given in steps
            ),
            max_inflight_requests=max_inflight,
        ),
    )


def pipe(steps, **options):
    """The graph of such an ensemble."""
    return build(pipe_config(steps, **options), [one for one, _, _ in steps], file=FILE)


class Kit:
    """What the tests of ensembles build with."""

    FILE = FILE
    spec = staticmethod(spec)
    signature = staticmethod(signature)
    model = staticmethod(model)
    pipe_config = staticmethod(pipe_config)
    pipe = staticmethod(pipe)


@pytest.fixture
def kit():
    return Kit
