"""Who writes the caption: a model that generates by itself, or a loop around one that does not.

    GeneratingModel   one request, answered token by token (the backend `generation`)
    StepwiseModel         pixel_values, input_ids, attention_mask --> logits, once for each token

Both give pieces of text as they come and in the end what was written.
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
from shoal.tasks.base import Stage, TaskContext
from shoal.tasks.text_settings import TextSettings

PIXELS, IDS, MASK, LOGITS = "pixel_values", "input_ids", "attention_mask", "logits"
TEXT_OUTPUT, TOKEN_IDS = "text_output", "token_ids"
REASON, SCORE = "finish_reason", "score"


@dataclass(frozen=True, slots=True)
class Caption:
    """How a caption ended. `caption` is all of it, from the prompt on."""

    caption: str
    tokens: int
    finish_reason: str
    score: float | None = None


class CaptionWriter(Protocol):
    """Writes captions."""

    def write(
        self, pixels: np.ndarray, prompt: Sequence[int], options: GenerationOptions, *, stream: bool
    ) -> AsyncGenerator[str | Caption, None]:
        """The text that a caption has beyond its prompt, and then how it ended.

        With `stream` the text comes in pieces, otherwise it may come in one. Closing this, or
        cancelling what waits for it, ends the writing.
        """


def writer_of(context: TaskContext, writing: TextSettings) -> CaptionWriter:
    """Who writes for this model. Raises ConfigError where its tensors fit neither way."""
    signature = context.signature
    if {PIXELS, IDS, MASK} <= set(signature.inputs) and LOGITS in signature.outputs:
        return StepwiseModel(context, writing)
    if PIXELS in signature.inputs and {TEXT_OUTPUT, TOKEN_IDS} <= set(signature.outputs):
        return GeneratingModel(context, writing)
    raise ConfigError(
        f"the task 'image-to-text' cannot use a model with the inputs "
        f"{_names(signature.inputs)} and the outputs {_names(signature.outputs)}",
        file="config.pbtxt",
        field="parameters['task']",
        fix=f"It needs {PIXELS}, {IDS} and {MASK} with {LOGITS}, or a model of the backend "
        f"'generation', as shoal export blip makes them",
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
    """A decoupled model that writes the text itself."""

    def __init__(self, context: TaskContext, writing: TextSettings) -> None:
        self._context = context
        self._writing = writing

    async def write(
        self, pixels: np.ndarray, prompt: Sequence[int], options: GenerationOptions, *, stream: bool
    ) -> AsyncGenerator[str | Caption, None]:
        """See `CaptionWriter.write`."""
        inputs = {PIXELS: pixels, IDS: np.array(prompt, np.int64)}
        pieces: list[str] = []
        tokens, reason = 0, ""
        score: float | None = None
        parameters = {**_parameters(options), "stream": stream}
        answers = self._context.infer_stream(inputs, (), parameters)
        async for answer in answers:
            tokens += answer[TOKEN_IDS].size
            piece = answer[TEXT_OUTPUT].reshape(-1)[0].decode()
            if REASON in answer:
                reason = answer[REASON].reshape(-1)[0].decode()
                score = _score(answer)
            if piece:
                pieces.append(piece)
                yield piece
        begun = self._writing.decode(prompt)
        yield Caption((begun + "".join(pieces)).strip(), tokens, reason, score)


class _Beams(NamedTuple):
    """A step of a beam search, to be taken on a thread."""

    search: BeamSearch
    logits: np.ndarray


class StepwiseModel:
    """A loop around a model that tells what comes after some tokens and keeps nothing.

    The steps of all captions under way meet in the model's queue, where they share batches.
    """

    def __init__(self, context: TaskContext, writing: TextSettings) -> None:
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
        self._writing = writing
        self._advance: Stage[_Beams, BeamStep] = context.stage("postprocess", _advanced)

    async def write(
        self, pixels: np.ndarray, prompt: Sequence[int], options: GenerationOptions, *, stream: bool
    ) -> AsyncGenerator[str | Caption, None]:
        """See `CaptionWriter.write`."""
        writing = self._writing
        search = TokenSampler(options) if options.num_beams == 1 else BeamSearch(options)
        ids = np.tile(np.array(prompt, np.int64), (search.width, 1))
        photos = np.repeat(pixels[None], search.width, axis=0)
        text = TextStream(writing.decode, prompt)
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
        rest = text.push(writing.written(result.token_ids[sent:])) + text.rest()
        if rest:
            yield rest
        whole = writing.decode([*prompt, *writing.written(result.token_ids)]).strip()
        yield Caption(whole, len(result.token_ids), result.reason.value, result.score)

    async def _logits(self, photos: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """What the model says after the last token of each row."""
        inputs = {PIXELS: photos, IDS: ids, MASK: np.ones_like(ids)}
        answer = await self._context.infer(inputs, (LOGITS,))
        last: np.ndarray = answer[LOGITS][:, -1]
        return last


def _advanced(steps: Sequence[_Beams]) -> list[BeamStep | Exception]:
    """On a thread: take steps of beam searches."""
    taken: list[BeamStep | Exception] = []
    for search, logits in steps:
        try:
            taken.append(search.advance(logits))
        except Exception as error:  # noqa: BLE001 - fails its own caption, not its neighbours
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


def _score(answer: Mapping[str, Any]) -> float | None:
    found = answer.get(SCORE)
    return None if found is None else float(found.reshape(-1)[0])


def _names(tensors: Mapping[str, Any]) -> str:
    return ", ".join(f"'{name}'" for name in tensors) or "none"
