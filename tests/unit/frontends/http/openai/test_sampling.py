"""What a client asks of a generation, and how it is passed to each kind of model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.config.model import ModelConfig, ModelParameter
from shoal.core.dtypes import BOOL, BYTES, FP32, INT32, UINT64
from shoal.core.signature import Signature, TensorSpec
from shoal.frontends.http.openai.errors import OpenAiError
from shoal.frontends.http.openai.fields import Fields
from shoal.frontends.http.openai.sampling import ModelInputs, read_sampling
from shoal.frontends.http.openai.text_model import TextModel


class Model:
    name, version, decoupled = "m", 1, True

    def __init__(self, inputs, outputs=("text_output",), parameters=None, folder=Path("nowhere")):
        self.config = ModelConfig(
            parameters={
                key: ModelParameter(string_value=value) for key, value in (parameters or {}).items()
            }
        )
        kinds = {name: TensorSpec(name, BYTES, (1,)) for name in outputs}
        self.signature = Signature("m", 0, inputs, kinds)
        self.folders = (folder, folder)


def inputs(*required, **optional):
    made = {name: TensorSpec(name, BYTES, (1,)) for name in required}
    for name, (kind, dims) in optional.items():
        made[name] = TensorSpec(name, kind, dims, optional=True)
    return made


def text_model(*required, parameters=None, **optional):
    found = TextModel.of(
        Model(inputs(*(required or ("text_input",)), **optional), parameters=parameters)
    )
    assert found is not None
    return found


def passed(model, **fields):
    sampling = read_sampling(Fields({"model": "m", **fields}), model)
    made = ModelInputs(model, sampling)
    tensors = made.tensors("hi", stream=True, number=0)
    return {name: tensor.array.tolist() for name, tensor in tensors.items()}, made.parameters


def test_a_model_with_inputs_of_these_names_is_told_by_them():
    model = text_model(
        max_tokens=(INT32, (1,)),
        temperature=(FP32, (1,)),
        stop_words=(BYTES, (-1,)),
        random_seed=(UINT64, (1,)),
        stream=(BOOL, (1,)),
    )
    found, parameters = passed(model, max_tokens=5, temperature=1, stop=["a", "b"], seed=7)
    assert found == {
        "text_input": [b"hi"],
        "max_tokens": [5],
        "temperature": [1.0],
        "stop_words": [b"a", b"b"],
        "random_seed": [7],
        "stream": [True],
    }
    assert parameters == {}


def test_a_model_in_the_manner_of_vllm_is_told_in_one_json_text():
    model = text_model(
        sampling_parameters=(BYTES, (1,)),
        exclude_input_in_output=(BOOL, (1,)),
        return_finish_reason=(BOOL, (1,)),
    )
    found, parameters = passed(model, max_completion_tokens=5, top_k=3, stop="x")
    assert json.loads(found.pop("sampling_parameters")[0]) == {
        "max_tokens": 5,
        "top_k": 3,
        "stop": ["x"],
    }
    assert found == {
        "text_input": [b"hi"],
        "exclude_input_in_output": [True],
        "return_finish_reason": [True],
    }
    assert parameters == {}


def test_a_model_that_takes_none_of_it_gets_parameters():
    found, parameters = passed(text_model(), max_tokens=5, stop=["x"], mood="calm", user="u")
    assert found == {"text_input": [b"hi"]}
    assert parameters == {"max_tokens": 5, "stop": '["x"]', "mood": "calm"}


def test_any_input_of_the_model_can_be_sent():
    found, _ = passed(
        text_model(beams=(INT32, (1,)), tags=(BYTES, (-1,))), beams=2, tags=["a", "b"]
    )
    assert found["beams"] == [2]
    assert found["tags"] == [b"a", b"b"]


def test_what_the_model_must_have_and_nobody_sends():
    model = text_model("text_input", "mood")
    with pytest.raises(OpenAiError, match="requires its input 'mood'") as raised:
        passed(model)
    assert raised.value.param == "mood"
    assert passed(model, mood="calm")[0]["mood"] == [b"calm"]


def test_a_length_that_must_be_told_has_a_default():
    needed = inputs("text_input")
    needed["max_tokens"] = TensorSpec("max_tokens", INT32, (1,))
    model = TextModel.of(Model(needed))
    assert passed(model)[0]["max_tokens"] == [256]
    model = TextModel.of(Model(needed, parameters={"openai_max_tokens": "40"}))
    assert passed(model)[0]["max_tokens"] == [40]
    assert passed(model, max_tokens=2)[0]["max_tokens"] == [2]


def test_texts_of_one_prompt_have_different_seeds():
    model = text_model(seed=(UINT64, (1,)))
    made = ModelInputs(model, read_sampling(Fields({"seed": 7}), model))
    seeds = [made.tensors("hi", stream=False, number=n)["seed"].array[0] for n in range(3)]
    assert seeds == [7, 8, 9]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": 2.5}, "temperature", "a number from 0 to 2"),
        ({"temperature": "hot"}, "temperature", "a number from 0 to 2"),
        ({"top_p": -1}, "top_p", "a number from 0 to 1"),
        ({"max_tokens": 0}, "max_tokens", "a whole number from 1"),
        ({"stop": [""]}, "stop", "a text or a list of texts"),
        ({"stop": ["x"] * 17}, "stop", "at most 16 elements, not 17"),
        ({"seed": 1.5}, "seed", "a whole number"),
        ({"tools": [{"type": "function"}]}, "tools", "not supported here"),
        ({"logprobs": True}, "logprobs", "not supported here"),
        ({"logprobs": 3}, "logprobs", "not supported here"),
        ({"best_of": 3}, "best_of", "not supported here"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported here"),
        ({"odd": {"a": 1}}, "odd", "neither a field of this API nor an input of 'm'"),
    ],
)
def test_wrong_and_unknown_fields_are_named(fields, param, words):
    with pytest.raises(OpenAiError, match=words) as raised:
        passed(text_model(), **fields)
    assert raised.value.param == param


def test_a_value_that_the_models_input_cannot_hold():
    with pytest.raises(OpenAiError, match="'beams'") as raised:
        passed(text_model(beams=(INT32, (1,))), beams="many")
    assert raised.value.param == "beams"


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": False},
        {"tools": []},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"best_of": 1},
        {"metadata": {"a": "b"}, "store": True},
        {"stop": None, "seed": None},
    ],
)
def test_fields_that_ask_for_nothing_are_taken(fields):
    assert passed(text_model(), **fields) == ({"text_input": [b"hi"]}, {})


@pytest.mark.parametrize(
    ("taken", "given", "parameters", "is_one"),
    [
        ("text_input", "text_output", {}, True),
        ("PROMPT", "TEXT", {}, True),
        ("INPUT0", "OUTPUT0", {}, False),  # strings, but who knows what they are
        ("INPUT0", "OUTPUT0", {"openai_input": "INPUT0", "openai_output": "OUTPUT0"}, True),
        ("text_input", "OUTPUT0", {"openai_output": "no such"}, False),
    ],
)
def test_which_models_make_text(taken, given, parameters, is_one):
    model = Model(inputs(taken), (given,), parameters)
    assert (TextModel.of(model) is not None) == is_one


def test_tokens_are_words_where_there_is_no_tokenizer():
    model = text_model()
    assert not model.has_tokenizer
    assert model.count_tokens("one two  three") == 3
