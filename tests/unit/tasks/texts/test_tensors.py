"""Which encoders the task takes, and what it feeds them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.core.dtypes import BYTES, FP32, INT32, INT64
from shoal.core.signature import Signature, TensorSpec
from shoal.errors import ConfigError
from shoal.tasks.settings import TaskSettings
from shoal.tasks.texts.tensors import TextTensors, TokenRow


def signature(inputs, outputs, max_batch_size=8):
    return Signature(
        "m",
        max_batch_size,
        {name: TensorSpec(name, kind, dims) for name, (kind, dims) in inputs.items()},
        {name: TensorSpec(name, kind, dims) for name, (kind, dims) in outputs.items()},
    )


def tensors(inputs=None, outputs=None, max_batch_size=8, **settings):
    inputs = inputs or {"input_ids": (INT64, (-1,)), "attention_mask": (INT64, (-1,))}
    outputs = outputs or {"last_hidden_state": (FP32, (-1, 4))}
    return TextTensors.of(
        signature(inputs, outputs, max_batch_size),
        TaskSettings(settings, Path()),
        "sentence-embedding",
        ("sentence_embedding", "last_hidden_state"),
    )


def test_the_usual_encoder():
    found = tensors()
    assert (found.output, found.size, found.per_token) == ("last_hidden_state", 4, True)
    assert (found.most_rows, found.width, found.masked) == (8, 0, True)
    made = found.arrays([TokenRow([7, 8, 9]), TokenRow([7])], pad_token=1)
    assert made["input_ids"].tolist() == [[7, 8, 9], [7, 1, 1]]
    assert made["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_the_sentence_itself_is_preferred_and_any_output_can_be_chosen():
    outputs = {"last_hidden_state": (FP32, (-1, 4)), "sentence_embedding": (FP32, (4,))}
    assert tensors(outputs=outputs).output == "sentence_embedding"
    assert tensors(outputs=outputs, output="last_hidden_state").per_token


def test_kinds_of_tokens_types_and_widths_are_the_models():
    inputs = {"token_type_ids": (INT32, (6,)), "input_ids": (INT32, (6,))}
    found = tensors(inputs)
    assert (found.width, found.masked) == (6, False)
    made = found.arrays([TokenRow([7, 8])], pad_token=0)
    assert made["input_ids"].tolist() == [[7, 8, 0, 0, 0, 0]]
    assert made["token_type_ids"].tolist() == [[0] * 6]
    assert made["input_ids"].dtype == np.int32


def test_a_model_whose_batch_is_in_its_dims():
    inputs = {"input_ids": (INT64, (-1, -1))}
    found = tensors(inputs, {"embedding": (FP32, (-1, 4))}, max_batch_size=0)
    assert (found.size, found.per_token, found.most_rows) == (4, False, 32)


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        ({"text": (BYTES, (1,))}, None, "the model has an input 'text'"),
        ({"attention_mask": (INT64, (-1,))}, None, "no input 'input_ids'"),
        ({"input_ids": (FP32, (-1,))}, None, "'input_ids' is FP32"),
        ({"input_ids": (INT64, (-1, 3))}, None, "not a row of tokens"),
        (None, {"label": (BYTES, (1,))}, "neither a vector nor one for each token"),
        (None, {"scores": (FP32, (1, 2, 3))}, "neither a vector nor one for each token"),
    ],
)
def test_other_models_are_refused(inputs, outputs, words):
    with pytest.raises(ConfigError, match=words):
        tensors(inputs, outputs)


def test_an_output_that_is_not_there():
    with pytest.raises(ConfigError, match=r"task\.json: output: the model has no output 'x'"):
        tensors(output="x")
