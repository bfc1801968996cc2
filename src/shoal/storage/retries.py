"""Retries of requests to a storage: with back-off, jitter and a last attempt."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from shoal.storage.errors import StorageError

Result = TypeVar("Result")

_LONGEST_REQUESTED_SECS = 60.0  # for which a storage may ask us to wait


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a request is repeated, and after which waits."""

    attempts: int = 6
    first_secs: float = 0.2
    longest_secs: float = 10.0

    def wait_secs(self, attempt: int, requested_secs: float, chance: float) -> float:
        """The wait after the failed `attempt` (from 0); `chance` is from 0 to 1.

        Many clients that failed at one moment must not return at one moment.
        """
        wait = min(self.longest_secs, self.first_secs * 2.0**attempt) * (0.5 + chance / 2)
        return max(wait, min(requested_secs, _LONGEST_REQUESTED_SECS))


def with_retries(
    operation: Callable[[], Result], policy: RetryPolicy, stopped: threading.Event
) -> Result:
    """The result of `operation`, which is repeated while it fails with retryable errors.

    Raises its last error; at once if the error is not retryable or `stopped` is set.
    """
    for attempt in range(policy.attempts - 1):
        try:
            return operation()
        except StorageError as error:
            if not error.retryable:
                raise
            chance = random.random()  # noqa: S311 - not for secrets
            if stopped.wait(policy.wait_secs(attempt, error.retry_secs, chance)):
                raise
    return operation()
