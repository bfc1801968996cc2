"""A model that takes and returns text, as OpenAI's routes use it.

    signature, config parameters, folder  -->  TextModel: its tensors, tokenizer and chat template

Any model with a BYTES input for the prompt and a BYTES output for the text is one: Python models
with the tensors of Triton's LLM backends, decoupled or not, and ensembles. So is a model with a
BYTES input for a photo instead of the prompt.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from shoal.config.model import ModelConfig
from shoal.core.dtypes import BYTES
from shoal.core.signature import TensorSpec
from shoal.engine import EngineModel
from shoal.frontends.http.openai.errors import OpenAiError
from shoal.frontends.http.openai.prompts import (
    TEMPLATE_FILE,
    TOKENIZER_CONFIG,
    ChatTemplate,
    read_chat_template,
)

INPUTS = ("text_input", "prompt", "text")
IMAGE = "image"
OUTPUTS = ("text_output", "generated_text", "completion", "response", "text")

# Parameters of config.pbtxt.
INPUT, OUTPUT = "openai_input", "openai_output"
MAX_TOKENS, TOKENIZER, TEMPLATE = "openai_max_tokens", "openai_tokenizer", "openai_chat_template"
_TOKENIZER_FILE = "tokenizer.json"


class TextModel:
    """One loaded version; `of` checks whether it is such a model."""

    def __init__(
        self,
        model: EngineModel,
        prompt: TensorSpec | None,
        image: TensorSpec | None,
        output: TensorSpec,
    ) -> None:
        self.name = model.name
        self.version = model.version
        self.signature = model.signature
        self.decoupled = model.decoupled
        self.prompt = prompt  # None for a model that takes photos
        self.image = image
        self.output = output
        self._config = model.config
        self._folders = model.folders
        self._tokenizer_file = self._found(TOKENIZER, _TOKENIZER_FILE)
        self._template_file = self._found(TEMPLATE, TEMPLATE_FILE) or self._found(
            "", TOKENIZER_CONFIG
        )
        self._lock = threading.Lock()  # guards the two below while they are read
        self._tokenizer: Any = None
        self._template: ChatTemplate | None = None

    @classmethod
    def of(cls, model: EngineModel) -> TextModel | None:
        """None for a model without a text output, or without an input for text or a photo."""
        signature = model.signature
        prompt = _chosen(signature.inputs, _parameter(model.config, INPUT), INPUTS)
        output = _chosen(signature.outputs, _parameter(model.config, OUTPUT), OUTPUTS)
        image = _chosen(signature.inputs, "", (IMAGE,))
        if output is None or (prompt is None and image is None):
            return None
        return cls(model, prompt, image if prompt is None else None, output)

    @property
    def default_max_tokens(self) -> int | None:
        """The default length from the config, if it has one."""
        value = _parameter(self._config, MAX_TOKENS)
        if value and not (value.isascii() and value.isdigit() and int(value)):
            raise OpenAiError(
                f"the config of '{self.name}' has {MAX_TOKENS} '{value}', which is not a number"
            )
        return int(value) if value else None

    @property
    def has_tokenizer(self) -> bool:
        """Whether the model has a tokenizer to count tokens with."""
        return self._tokenizer_file is not None

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template file."""
        return self._template_file is not None or bool(_parameter(self._config, TEMPLATE))

    def count_tokens(self, text: str) -> int:
        """The number of tokens of a text; of words, without a tokenizer. Blocks with one."""
        tokenizer = self._read_tokenizer()
        if tokenizer is None:
            return len(text.split())
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    def chat_template(self) -> ChatTemplate:
        """Converts conversations to prompts. Blocks the first time. OpenAiError where invalid."""
        with self._lock:
            if self._template is None:
                named = _parameter(self._config, TEMPLATE)
                self._template = read_chat_template(self.name, self._folders, named)
            return self._template

    def _read_tokenizer(self) -> Any:
        path = self._tokenizer_file
        if path is None:
            return None
        with self._lock:
            if self._tokenizer is None:
                try:
                    from tokenizers import Tokenizer

                    tokenizer = Tokenizer.from_file(str(path))
                except Exception as error:  # the library raises plain exceptions
                    raise OpenAiError(
                        f"the tokenizer of '{self.name}' cannot be used: {error}", status=500
                    ) from error
                tokenizer.no_truncation()
                tokenizer.no_padding()
                self._tokenizer = tokenizer
            return self._tokenizer

    def _found(self, parameter: str, usual: str) -> Path | None:
        name = _parameter(self._config, parameter) or usual
        return next((f / name for f in self._folders if (f / name).is_file()), None)


def _parameter(config: ModelConfig, name: str) -> str:
    found = config.parameters.get(name)
    return "" if found is None else found.string_value


def _chosen(
    tensors: dict[str, TensorSpec], named: str, usual: tuple[str, ...]
) -> TensorSpec | None:
    """The named tensor, or the first with a usual name in any letter case; only BYTES tensors."""
    texts = {spec.name: spec for spec in tensors.values() if spec.datatype is BYTES}
    if named:
        return texts.get(named)
    by_lower = {name.lower(): spec for name, spec in texts.items()}
    return next((by_lower[name] for name in usual if name in by_lower), None)
