"""Exported JAX functions: what the common suite does not ask of every format."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.backends.base import Placement
from shoal.errors import BackendFailure, ConfigError, InvalidArgument, Unsupported

pytest.importorskip("jax")

import jax
from jax import export

from shoal.backends.jax import JaxBackend
from tests.support import jax_models
from tests.support.jax_models import exported

ON_CPU = Placement("KIND_CPU")
FP32 = np.float32


@pytest.fixture
def jaxes(loader):
    loader.backend = JaxBackend()
    loader.save = lambda content: jax_models.save(content, loader.version_folder / "model.jax")
    return loader


def summary(tensors):
    return [(t.name, t.data_type, t.dims) for t in tensors]


def test_keywords_and_keys_are_names(jaxes):
    def function(*, image, scale):
        return {"scores": image * scale, "twice": {"image": image * 2}}

    jaxes.save(exported(function, image=(FP32, "b, 2"), scale=(FP32, "b, 1")))
    done = jaxes.complete()
    assert done.max_batch_size == 4
    assert summary(done.input) == [("image", "TYPE_FP32", (2,)), ("scale", "TYPE_FP32", (1,))]
    assert [t.name for t in done.output] == ["scores", "twice.image"]


def test_tensors_without_a_name_have_a_number(jaxes):
    jaxes.save(exported(lambda x, y: (x + y, x - y), (FP32, "b, 2"), (FP32, "b, 2")))
    done = jaxes.complete()
    assert [t.name for t in done.input] == ["INPUT__0", "INPUT__1"]
    assert [t.name for t in done.output] == ["OUTPUT__0", "OUTPUT__1"]
    executor = jaxes.load().executor(ON_CPU)
    ones = np.ones((3, 2), FP32)
    difference, total = executor.run(
        {"INPUT__0": ones, "INPUT__1": 2 * ones}, ["OUTPUT__1", "OUTPUT__0"]
    )
    assert (difference == -1).all()
    assert (total == 3).all()


def test_equal_keys_are_numbered_too(jaxes):
    jaxes.save(
        exported(lambda x: ({"y": x}, {"y": x}), (FP32, "b, 2")),
    )
    assert [t.name for t in jaxes.complete().output] == ["OUTPUT__0", "OUTPUT__1"]


def test_fixed_shapes_and_scalars(jaxes):
    jaxes.save(exported(lambda x, by: x * by, (FP32, "3, 2"), (FP32, "")))
    done = jaxes.complete()
    assert done.max_batch_size == 0
    assert [t.dims for t in done.input] == [(3, 2), (1,)]
    inputs = {"INPUT__0": np.ones((3, 2), FP32), "INPUT__1": np.array([4], FP32)}
    (answer,) = jaxes.load().executor(ON_CPU).run(inputs, ["OUTPUT__0"])
    assert (answer == 4).all()


def test_doubles_stay_doubles_and_leave_no_trace(jaxes):
    jaxes.save(exported(lambda x: x * 2, (np.float64, "b, 1")))
    (answer,) = jaxes.load().executor(ON_CPU).run({"INPUT__0": np.array([[0.1]])}, ["OUTPUT__0"])
    assert answer.dtype == np.float64
    assert answer[0, 0] == 0.2
    assert jax.numpy.zeros(1).dtype == FP32  # the process as before


def test_each_shape_is_compiled_once(jaxes):
    jaxes.save(jax_models.scaled(2))
    loaded = jaxes.load()
    first, second = loaded.executor(ON_CPU), loaded.executor(ON_CPU)
    for executor in (first, second, first):
        for count in (1, 2, 1):
            executor.run({"INPUT0": np.ones((count, 4), FP32)}, ["OUTPUT0"])
    assert len(loaded._function._compiled) == 2


def test_a_function_for_another_device(jaxes):
    made = export.export(jax.jit(lambda x: x), platforms=("cuda",))(
        jax.ShapeDtypeStruct((2,), FP32)
    )
    jaxes.save(bytes(made.serialize()))
    loaded = jaxes.load()
    with pytest.raises(ConfigError, match=r"exported for cuda, not for a CPU.*KIND_GPU"):
        loaded.executor(ON_CPU)
    with pytest.raises(Unsupported, match="finds no such device"):
        loaded.executor(Placement("KIND_GPU"))


def test_a_function_for_the_cpu_on_a_machine_with_a_gpu(jaxes):
    jaxes.save(jax_models.scaled(2))
    executor = jaxes.load().executor(Placement("KIND_GPU"))
    (answer,) = executor.run({"INPUT0": np.ones((1, 4), FP32)}, ["OUTPUT0"])
    assert (answer == 2).all()


def test_sizes_that_contradict_each_other(jaxes):
    jaxes.save(jax_models.add())
    executor = jaxes.load().executor(ON_CPU)
    inputs = {"INPUT__0": np.ones(3, FP32), "INPUT__1": np.ones(2, FP32)}
    with pytest.raises(BackendFailure, match="model 'm' failed"):
        executor.run(inputs, ["OUTPUT__0"])
    with pytest.raises(InvalidArgument, match="cannot run without INPUT__1"):
        executor.run({"INPUT__0": np.ones(3, FP32)}, ["OUTPUT__0"])
