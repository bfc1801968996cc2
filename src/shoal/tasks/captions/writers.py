"""Two ways to generate a caption, for the two kinds of models.

    GeneratingModel   one request, a response for each token (the backend `generation`)
    StepwiseModel     pixel_values, input_ids, attention_mask --> logits, a request for each token

Both yield pieces of text as they are generated, and the caption at the end.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from shoal.core import dtypes
from shoal.core.response import ParameterValue
from shoal.core.signature import Signature
from shoal.errors import ConfigError
from shoal.generation.beams import BeamSearch, BeamStep
from shoal.generation.choice import TokenSampler
from shoal.generation.options import Generated, GenerationOptions
from shoal.generation.text import TextStream
from shoal.tasks.base import TaskContext
from shoal.tasks.text_settings import TextSettings

PIXELS, IDS, MASK, LOGITS = "pixel_values", "input_ids", "attention_mask", "logits"
TEXT_OUTPUT, TOKEN_IDS = "text_output", "token_ids"
REASON, SCORE = "finish_reason", "score"


@dataclass(frozen=True, slots=True)
class Caption:
    """A complete caption. `caption` begins with the prompt."""

    caption: str
    tokens: int
    finish_reason: str
    score: float | None = None


class CaptionWriter(Protocol):
    """Generates captions."""

    def write(
        self, pixels: np.ndarray, prompt: Sequence[int], options: GenerationOptions, *, stream: bool
    ) -> AsyncGenerator[str | Caption, None]:
        """The text after the prompt, and then the whole caption.

        With `stream` the text comes in pieces, otherwise it may come in one. Closing this generator
        cancels the requests to the model.
        """


def writer_of(context: TaskContext, settings: TextSettings) -> CaptionWriter:
    """The writer for this model. Raises ConfigError if its tensors fit neither."""
    signature = context.signature
    if {PIXELS, IDS, MASK} <= set(signature.inputs) and LOGITS in signature.outputs:
        return StepwiseModel(context, settings)
    if PIXELS in signature.inputs and {TEXT_OUTPUT, TOKEN_IDS} <= set(signature.outputs):
        return GeneratingModel(context, settings)
    raise ConfigError(
        f"the task 'image-to-text' cannot use a model with the inputs "
        f"{_names(signature.inputs)} and the outputs {_names(signature.outputs)}",
        file="config.pbtxt",
        field="parameters['task']",
        fix=f"It needs {PIXELS}, {IDS} and {MASK} with {LOGITS}, or a model of the backend "
        f"'generation', as shoal export blip writes them",
    )


def pixel_dims(signature: Signature) -> tuple[int, ...]:
    """The dims of a photo."""
    spec = signature.inputs.get(PIXELS)
    if spec is None or spec.datatype is not dtypes.FP32:
        raise ConfigError(
            f"the task 'image-to-text' needs an input '{PIXELS}' of TYPE_FP32",
            file="config.pbtxt",
            field="input",
        )
    return spec.dims


class GeneratingModel:
    """A decoupled model that generates the text itself."""

    def __init__(self, context: TaskContext, settings: TextSettings) -> None:
        self._context = context
        self._settings = settings

    async def write(
        self, pixels: np.ndarray, prompt: Sequence[int], options: GenerationOptions, *, stream: bool
    ) -> AsyncGenerator[str | Caption, None]:
        """See `CaptionWriter.write`."""
        inputs = {PIXELS: pixels, IDS: np.array(prompt, np.int64)}
        pieces: list[str] = []
        tokens, reason = 0, ""
        score: float | None = None
        parameters = {**_parameters(options), "stream": stream}
        responses = self._context.infer_stream(inputs, (), parameters)
        async for response in responses:
            tokens += response[TOKEN_IDS].size
            piece = response[TEXT_OUTPUT].reshape(-1)[0].decode()
            if REASON in response:
                reason = response[REASON].reshape(-1)[0].decode()
                score = _score(response)
            if piece:
                pieces.append(piece)
                yield piece
        begun = self._settings.decode(prompt)
        yield Caption((begun + "".join(pieces)).strip(), tokens, reason, score)


class _Beams(NamedTuple):
    """A step of a beam search, for a thread."""

    search: BeamSearch
    logits: np.ndarray


class StepwiseModel:
    """A model without state that returns the logits of the next token, called in a loop.

    The steps of concurrent captions share batches in the model's queue.
    """

    def __init__(self, context: TaskContext, settings: TextSettings) -> None:
        signature = context.signature
        if not signature.max_batch_size:
            raise ConfigError(
                "is 0: the task 'image-to-text' needs a batch dimension",
                file="config.pbtxt",
                field="max_batch_size",
                fix="Write max_batch_size: 16, and dims without the batch dimension",
            )
        for name, dims in ((IDS, 1), (MASK, 1)):
            spec = signature.inputs[name]
            if spec.datatype is not dtypes.INT64 or len(spec.dims) != dims:
                raise ConfigError(
                    f"'{name}' must be TYPE_INT64 with dims: [ -1 ]",
                    file="config.pbtxt",
                    field="input",
                )
        self._context = context
        self._settings = settings
        self._advance = context.stage("postprocess", _advanced)

    async def write(
        self, pixels: np.ndarray, prompt: Sequence[int], options: GenerationOptions, *, stream: bool
    ) -> AsyncGenerator[str | Caption, None]:
        """See `CaptionWriter.write`."""
        settings = self._settings
        search = TokenSampler(options) if options.num_beams == 1 else BeamSearch(options)
        ids = np.tile(np.array(prompt, np.int64), (search.width, 1))
        photos = np.repeat(pixels[None], search.width, axis=0)
        text = TextStream(settings.decode, prompt)
        result: Generated | None = None
        sent = 0
        while result is None:
            logits = await self._logits(photos, ids)
            if isinstance(search, TokenSampler):
                token = search.advance(logits[0], int(logits[0].argmax()))
                ids = np.append(ids, [[token]], axis=1)
                result = search.result()
                if result is None and stream:
                    sent += 1
                    piece = text.push([token])
                    if piece:
                        yield piece
            else:
                step = await self._advance(_Beams(search, logits))
                ids = np.concatenate([ids[step.parents], step.tokens[:, None]], axis=1)
                result = search.result()
        rest = text.push(settings.without_stop(result.token_ids[sent:])) + text.rest()
        if rest:
            yield rest
        whole = settings.decode([*prompt, *settings.without_stop(result.token_ids)]).strip()
        yield Caption(whole, len(result.token_ids), result.reason.value, result.score)

    async def _logits(self, photos: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """The logits after the last token of each row."""
        inputs = {PIXELS: photos, IDS: ids, MASK: np.ones_like(ids)}
        outputs = await self._context.infer(inputs, (LOGITS,))
        last: np.ndarray = outputs[LOGITS][:, -1]
        return last


def _advanced(steps: Sequence[_Beams]) -> list[BeamStep | Exception]:
    """On a thread: advance beam searches."""
    taken: list[BeamStep | Exception] = []
    for search, logits in steps:
        try:
            taken.append(search.advance(logits))
        except Exception as error:  # noqa: BLE001 - fails only its own caption
            taken.append(error)
    return taken


def _parameters(options: GenerationOptions) -> dict[str, ParameterValue]:
    """GenerationOptions as parameters of a request."""
    parameters: dict[str, ParameterValue] = {
        "max_tokens": options.max_tokens,
        "num_beams": options.num_beams,
        "length_penalty": options.length_penalty,
        "early_stopping": options.early_stopping,
        "min_tokens": options.min_tokens,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
    }
    if options.seed is not None:
        parameters["seed"] = options.seed
    return parameters


def _score(outputs: Mapping[str, Any]) -> float | None:
    found = outputs.get(SCORE)
    return None if found is None else float(found.reshape(-1)[0])


def _names(tensors: Mapping[str, Any]) -> str:
    return ", ".join(f"'{name}'" for name in tensors) or "none"
