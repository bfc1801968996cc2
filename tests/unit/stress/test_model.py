"""The model on disk, and its config for a row."""

from __future__ import annotations

import pytest

from shoal.config import pbtxt
from shoal.config.options import Options
from shoal.errors import InvalidArgument, NotFound
from shoal.repository.preparation import PreparationSettings
from shoal.stress.cell import ServerSetup
from shoal.stress.model import QuestionModel, find_model
from tests.support import onnx_models
from tests.support.repositories import add_onnx

CONFIG = """
max_batch_size: 8
dynamic_batching { max_queue_delay_microseconds: 500 }
response_cache { enable: true }
instance_group { count: 3 kind: KIND_CPU }
parameters { key: "task" value { string_value: "question-answering" } }
parameters { key: "padding" value { string_value: "true" } }
parameters { key: "batch_by_shape" value { string_value: "true" } }
"""


@pytest.fixture
def settings():
    options = Options()
    return PreparationSettings(backend_settings=options.backend_settings())


@pytest.fixture
def models(tmp_path):
    def add(name, config):
        add_onnx(tmp_path, name, onnx_models.identity("FP32", [-1]), config)

    add("other", "max_batch_size: 4")
    add("plain", "max_batch_size: 4")
    return tmp_path, add


def model(tmp_path):
    return QuestionModel("faq", tmp_path, pbtxt.parse_pbtxt(CONFIG, "config.pbtxt"))


def test_a_row_with_batching(tmp_path):
    config = model(tmp_path).configured(ServerSetup(4, batching=True))
    assert [group.count for group in config.instance_group] == [4]
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    assert set(config.parameters) == {"task", "padding", "batch_by_shape"}
    assert config.response_cache is None


def test_a_row_without(tmp_path):
    config = model(tmp_path).configured(ServerSetup(2, batching=False))
    assert [(group.count, group.kind) for group in config.instance_group] == [(2, "KIND_CPU")]
    assert config.dynamic_batching is None
    assert set(config.parameters) == {"task"}


def test_no_model_for_questions(models, settings):
    folder, _ = models
    with pytest.raises(InvalidArgument, match=r"contains no model that is for questions; .*task"):
        find_model(str(folder), "", settings)
    with pytest.raises(InvalidArgument, match="model 'other' is not for questions"):
        find_model(str(folder), "other", settings)
    with pytest.raises(NotFound, match=r"no model 'othr' in .*; did you mean 'other'"):
        find_model(str(folder), "othr", settings)
    with pytest.raises(NotFound, match="none"):
        find_model(str(folder / "none"), "", settings)
