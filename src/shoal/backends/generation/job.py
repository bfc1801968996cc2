"""A request whose text is being generated, and how its responses are made."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shoal.backends.base import PendingRequest
from shoal.backends.generation import request as requests
from shoal.backends.generation.request import GenerationRequest
from shoal.core import dtypes
from shoal.core.tensor import Tensor
from shoal.errors import Cancelled, Internal
from shoal.generation.batch import as_shoal_error
from shoal.generation.options import Generated
from shoal.generation.text import TextStream
from shoal.tasks.text_settings import TextSettings

logger = logging.getLogger(__name__)


class RequestJob:
    """One text for one request; see `shoal.generation.batch.GenerationJob`."""

    def __init__(
        self,
        pending: PendingRequest,
        request: GenerationRequest,
        writing: TextSettings,
        ended: Callable[[], None],
    ) -> None:
        """`ended` is called once, before the last response is sent."""
        self.prompt: Sequence[int] = request.prompt
        self.options = request.options
        self.features: Any = None  # as the encoder takes them, until they have been encoded
        self._pending = pending
        self._ended = ended
        self._stream = request.stream
        self._writing = writing
        self._text = TextStream(writing.decode, request.prompt)
        self._echo = writing.decode(request.prompt) if request.echo else ""
        self._sent = 0  # tokens
        self.over = False  # whether the last response is sent, or about to be

    @property
    def cancelled(self) -> bool:
        """Whether the client has cancelled the request."""
        return self._pending.request.cancelled

    def on_token(self, token: int) -> None:
        """Send it, if the client streams."""
        if self._stream:
            self._sent += 1
            piece, self._echo = self._echo + self._text.push([token]), ""
            self._pending.send(_tensors(piece, [token]), final=False)

    def on_result(self, result: Generated) -> None:
        """Send what has not been sent, and how the text ended."""
        rest = result.token_ids[self._sent :]
        piece = self._echo + self._text.push(self._writing.without_stop(rest)) + self._text.rest()
        tensors = [
            *_tensors(piece, rest),
            _text_tensor(requests.REASON, result.reason.value),
            _number(requests.PROMPT_TOKENS, len(self.prompt)),
            _number(requests.TOKENS, len(result.token_ids)),
        ]
        if result.score is not None:
            score = np.array([result.score], np.float32)
            tensors.append(Tensor.from_array(requests.SCORE, score))
        self._over()
        self._end(tensors)

    def on_error(self, error: Exception) -> None:
        """Tell the client."""
        self._over()
        self._fail(error)

    def on_cancelled(self) -> None:
        """Notify the client, if it is still there."""
        prefix = self._pending.request.log_prefix()
        self.on_error(Cancelled(f"{prefix}the client cancelled the request"))

    def _over(self) -> None:
        self.over = True
        self._ended()

    def _end(self, tensors: Sequence[Tensor]) -> None:
        try:
            self._pending.send(tensors)
        except Exception as error:  # noqa: BLE001 - the caller cannot handle it
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        failure = as_shoal_error(error)
        if failure is not error:
            logger.error("generating a text failed: %s", error, exc_info=error)
        try:
            self._pending.send(error=failure)
        except Internal:  # it has its final response
            logger.debug("a request that had its last response failed: %s", failure.message)


def _tensors(piece: str, token_ids: Sequence[int]) -> list[Tensor]:
    ids = Tensor.from_array(requests.TOKEN_IDS, np.array(token_ids, np.int64))
    return [_text_tensor(requests.TEXT_OUTPUT, piece), ids]


def _text_tensor(name: str, text: str) -> Tensor:
    array = np.empty(1, object)
    array[0] = text.encode()
    return Tensor(name, dtypes.BYTES, (1,), array=array)


def _number(name: str, value: int) -> Tensor:
    return Tensor.from_array(name, np.array([value], np.int32))
