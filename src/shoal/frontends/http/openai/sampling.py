"""The sampling options of a request, and how they are passed to a model.

{"max_tokens": 5, "stop": "."}  -->  an input of the model with that name (or a usual alias)
                                -->  else a member of its JSON input `sampling_parameters`
                                -->  else a parameter of the request
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.core.response import ParameterValue
from shoal.core.signature import TensorSpec
from shoal.core.tensor import Tensor
from shoal.errors import InvalidArgument
from shoal.frontends.http.openai.errors import OpenAiError
from shoal.frontends.http.openai.fields import Fields
from shoal.frontends.http.openai.text_model import TextModel
from shoal.wire import json_text
from shoal.wire.generate import plain_tensor

MOST_STOPS = 16
DEFAULT_MAX_TOKENS = 256  # for a model that requires it
_MOST_TOKENS = 10_000_000
_MOST_BYTES = 1 << 26

_JSON_INPUT = "sampling_parameters"  # of Triton's vLLM models
_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "stop": ("stop_words",),
    "seed": ("random_seed",),
    "max_tokens": ("request_output_len",),
}
# Inputs that make a model return what the response reports.
_REPORT_INPUTS = (
    "exclude_input_in_output",
    "return_finish_reason",
    "return_num_input_tokens",
    "return_num_output_tokens",
)
# Options that are passed on without a check.
_MORE = frozenset(
    {
        "top_k",
        "min_p",
        "min_tokens",
        "repetition_penalty",
        "length_penalty",
        "ignore_eos",
        "bad_words",
        "stop_token_ids",
        "skip_special_tokens",
        "include_stop_str_in_output",
        "logit_bias",
    }
)
# Fields without effect here.
_IGNORED = frozenset(
    {
        "user",
        "store",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
        "verbosity",
        "reasoning_effort",
    }
)
_HANDLED = frozenset(
    {
        "model",
        "prompt",
        "messages",
        "n",
        "stream",
        "stream_options",
        "echo",
        "max_completion_tokens",
        "max_tokens",
        "stop",
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "seed",
    }
)
# Fields that are not supported, with the values that request nothing.
_NOT_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}


@dataclass(slots=True)
class Sampling:
    """The sampling options of a request, checked."""

    values: dict[str, Any] = field(default_factory=dict)  # by the names of OpenAI's API
    more: dict[str, Any] = field(default_factory=dict)  # fields that are not in that API

    @property
    def stops(self) -> list[str]:
        """The stop sequences."""
        found: list[str] = self.values.get("stop", [])
        return found

    @property
    def max_tokens(self) -> int | None:
        """The maximum length of the text."""
        return self.values.get("max_tokens")


def read_sampling(fields: Fields, text_model: TextModel) -> Sampling:
    """Check the fields. OpenAiError for invalid and for unsupported ones."""
    for name, harmless in _NOT_SUPPORTED.items():
        value = fields.get(name)
        if value is not None and value not in harmless:
            if name in text_model.signature.inputs:
                continue  # the model itself handles it
            raise OpenAiError(f"'{name}' is not supported here; leave it out", name, "unsupported")
    values: dict[str, Any] = {}
    for name, lowest, highest in (
        ("temperature", 0.0, 2.0),
        ("top_p", 0.0, 1.0),
        ("presence_penalty", -2.0, 2.0),
        ("frequency_penalty", -2.0, 2.0),
    ):
        number = fields.number(name, lowest=lowest, highest=highest)
        if number is not None:
            values[name] = number
    if fields.get("seed") is not None:
        values["seed"] = fields.integer("seed", 0, lowest=-(2**63), highest=2**63 - 1)
    stops = list(fields.texts("stop", most=MOST_STOPS))
    if stops:
        values["stop"] = stops
    for name in ("max_tokens", "max_completion_tokens"):  # the newer name wins
        if fields.get(name) is not None:
            values["max_tokens"] = fields.integer(name, 1, lowest=1, highest=_MOST_TOKENS)
    if "max_tokens" not in values and text_model.default_max_tokens is not None:
        values["max_tokens"] = text_model.default_max_tokens
    known = {*_IGNORED, *_HANDLED, *_MORE}
    inputs = text_model.signature.inputs
    more: dict[str, Any] = {}
    for name, value in fields.values.items():
        if name in _MORE:
            values[name] = value
        elif name in inputs and name not in values and name not in _HANDLED:
            more[name] = value
        elif name in known or name in _NOT_SUPPORTED:
            continue
        elif type(value) in (str, int, float, bool):
            more[name] = value
        else:
            raise OpenAiError(
                f"'{name}' is neither a field of this API nor an input of '{text_model.name}'", name
            )
    return Sampling(values, more)


class ModelInputs:
    """The tensors and parameters that pass a prompt and its options to one model."""

    def __init__(self, text_model: TextModel, sampling: Sampling) -> None:
        self._model = text_model
        self._inputs = text_model.signature.inputs
        prompt = text_model.prompt or text_model.image
        assert prompt is not None, "a text model has one of them"
        self._prompt = prompt.name
        self.parameters: dict[str, ParameterValue] = {}
        self._given: dict[str, Any] = {}  # by the names of inputs
        packed: dict[str, Any] = {}
        for name, value in sampling.values.items():
            target = self._input_for(name)
            if target is not None:
                self._given[target.name] = value
            elif _JSON_INPUT in self._inputs:
                packed[name] = value
            else:
                self.parameters[name] = _scalar(value)
        for name, value in sampling.more.items():
            if name in self._inputs:
                self._given[name] = value
            else:
                self.parameters[name] = value
        if packed:
            self._given[_JSON_INPUT] = json_text.dumps(packed).decode()
        self._complete()

    @property
    def limits_length(self) -> bool:
        """Whether the model gets the maximum length, and so enforces it itself."""
        return self._input_for("max_tokens") is not None or _JSON_INPUT in self._inputs

    def tensors(self, prompt: str, *, stream: bool, number: int) -> dict[str, Tensor]:
        """The inputs for one text, the `number`th of its prompt. Raises OpenAiError.

        For a model that takes photos, `prompt` is one, as a data: URL.
        """
        given = {**self._given, self._prompt: prompt}
        seed = self._input_for("seed")
        if number and seed is not None and seed.name in given:  # otherwise all texts would be equal
            given[seed.name] += number
        if "stream" in self._inputs:
            given["stream"] = stream
        made: dict[str, Tensor] = {}
        for name, value in given.items():
            try:
                made[name] = plain_tensor(
                    self._inputs[name], self._model.signature, value, _MOST_BYTES
                )
            except InvalidArgument as error:
                raise OpenAiError(f"'{name}': {error.message}", name) from None
        return made

    def _input_for(self, name: str) -> TensorSpec | None:
        """The input for a field of OpenAI's API, if the model has one."""
        for known in (name, *_OTHER_NAMES.get(name, ())):
            if known in self._inputs and known != self._prompt:
                return self._inputs[known]
        return None

    def _complete(self) -> None:
        """Add the inputs that every request has and those that are required. Raises OpenAiError."""
        for name in _REPORT_INPUTS:
            if name in self._inputs:
                self._given.setdefault(name, True)
        length = self._input_for("max_tokens")
        if length is not None and not length.optional:
            self._given.setdefault(length.name, DEFAULT_MAX_TOKENS)
        for name, spec in self._inputs.items():
            added = name in (self._prompt, "stream")
            if not (spec.optional or added or name in self._given):
                raise OpenAiError(
                    f"the model '{self._model.name}' requires its input '{name}': send '{name}' "
                    f"with the prompt",
                    name,
                )


def _scalar(value: Any) -> ParameterValue:
    return value if type(value) in (str, int, float, bool) else json_text.dumps(value).decode()
