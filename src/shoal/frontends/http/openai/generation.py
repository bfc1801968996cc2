"""One generated text: its pieces as they arrive, where it ended and why.

    Request --> engine --> responses --stop sequences, length--> TextPiece, …, the last with `end`

Closing the generator cancels the request.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from shoal.core.inbox import LoopInbox, LoopReply
from shoal.core.request import Request
from shoal.core.response import ParameterValue, Response
from shoal.engine import Engine
from shoal.frontends.http.openai.sampling import ModelInputs, Sampling
from shoal.frontends.http.openai.stops import StopCutter
from shoal.frontends.http.openai.text_model import TextModel
from shoal.statistics.trace import CallSpan

STOP, LENGTH = "stop", "length"
_REASONS = (STOP, LENGTH, "content_filter")

_REASON = "finish_reason"
_PROMPT_TOKENS, _TOKENS = "num_input_tokens", "num_output_tokens"


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A part of the text number `index`; the last one has the reason for its end."""

    index: int
    text: str
    end: str = ""  # "stop" or "length"


@dataclass(slots=True)
class Usage:
    """The token counts of one text, once it is complete."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Generation:
    """One text. `pieces` is read once, on the event loop."""

    def __init__(
        self,
        text_model: TextModel,
        model_inputs: ModelInputs,
        sampling: Sampling,
        *,
        index: int,
        prompt: str,
        number: int = 0,
        stream: bool = False,
        parameters: dict[str, ParameterValue] | None = None,
    ) -> None:
        """`number` is the index among the texts of one prompt. Raises OpenAiError."""
        self.index = index
        self.prompt = prompt
        self.usage = Usage()
        self._model = text_model
        self._limits_length = model_inputs.limits_length
        self._cutter = StopCutter(sampling.stops)
        self._max_tokens = sampling.max_tokens
        self._inputs = model_inputs.tensors(prompt, stream=stream, number=number)
        self._parameters = {**model_inputs.parameters, **(parameters or {})}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._responses = 0
        self._whole: list[str] = []  # the text so far, to count its tokens
        self._reported_end = ""
        self._reported_tokens = -1
        self._reported_prompt_tokens = -1

    async def pieces(
        self, engine: Engine, inbox: LoopInbox, call: CallSpan | None = None
    ) -> AsyncGenerator[TextPiece, None]:
        """The text as it arrives, as part of `call` if that is traced. Raises the model's error."""
        arrived: asyncio.Queue[Response] = asyncio.Queue()
        request = Request(
            self._model.name,
            self._inputs,
            LoopReply(inbox, arrived.put_nowait),
            model_version=self._model.version,
            parameters=self._parameters,
        )
        if call is not None:
            call.attach(request)
        engine.infer(request)
        final = False
        end = ""
        try:
            while not (final or end):
                response = await arrived.get()
                final = response.final
                if response.error is not None:
                    raise response.error
                text = self._text_of(response)
                if self._cutter.stopped:
                    end = STOP
                elif self._over_length():
                    end = LENGTH
                if text:
                    yield TextPiece(self.index, text)
        finally:
            if not final:
                request.cancel()
        rest = "" if end else self._cutter.feed(self._decoder.decode(b"", final=True))
        rest += "" if self._cutter.stopped else self._cutter.rest()
        self._whole.append(rest)
        await self._count()
        yield TextPiece(self.index, rest, end or self._reported_end or self._natural_end())

    def _text_of(self, response: Response) -> str:
        """The text that a response adds."""
        outputs = {tensor.name: tensor for tensor in response.outputs}
        reason = _text(outputs.get(_REASON))
        self._reported_end = reason if reason in _REASONS else self._reported_end
        if _TOKENS in outputs:
            self._reported_tokens = max(0, self._reported_tokens) + _number(outputs[_TOKENS])
        if _PROMPT_TOKENS in outputs:
            self._reported_prompt_tokens = _number(outputs[_PROMPT_TOKENS])
        tensor = outputs.get(self._model.output.name)
        if tensor is None or not tensor.element_count:
            return ""
        self._responses += 1
        element = tensor.array.reshape(-1)[0]
        raw = element if isinstance(element, bytes) else str(element).encode()
        text = self._cutter.feed(self._decoder.decode(raw))
        self._whole.append(text)
        return text

    def _over_length(self) -> bool:
        """Whether the text is complete, for a model that does not limit the length itself."""
        return (
            self._max_tokens is not None
            and not self._limits_length
            and self._model.decoupled
            and self._responses >= self._max_tokens
        )

    def _natural_end(self) -> str:
        """The reason for the end where the model reports none: the length limit, or a stop."""
        limit = self._max_tokens if self._limits_length else None
        return LENGTH if limit is not None and self.usage.completion_tokens >= limit else STOP

    async def _count(self) -> None:
        usage, model = self.usage, self._model
        usage.prompt_tokens, usage.completion_tokens = (
            self._reported_prompt_tokens,
            self._reported_tokens,
        )
        if min(usage.prompt_tokens, usage.completion_tokens) >= 0:
            return
        prompt = "" if model.prompt is None else self.prompt  # a photo has no tokens
        text = "".join(self._whole)
        if model.has_tokenizer:
            counted = await asyncio.to_thread(
                lambda: (model.count_tokens(prompt), model.count_tokens(text))
            )
        elif model.decoupled:
            counted = (model.count_tokens(prompt), self._responses)
        else:
            counted = (model.count_tokens(prompt), model.count_tokens(text))
        if usage.prompt_tokens < 0:
            usage.prompt_tokens = counted[0]
        if usage.completion_tokens < 0:
            usage.completion_tokens = counted[1]


def _text(tensor: Any) -> str:
    """The first element of an output; empty where there is none."""
    if tensor is None or not tensor.element_count:
        return ""
    element = tensor.array.reshape(-1)[0]
    return element.decode(errors="replace") if isinstance(element, bytes) else str(element)


def _number(tensor: Any) -> int:
    return int(tensor.array.reshape(-1)[0]) if tensor.element_count else 0
