"""Sequences under load: which id, how long, and which data each of their requests takes."""

from __future__ import annotations

import random
from dataclasses import dataclass

from shoal.perf.requests import Turn


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """What --sequence-length and its siblings ask for."""

    first_id: int = 1
    id_count: int = 0  # ids to choose from; 0 is without bounds
    length: int = 20
    variation_percent: float = 20.0
    whole_streams: bool = False  # as long as the data of the user is

    def id(self, number: int) -> int:
        """The id of the `number`-th sequence of a run."""
        return self.first_id + (number % self.id_count if self.id_count else number)

    def drawn_length(self, chance: random.Random) -> int:
        """A length within the variation, at least 1."""
        spread = self.length * self.variation_percent / 100
        return max(1, round(chance.uniform(self.length - spread, self.length + spread)))


class RunningSequence:
    """One sequence while it goes on."""

    __slots__ = ("_done", "_length", "id", "steps", "stream")

    def __init__(self, id: int, stream: int, steps: int, length: int) -> None:
        self.id = id
        self.stream = stream
        self.steps = steps
        self._length = length
        self._done = 0

    @property
    def begun(self) -> bool:
        """Whether the server knows of it and has not seen its end."""
        return 0 < self._done < self._length

    @property
    def left(self) -> int:
        """How many requests are still to be sent."""
        return self._length - self._done

    @property
    def ended(self) -> bool:
        """Whether its last request was sent."""
        return self._done >= self._length

    def next(self, *, last: bool = False) -> tuple[Turn, int]:
        """The next request: its place, and which step of the stream it carries."""
        step = self._done % self.steps
        if last:
            self._length = self._done + 1
        self._done += 1
        return Turn(self.id, self._done == 1, self._done == self._length), step


class Sequences:
    """Begins sequences for one of several workers, none of which takes another one's id."""

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
            length = steps if self._plan.whole_streams else self._plan.drawn_length(self._chance)
        return RunningSequence(self._plan.id(number), stream, steps, length)
