"""Sequences under load: their ids, their lengths, and the data of each request."""

from __future__ import annotations

import random
from dataclasses import dataclass

from shoal.perf.requests import SequencePosition


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """The settings of --sequence-length and related options."""

    first_id: int = 1
    id_count: int = 0  # ids to choose from; 0 is unlimited
    length: int = 20
    variation_percent: float = 20.0
    whole_streams: bool = False  # as long as the user's data

    def id(self, number: int) -> int:
        """The id of the `number`-th sequence of a run."""
        return self.first_id + (number % self.id_count if self.id_count else number)

    def random_length(self, chance: random.Random) -> int:
        """A length within the variation, at least 1."""
        spread = self.length * self.variation_percent / 100
        return max(1, round(chance.uniform(self.length - spread, self.length + spread)))


class RunningSequence:
    """One sequence in progress."""

    __slots__ = ("_done", "_length", "id", "steps", "stream")

    def __init__(self, id: int, stream: int, steps: int, length: int) -> None:
        self.id = id
        self.stream = stream
        self.steps = steps
        self._length = length
        self._done = 0

    @property
    def begun(self) -> bool:
        """Whether the server has received its start and not its end."""
        return 0 < self._done < self._length

    @property
    def left(self) -> int:
        """How many requests are still to be sent."""
        return self._length - self._done

    @property
    def ended(self) -> bool:
        """Whether its last request was sent."""
        return self._done >= self._length

    def next(self, *, last: bool = False) -> tuple[SequencePosition, int]:
        """The next request: its position, and the step of the stream that it carries."""
        step = self._done % self.steps
        if last:
            self._length = self._done + 1
        self._done += 1
        return SequencePosition(self.id, self._done == 1, self._done == self._length), step


class Sequences:
    """Begins sequences for one of several workers; workers use different ids."""

    def __init__(self, plan: SequencePlan, steps: list[int], share: int, shares: int) -> None:
        """`steps` is how many steps each stream of data has."""
        self._plan = plan
        self._steps = steps
        self._next = share
        self._shares = shares
        self._chance = random.Random(share)  # noqa: S311 - lengths, not secrets

    def begin(self, length: int | None = None) -> RunningSequence:
        """The next sequence, on the next stream; without a `length` the plan chooses it."""
        number = self._next
        self._next += self._shares
        stream = number % len(self._steps)
        steps = self._steps[stream]
        if length is None:
            length = steps if self._plan.whole_streams else self._plan.random_length(self._chance)
        return RunningSequence(self._plan.id(number), stream, steps, length)
