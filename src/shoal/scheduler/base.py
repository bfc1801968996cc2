"""What instances pull from: the contract of every scheduler.

frontend --enqueue--> [ what waits ] --next_batch--> instance --finished--> [ what waits ]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from shoal.core.request import Request
from shoal.errors import QueueRejected, ShoalError, Unavailable
from shoal.scheduler.admission import AdmissionReading, Expectation
from shoal.scheduler.drain import Waiting
from shoal.scheduler.policy import Reason

RECENT_CUTS = 256  # batches whose reason and size are kept

OnDropped: TypeAlias = Callable[[Request, ShoalError], None]  # answers a request that left a queue


class BatcherClosed(Unavailable):
    """The model is unloading and takes no more requests; a newer version may."""


class Puller(Protocol):
    """What pulls batches: an instance, which may be stopped."""

    @property
    def stopping(self) -> bool:
        """Whether it takes no more batches."""


class EventLoop(Protocol):
    """The event loop that requests arrive on, where there is one."""

    def here(self) -> bool:
        """Whether this is its thread."""

    def call_soon(self, callback: Callable[[], None]) -> bool:
        """Have it call `callback` after this iteration's I/O; false when the loop has ended."""


class Scheduler(Protocol):
    """One model's queue. Any thread may call any method."""

    recent: deque[tuple[Reason, int]]  # of the last batches: the reason and the rows
    instances_linger: bool  # whether an instance that is stopped may have to continue for a while
    measures_executions: bool  # whether it has to know what those of the event loop cost
    runs_one_by_one: bool  # whether `take_now` returns requests that are executed one by one

    def pending(self) -> int:
        """How many requests wait."""

    def waiting(self) -> Waiting:
        """What waits, for an estimate of how long that will take."""

    def drain_ns(self) -> float | None:
        """How long what waits and runs takes, by the admission control; None without one, or while
        nothing is known."""

    def refusal(self, rows: int, count: int) -> QueueRejected | None:
        """The error for `count` requests of `rows` rows each, if none would be accepted now."""

    def enqueue(self, request: Request) -> None:
        """Take `request` over. If this raises, the request is still the caller's to answer."""

    def enqueue_group(self, requests: Sequence[Request]) -> int:
        """Take over requests of one template that arrived at the same moment, from the first on;
        returns how many.

        `enqueue` the others one by one: each call takes its request over or raises.
        """

    def expectation(self, request: Request) -> Expectation:
        """Whether such a request would be admitted, and how long it would take."""

    def admission(self) -> AdmissionReading | None:
        """The state of the admission control, for metrics; None without a target latency."""

    def attach(self, puller: Puller) -> None:
        """An instance is about to pull; called once, before its first `next_batch`."""

    def next_batch(self, puller: Puller) -> list[Request]:
        """Wait for a batch; an empty list tells `puller` to end."""

    def ready_batch(self, puller: Puller) -> list[Request]:
        """As `next_batch`, without waiting: an empty list where no batch is ready."""

    def more(self, most: int) -> list[list[Request]]:
        """Further batches for an instance that has just got one, without waiting.

        At most `most`, and none where a batch that is cut later could be larger.
        """

    def take_now(self) -> tuple[list[Request], int | None]:
        """For the event loop: a batch without waiting, or after how many nanoseconds to retry.

        Where it `runs_one_by_one`, several requests of which each is a batch.
        """

    def give_back(self, requests: Sequence[Request]) -> bool:
        """For the event loop: leave requests that it has taken and not executed to the instances.
        False, with nothing done, if it has to execute them itself."""

    def start_alone(self, request: Request) -> bool:
        """For the event loop: take over a request as a batch, if it would be the next one anyway;
        false, with nothing done, if not."""

    def start_group(self, requests: Sequence[Request]) -> bool:
        """As `start_alone`, for several requests of one template."""

    def start_block(self, rows: int, key: object, count: int) -> bool:
        """For the event loop: take `count` requests of one template, with `rows` rows each, over as
        a batch, as if they had been queued and taken at once. False, with nothing done, if others
        wait or they might have to wait or to be divided."""

    def finished(self, batch: Sequence[Request]) -> None:
        """A batch that was taken has been executed."""

    def hand_to_loop(self, on_arrival: Callable[[], None]) -> None:
        """From now on the event loop takes the batches."""

    def hand_to_instances(self) -> None:
        """From now on the instances pull again."""

    def wake(self) -> None:
        """Make every waiting instance check again whether to stop."""

    def close(self) -> None:
        """Refuse new requests. Those already queued are served first, then instances stop."""
