"""One text made by a model: its pieces as they come, where it stopped and why.

    Request --> engine --> responses --stop sequences, length--> Piece, Piece, … the last with `end`

When nobody wants the pieces any more, the request is cancelled.
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
from shoal.frontends.http.contracts import Engine
from shoal.frontends.http.openai.sampling import Sampling, Told
from shoal.frontends.http.openai.stops import StopCutter
from shoal.frontends.http.openai.text_model import TextModel
from shoal.statistics.trace import CallSpan

STOP, LENGTH = "stop", "length"
_REASONS = (STOP, LENGTH, "content_filter")

_REASON = "finish_reason"
_PROMPT_TOKENS, _TOKENS = "num_input_tokens", "num_output_tokens"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the text number `index`; the last one says how it ended."""

    index: int
    text: str
    end: str = ""  # "stop" or "length"


@dataclass(slots=True)
class Usage:
    """The tokens of one text, once it is over."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Generation:
    """One text. `pieces` is read once, on the event loop."""

    def __init__(
        self,
        text_model: TextModel,
        told: Told,
        sampling: Sampling,
        *,
        index: int,
        prompt: str,
        number: int = 0,
        stream: bool = False,
        parameters: dict[str, ParameterValue] | None = None,
    ) -> None:
        """`number` tells apart the texts of one prompt. Raises Refused."""
        self.index = index
        self.prompt = prompt
        self.usage = Usage()
        self._model = text_model
        self._minds_length = told.minds_length
        self._cutter = StopCutter(sampling.stops)
        self._most = sampling.max_tokens
        self._inputs = told.tensors(prompt, stream=stream, number=number)
        self._parameters = {**told.parameters, **(parameters or {})}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._responses = 0
        self._whole: list[str] = []  # the text so far, for counting
        self._told_end = ""
        self._told_tokens = -1
        self._told_prompt_tokens = -1

    async def pieces(
        self, engine: Engine, inbox: LoopInbox, call: CallSpan | None = None
    ) -> AsyncGenerator[Piece, None]:
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
                text = self._taken(response)
                if self._cutter.stopped:
                    end = STOP
                elif self._over_length():
                    end = LENGTH
                if text:
                    yield Piece(self.index, text)
        finally:
            if not final:
                request.cancel()
        rest = "" if end else self._cutter.feed(self._decoder.decode(b"", final=True))
        rest += "" if self._cutter.stopped else self._cutter.rest()
        self._whole.append(rest)
        await self._count()
        yield Piece(self.index, rest, end or self._told_end or self._natural_end())

    def _taken(self, response: Response) -> str:
        """What a response adds to the text."""
        outputs = {tensor.name: tensor for tensor in response.outputs}
        reason = _text(outputs.get(_REASON))
        self._told_end = reason if reason in _REASONS else self._told_end
        if _TOKENS in outputs:
            self._told_tokens = max(0, self._told_tokens) + _number(outputs[_TOKENS])
        if _PROMPT_TOKENS in outputs:
            self._told_prompt_tokens = _number(outputs[_PROMPT_TOKENS])
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
        """Whether the text is as long as it may get, for a model that does not mind it itself."""
        return (
            self._most is not None
            and not self._minds_length
            and self._model.decoupled
            and self._responses >= self._most
        )

    def _natural_end(self) -> str:
        """Why a model stopped that does not say it: it was told a length and reached it, or not."""
        told = self._most is not None and self._minds_length
        return LENGTH if told and self.usage.completion_tokens >= (self._most or 0) else STOP

    async def _count(self) -> None:
        usage, model = self.usage, self._model
        usage.prompt_tokens, usage.completion_tokens = (
            self._told_prompt_tokens,
            self._told_tokens,
        )
        if min(usage.prompt_tokens, usage.completion_tokens) >= 0:
            return
        prompt = "" if model.prompt is None else self.prompt  # a photo has no words
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
    """The first element of an output, or nothing."""
    if tensor is None or not tensor.element_count:
        return ""
    element = tensor.array.reshape(-1)[0]
    return element.decode(errors="replace") if isinstance(element, bytes) else str(element)


def _number(tensor: Any) -> int:
    return int(tensor.array.reshape(-1)[0]) if tensor.element_count else 0
