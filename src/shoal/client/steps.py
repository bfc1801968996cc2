"""The steps operations are made of, and what the operations of one client share.

    operation --yields--> RoundTrip | Pause --runner--> RawResponse --sent back--> operation

A runner does what a step says: `Client` on blocking sockets, `AsyncClient` on an event loop.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from shoal.client.codec import (
    CallOptions,
    Codec,
    Headers,
    InferenceCall,
    PreparedCall,
    RawRequest,
    RawResponse,
)
from shoal.client.errors import InvalidInput, Unavailable
from shoal.client.result import Labels

T = TypeVar("T")

FIRST_PAUSE_SECS = 0.05
LONGEST_PAUSE_SECS = 5.0


class RoundTrip(NamedTuple):
    """Send a request and wait for its response."""

    request: RawRequest
    timeout_secs: float | None
    repeatable: bool  # may be sent again when the connection was closed before any response


class Pause(NamedTuple):
    """Wait for a moment."""

    secs: float


Step: TypeAlias = RoundTrip | Pause
Steps: TypeAlias = Generator[Step, RawResponse, T]
Version: TypeAlias = str | int


class ClientSession:
    """What the operations of one client share. Any thread may use it."""

    def __init__(self, codec: Codec, timeout_secs: float | None, retries: int) -> None:
        self.codec = codec
        self.timeout_secs = timeout_secs
        self.retries = retries
        # Returns what finds labels. A client is held by its results, not by its own session: it
        # goes, and its connections with it, when the last of them does.
        self.labeller: Callable[[], Labels | None] = _nobody
        self.specs: dict[tuple[str, str], dict[str, str]] = {}  # datatypes of inputs, by model
        self.examples: dict[str, InferenceCall] = {}  # by model; labels are asked for with one
        self.labels: dict[tuple[str, str, str], Sequence[str]] = {}

    def options(self, timeout: float | None = None, headers: Headers | None = None) -> CallOptions:
        """A call's own options, or else the client's. InvalidInput for a timeout that is none."""
        if timeout is None:
            return CallOptions(headers, self.timeout_secs)
        if not timeout > 0:
            raise InvalidInput(f"a timeout is a number of seconds above 0, found {timeout}")
        return CallOptions(headers, None if timeout == math.inf else timeout)

    def forget(self, model: str) -> None:
        """What was learnt of a model may no longer hold."""
        for key in [key for key in list(self.specs) if key[0] == model]:
            self.specs.pop(key, None)
        for label in [label for label in list(self.labels) if label[0] == model]:
            self.labels.pop(label, None)
        self.examples.pop(model, None)


def _nobody() -> None:
    return None


def send_once(call: PreparedCall[T], options: CallOptions) -> Steps[T]:
    """Send once and read the response."""
    response = yield RoundTrip(call.request, options.timeout_secs, call.repeatable)
    return call.read(response)


def send_with_retries(
    session: ClientSession, call: PreparedCall[T], options: CallOptions
) -> Steps[T]:
    """Send, and again, each time after a longer pause, while the server is overloaded.

    All of that within the time of `options`; raises the last Unavailable.
    """
    limit = left = options.timeout_secs
    if not session.retries:
        return call.read((yield RoundTrip(call.request, limit, call.repeatable)))
    began_secs = time.monotonic()
    attempt = 0
    while True:
        try:
            return call.read((yield RoundTrip(call.request, left, call.repeatable)))
        except Unavailable as error:
            if attempt >= session.retries:
                raise
            pause_secs = _pause_secs(attempt, error.retry_after_secs)
            if limit is not None:
                left = limit - (time.monotonic() - began_secs) - pause_secs
                if left <= 0:
                    raise
        attempt += 1
        yield Pause(pause_secs)


def _pause_secs(attempt: int, asked_secs: float | None) -> float:
    """Twice as long each time, with some chance in it, so that clients do not return together."""
    if asked_secs is not None:
        return min(asked_secs, LONGEST_PAUSE_SECS)
    longest = min(FIRST_PAUSE_SECS * 2.0**attempt, LONGEST_PAUSE_SECS)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
