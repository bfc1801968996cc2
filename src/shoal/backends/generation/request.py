"""Reads the tensors and parameters of a request for a text.

    image | pixel_values | input_features, text_input | prompt …  -->  GenerationRequest

For clients that send only tensors, the most used options are also inputs; as parameters of the
request all of them are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.config.model import ModelInput, ModelOutput
from shoal.core.request import Request
from shoal.errors import InvalidArgument
from shoal.generation.options import GenerationOptions
from shoal.tasks.images.preparation import ImagePreparation
from shoal.tasks.images.sent import images_of
from shoal.tasks.request import TaskRequest
from shoal.tasks.text_settings import TextSettings

IMAGE, PIXELS, IDS, TEXT = "image", "pixel_values", "input_ids", "text_input"
FEATURES = "input_features"  # of sound
PROMPT, STREAM, ECHO = "prompt", "stream", "echo"
TEXT_OUTPUT, TOKEN_IDS, REASON = "text_output", "token_ids", "finish_reason"
PROMPT_TOKENS, TOKENS, SCORE = "num_input_tokens", "num_output_tokens", "score"
_LONGEST = 1 << 20

_SCALARS = {
    "max_tokens": "TYPE_INT32",
    "num_beams": "TYPE_INT32",
    "temperature": "TYPE_FP32",
    "top_p": "TYPE_FP32",
    "seed": "TYPE_INT64",
    STREAM: "TYPE_BOOL",
}
_AS_TEXT = (b"data:", b"http://", b"https://")
_BASE64 = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\r\n")


def inputs(encoder_dims: tuple[int, ...] | None) -> tuple[ModelInput, ...]:
    """The inputs of a request, all optional but sound; three dims are a photo's, two a sound's."""
    if encoder_dims is None:
        first = [ModelInput(name=TEXT, data_type="TYPE_STRING", dims=(1,), optional=True)]
    elif len(encoder_dims) == 2:
        first = [ModelInput(name=FEATURES, data_type="TYPE_FP32", dims=encoder_dims)]
    else:
        first = [
            ModelInput(name=IMAGE, data_type="TYPE_STRING", dims=(1,), optional=True),
            ModelInput(name=PIXELS, data_type="TYPE_FP32", dims=encoder_dims, optional=True),
        ]
    ids = ModelInput(name=IDS, data_type="TYPE_INT64", dims=(-1,), optional=True)
    scalars = [
        ModelInput(name=name, data_type=data_type, dims=(1,), optional=True)
        for name, data_type in _SCALARS.items()
    ]
    return (*first, ids, *scalars)


def outputs() -> tuple[ModelOutput, ...]:
    """The outputs of responses: text and tokens in each, the others in the last one. Only beams
    have a score."""
    return (
        ModelOutput(name=TEXT_OUTPUT, data_type="TYPE_STRING", dims=(1,)),
        ModelOutput(name=TOKEN_IDS, data_type="TYPE_INT64", dims=(-1,)),
        ModelOutput(name=REASON, data_type="TYPE_STRING", dims=(1,)),
        ModelOutput(name=PROMPT_TOKENS, data_type="TYPE_INT32", dims=(1,)),
        ModelOutput(name=TOKENS, data_type="TYPE_INT32", dims=(1,)),
        ModelOutput(name=SCORE, data_type="TYPE_FP32", dims=(1,)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class GenerationRequest:
    """One text to be generated."""

    prompt: list[int]
    options: GenerationOptions
    features: np.ndarray | None  # one photo, prepared, or one window of sound
    stream: bool  # a response for each token
    echo: bool  # whether the text begins with the prompt


@dataclass(frozen=True, slots=True, eq=False)
class GenerationRequestReader:
    """Reads the requests of one model. Any thread may call it."""

    writing: TextSettings
    preparation: ImagePreparation | None  # None: the model has no photos
    sound: bool = False  # whether the model has sound instead

    def __call__(self, request: Request) -> GenerationRequest:
        """Read a request. Raises InvalidArgument with a message for the client."""
        tensors = request.inputs
        values: dict[str, Any] = dict(request.parameters)
        for name in _SCALARS:
            if name in tensors:
                values[name] = tensors[name].array.reshape(-1)[0].item()
        asked = TaskRequest((), values)
        prompt = self._prompt(request, asked)
        options = self.writing.options(asked, len(prompt))
        features = None
        if self.preparation is not None:
            features = self._pixels(request)
        elif self.sound:
            features = _finite(FEATURES, request.inputs[FEATURES].array)
        return GenerationRequest(
            prompt,
            options,
            features,
            asked.flag(STREAM, not request.one_answer),
            asked.flag(ECHO),
        )

    def _prompt(self, request: Request, asked: TaskRequest) -> list[int]:
        tensors, writing = request.inputs, self.writing
        if IDS in tensors:
            return writing.checked(tensors[IDS].array.reshape(-1).tolist())
        if TEXT in tensors:
            raw = tensors[TEXT].array.reshape(-1)[0]
            try:
                return writing.prompt_ids(raw.decode("utf-8") if type(raw) is bytes else str(raw))
            except UnicodeDecodeError:
                raise InvalidArgument(f"'{TEXT}' is not UTF-8 text") from None
        if self.preparation is None and not asked.has(PROMPT) and not writing.prompt:
            raise InvalidArgument(f"the request has no text to continue: send the input '{TEXT}'")
        return writing.prompt_ids(asked.text(PROMPT, longest=_LONGEST, default=writing.prompt))

    def _pixels(self, request: Request) -> np.ndarray:
        tensors = request.inputs
        if PIXELS in tensors:
            if IMAGE in tensors:
                raise InvalidArgument(f"'{IMAGE}' and '{PIXELS}' are both there: send one of them")
            return _finite(PIXELS, tensors[PIXELS].array)
        if IMAGE not in tensors:
            raise InvalidArgument(
                f"there is no image in the request: send the input '{IMAGE}' with the bytes of a "
                f"photo (in JSON as base64), or '{PIXELS}'"
            )
        data = tensors[IMAGE].array.reshape(-1)[0]
        data = data if isinstance(data, bytes) else str(data).encode()
        if data.startswith(_AS_TEXT) or (data and not set(data[:64]) - _BASE64):
            sent = TaskRequest((), {IMAGE: data.decode("latin-1")})
            data = bytes(images_of(sent)[0].data)
        assert self.preparation is not None
        return self.preparation(data)


def _finite(name: str, array: np.ndarray) -> np.ndarray:
    if not np.isfinite(array).all():
        raise InvalidArgument(f"'{name}' has values that are not numbers")
    return array
