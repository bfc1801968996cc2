"""TensorFlow Lite with real models: what the common suite does not ask of every format."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.backends.base import Placement
from shoal.config.model import ModelConfig
from shoal.errors import ConfigError, InvalidArgument

pytest.importorskip("ai_edge_litert")

from shoal.backends.tflite import TfliteBackend
from tests.support import tflite_models
from tests.support.tflite_models import ModelBuilder

ON_CPU = Placement("KIND_CPU")


@pytest.fixture
def tflite(loader):
    loader.backend = TfliteBackend()
    loader.save = lambda content: tflite_models.save(
        content, loader.version_folder / "model.tflite"
    )
    return loader


def names(config):
    return [t.name for t in config.input], [t.name for t in config.output]


def test_the_names_of_the_signature(tflite):
    tflite.save(tflite_models.scaled(2))
    done = tflite.complete()
    assert names(done) == (["INPUT0"], ["OUTPUT0"])
    assert (done.max_batch_size, done.input[0].dims) == (4, (4,))


def test_the_names_of_the_tensors_where_there_is_no_signature(tflite):
    tflite.save(tflite_models.scaled(2, signature=False))
    assert names(tflite.complete()) == (["x"], ["y"])
    executor = tflite.load().executor(ON_CPU)
    for count in (1, 3, 2, 2):  # other sizes each time, and then the same
        rows = np.arange(count * 4, dtype=np.float32).reshape(count, 4)
        (answer,) = executor.run({"x": rows}, ["y"])
        assert np.array_equal(answer, 2 * rows)


def test_a_fixed_batch_of_one_is_served_as_it_is(tflite):
    tflite.save(tflite_models.scaled(2, batch=1))
    done = tflite.complete()
    assert (done.max_batch_size, done.input[0].dims) == (0, (1, 4))


@pytest.mark.parametrize("signature", [True, False])
def test_a_fixed_batch_of_one_is_resized_if_the_config_says_so(tflite, signature):
    tflite.save(tflite_models.scaled(2, batch=1, signature=signature))
    done = tflite.complete(ModelConfig(max_batch_size=8))
    assert done.input[0].dims == (4,)
    executor = tflite.load(ModelConfig(max_batch_size=8)).executor(ON_CPU)
    rows = np.ones((5, 4), np.float32)
    (answer,) = executor.run({done.input[0].name: rows}, [done.output[0].name])
    assert np.array_equal(answer, 2 * rows)


def test_a_model_that_cannot_be_resized(tflite):
    model = ModelBuilder()
    x = model.tensor("x", [1, 4])
    shape = model.tensor("shape", [2], "INT32", np.array([1, 4], np.int32))
    y = model.tensor("y", [1, 4])
    model.operator("RESHAPE", [x, shape], y)
    tflite.save(model.build([x], [y]))
    with pytest.raises(ConfigError, match="max_batch_size: the model does not take batches"):
        tflite.load(ModelConfig(max_batch_size=8))


def test_quantised_tensors_are_whole_numbers(tflite):
    tflite.save(tflite_models.identity("INT8", scale=0.5))
    done = tflite.complete()
    assert done.input[0].data_type == "TYPE_INT8"
    rows = np.array([[-128, 0, 127]], np.int8)
    (answer,) = tflite.load().executor(ON_CPU).run({"INPUT0": rows}, ["OUTPUT0"])
    assert answer.tolist() == rows.tolist()


def test_outputs_outlive_the_next_execution(tflite):
    tflite.save(tflite_models.scaled(2))
    executor = tflite.load().executor(ON_CPU)
    (kept,) = executor.run({"INPUT0": np.ones((1, 4), np.float32)}, ["OUTPUT0"])
    executor.run({"INPUT0": np.zeros((1, 4), np.float32)}, ["OUTPUT0"])
    assert (kept == 2).all()


def test_a_signature_that_is_not_there(tflite):
    tflite.save(tflite_models.scaled(2))
    with pytest.raises(
        ConfigError, match=r"'signature'\]: found 'other'. Write one of serving_default"
    ):
        tflite.load(parameters={"signature": "other"})


def test_a_missing_input(tflite):
    tflite.save(tflite_models.scaled(2))
    executor = tflite.load().executor(ON_CPU)
    with pytest.raises(InvalidArgument, match="cannot run without INPUT0"):
        executor.run({}, ["OUTPUT0"])
