"""What a client asks of the generation, and how a model is told.

{"max_tokens": 5, "stop": "."}  -->  an input of the model by that name (or its usual other one)
                                -->  else a member of its input `sampling_parameters`, JSON
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
from shoal.frontends.http.openai.errors import Refused
from shoal.frontends.http.openai.fields import Fields
from shoal.frontends.http.openai.text_model import TextModel
from shoal.wire import json_text
from shoal.wire.generate import plain_tensor

MOST_STOPS = 16
DEFAULT_MAX_TOKENS = 256  # for a model that must be told
_MOST_TOKENS = 10_000_000
_MOST_BYTES = 1 << 26

_JSON_INPUT = "sampling_parameters"  # of Triton's vLLM models
_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "stop": ("stop_words",),
    "seed": ("random_seed",),
    "max_tokens": ("request_output_len",),
}
# Inputs that ask a model for what these routes tell their clients.
_ASK_FOR = (
    "exclude_input_in_output",
    "return_finish_reason",
    "return_num_input_tokens",
    "return_num_output_tokens",
)
# Beside those that are checked one by one, what models' sampling knows.
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
# Of no consequence here.
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
_OUR_OWN = frozenset(
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
# Values with which a field asks for nothing: any other is refused.
_NOT_OFFERED: Mapping[str, tuple[Any, ...]] = {
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
    """What a request says about the generation, checked."""

    values: dict[str, Any] = field(default_factory=dict)  # by the names of OpenAI's API
    more: dict[str, Any] = field(default_factory=dict)  # that its API does not know

    @property
    def stops(self) -> list[str]:
        """Where the text ends."""
        found: list[str] = self.values.get("stop", [])
        return found

    @property
    def max_tokens(self) -> int | None:
        """How long the text may get."""
        return self.values.get("max_tokens")


def read_sampling(fields: Fields, text_model: TextModel) -> Sampling:
    """Check the fields. Refused for what is wrong and for what is not offered."""
    for name, harmless in _NOT_OFFERED.items():
        value = fields.get(name)
        if value is not None and value not in harmless:
            if name in text_model.signature.inputs:
                continue  # the model itself knows what to do with it
            raise Refused(f"'{name}' is not offered here; leave it out", name, "unsupported")
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
    known = {*_IGNORED, *_OUR_OWN, *_MORE}
    inputs = text_model.signature.inputs
    more: dict[str, Any] = {}
    for name, value in fields.values.items():
        if name in _MORE:
            values[name] = value
        elif name in inputs and name not in values and name not in _OUR_OWN:
            more[name] = value
        elif name in known or name in _NOT_OFFERED:
            continue
        elif type(value) in (str, int, float, bool):
            more[name] = value
        else:
            raise Refused(
                f"'{name}' is no field of this API and no input of '{text_model.name}'", name
            )
    return Sampling(values, more)


class Told:
    """How one model is told: tensors and parameters for a prompt."""

    def __init__(self, text_model: TextModel, sampling: Sampling) -> None:
        self._model = text_model
        self._sampling = sampling
        self._inputs = text_model.signature.inputs
        prompt = text_model.prompt or text_model.image
        assert prompt is not None, "a text model has one of them"
        self._prompt = prompt.name
        self.parameters: dict[str, ParameterValue] = {}
        self._given: dict[str, Any] = {}  # by the names of inputs
        packed: dict[str, Any] = {}
        for name, value in sampling.values.items():
            taker = self._taker(name)
            if taker is not None:
                self._given[taker.name] = value
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
    def minds_length(self) -> bool:
        """Whether the model itself is told how long its text may get."""
        return self._taker("max_tokens") is not None or _JSON_INPUT in self._inputs

    def tensors(self, prompt: str, *, stream: bool, number: int) -> dict[str, Tensor]:
        """The inputs for one text; `number` tells apart those of one prompt. Raises Refused.

        For a model that looks at photos `prompt` is one, as a data: URL.
        """
        given = {**self._given, self._prompt: prompt}
        seed = self._taker("seed")
        if number and seed is not None and seed.name in given:  # or all would be the same text
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
                raise Refused(f"'{name}': {error.message}", name) from None
        return made

    def _taker(self, name: str) -> TensorSpec | None:
        """The input that takes a value of OpenAI's, if the model has one."""
        for known in (name, *_OTHER_NAMES.get(name, ())):
            if known in self._inputs and known != self._prompt:
                return self._inputs[known]
        return None

    def _complete(self) -> None:
        """Add what is asked of every model, and what this one must be told. Raises Refused."""
        for name in _ASK_FOR:
            if name in self._inputs:
                self._given.setdefault(name, True)
        length = self._taker("max_tokens")
        if length is not None and not length.optional:
            self._given.setdefault(length.name, DEFAULT_MAX_TOKENS)
        for name, spec in self._inputs.items():
            ours = name in (self._prompt, "stream")
            if not (spec.optional or ours or name in self._given):
                raise Refused(
                    f"the model '{self._model.name}' needs its input '{name}': send '{name}' "
                    f"beside the prompt",
                    name,
                )


def _scalar(value: Any) -> ParameterValue:
    return value if type(value) in (str, int, float, bool) else json_text.dumps(value).decode()
