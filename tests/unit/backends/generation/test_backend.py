"""What the generation backend says of configs, before it looks at files."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.backends.base import LoadContext, Placement
from shoal.backends.generation import request as requests
from shoal.backends.generation.backend import GenerationBackend
from shoal.config.model import ModelConfig
from shoal.errors import ConfigError, NotFound


def load(folder, config, kind="KIND_CPU"):
    context = LoadContext(folder, folder / "1", 1, config, [Placement(kind, 0, "m_0")])
    return GenerationBackend().load(context)


def test_batches_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"max_batch_size: found 4.*max_sequences"):
        load(tmp_path, ModelConfig(name="m", max_batch_size=4))


def test_files_that_are_not_there_are_told_with_what_makes_them(tmp_path):
    with pytest.raises(NotFound, match=r"unable to find 'decoder\.onnx'.*shoal export"):
        load(tmp_path, ModelConfig(name="m"))
    with pytest.raises(NotFound, match=r"unable to find 'other\.onnx'"):
        load(tmp_path, ModelConfig(name="m", default_model_filename="other.onnx"))


def test_a_config_with_tensors_is_completed_without_files(tmp_path):
    config = ModelConfig(name="m", input=requests.inputs(None), output=requests.outputs())
    completed = GenerationBackend().complete(config, tmp_path, tmp_path / "1", {})
    assert completed.model_transaction_policy.decoupled
    policy = completed.model_transaction_policy
    assert completed == dataclasses.replace(config, model_transaction_policy=policy)


def test_what_requests_may_carry():
    with_photos = [tensor.name for tensor in requests.inputs((3, 8, 8))]
    without = [tensor.name for tensor in requests.inputs(None)]
    assert with_photos[:3] == ["image", "pixel_values", "input_ids"]
    assert without[:2] == ["text_input", "input_ids"]
    assert with_photos[3:] == without[2:]
    assert all(tensor.optional for tensor in requests.inputs((3, 8, 8)))
