"""What instances pull from: the contract that every way of scheduling keeps.

frontend --enqueue--> [ what waits ] --next_batch--> instance --finished--> [ what waits ]
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Protocol

from shoal.core.request import Request
from shoal.scheduler.policy import Reason

RECENT_CUTS = 256  # so many batches are remembered


class Puller(Protocol):
    """Who asks for batches: an instance, which may be told to stop."""

    @property
    def stopping(self) -> bool:
        """Whether it wants no more."""


class Loop(Protocol):
    """The event loop that requests arrive on, where there is one."""

    def here(self) -> bool:
        """Whether this is its thread."""

    def call_soon(self, callback: Callable[[], None]) -> bool:
        """Have it call `callback` once it has read what is there; false when it is gone."""


class Scheduler(Protocol):
    """One model's queue. Any thread may call any method."""

    cuts: Counter[Reason]  # why batches left, for people who ask
    recent: deque[tuple[Reason, int]]  # of the last ones: why, and with how many rows
    instances_linger: bool  # whether one that is told to stop may have to go on for a while

    def pending(self) -> int:
        """How many requests wait."""

    def enqueue(self, request: Request) -> None:
        """Take `request` over. If this raises, the request is still the caller's to answer."""

    @property
    def takes_groups(self) -> bool:
        """Whether `enqueue_group` takes requests without a time-out; it does not change."""

    def enqueue_group(self, requests: Sequence[Request]) -> bool:
        """Take over requests that arrived at the same moment: all of them, or none (False).

        After False, `enqueue` them one by one: each call takes its request over or raises.
        """

    def attach(self, puller: Puller) -> None:
        """An instance is about to pull; told once, before its first `next_batch`."""

    def next_batch(self, puller: Puller) -> list[Request]:
        """Wait for a batch and hand it over; an empty list tells `puller` to end."""

    def ready_batch(self, puller: Puller) -> list[Request]:
        """As `next_batch`, without waiting: an empty list where no batch is ready."""

    def more(self, most: int) -> list[list[Request]]:
        """Further batches for an instance that has just been handed one, without waiting.

        At most `most`, and none where the next batch would be another if it were cut later.
        """

    def take_now(self) -> tuple[list[Request], int | None]:
        """For the event loop: a batch without waiting, or after how many nanoseconds to ask."""

    def finished(self, batch: Sequence[Request]) -> None:
        """A batch that was handed over has been executed."""

    def hand_to_loop(self, on_arrival: Callable[[], None]) -> None:
        """From now on the event loop takes the batches."""

    def hand_to_instances(self) -> None:
        """From now on the instances pull again."""

    def wake(self) -> None:
        """Make every waiting instance look again."""

    def close(self) -> None:
        """Refuse new requests. Those already queued are served first, then instances stop."""
