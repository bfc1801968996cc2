"""The steps of operations, and the state that the operations of a client share.

    operation --yields--> RoundTrip | Pause --runner--> RawResponse --sent back--> operation

A runner executes the steps: `Client` on blocking sockets, `AsyncClient` on an event loop.
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
    repeatable: bool  # may be resent when the connection was closed before any response


class Pause(NamedTuple):
    """Wait."""

    secs: float


Step: TypeAlias = RoundTrip | Pause
Steps: TypeAlias = Generator[Step, RawResponse, T]
Version: TypeAlias = str | int


class ClientSession:
    """The state that the operations of one client share. Thread-safe."""

    def __init__(self, codec: Codec, timeout_secs: float | None, retries: int) -> None:
        self.codec = codec
        self.timeout_secs = timeout_secs
        self.retries = retries
        # Returns the function that finds labels. Results hold a reference to the client, its own
        # session does not: the client is freed, with its connections, after the last result.
        self.labeller: Callable[[], Labels | None] = _no_labels
        self.specs: dict[tuple[str, str], dict[str, str]] = {}  # datatypes of inputs by model
        self.examples: dict[str, InferenceCall] = {}  # by model; used to request labels
        self.labels: dict[tuple[str, str, str], Sequence[str]] = {}

    def options(self, timeout: float | None = None, headers: Headers | None = None) -> CallOptions:
        """The options of a call, by default the client's. Raises InvalidInput for a bad timeout."""
        if timeout is None:
            return CallOptions(headers, self.timeout_secs)
        if not timeout > 0:
            raise InvalidInput(f"a timeout is a number of seconds above 0, found {timeout}")
        return CallOptions(headers, None if timeout == math.inf else timeout)

    def evict(self, model: str) -> None:
        """Remove what is cached about a model."""
        for key in [key for key in list(self.specs) if key[0] == model]:
            self.specs.pop(key, None)
        for label in [label for label in list(self.labels) if label[0] == model]:
            self.labels.pop(label, None)
        self.examples.pop(model, None)


def _no_labels() -> None:
    return None


def send_once(call: PreparedCall[T], options: CallOptions) -> Steps[T]:
    """Send a request once and read the response."""
    response = yield RoundTrip(call.request, options.timeout_secs, call.repeatable)
    return call.read(response)


def send_with_retries(
    session: ClientSession, call: PreparedCall[T], options: CallOptions
) -> Steps[T]:
    """Send a request, and retry with backoff while the server is overloaded.

    The time-out of `options` includes the retries. Raises the last Unavailable.
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
    """What the server asks for, or exponential backoff; both with jitter, so that clients do not
    retry at the same time."""
    if asked_secs is not None:
        return min(asked_secs, LONGEST_PAUSE_SECS) * random.uniform(1.0, 1.25)  # noqa: S311
    longest = min(FIRST_PAUSE_SECS * 2.0**attempt, LONGEST_PAUSE_SECS)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
