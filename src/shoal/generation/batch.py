"""Continuous batching: texts join and leave between any two steps of the decoder.

    job --join--> [ groups ] --step--> a token for each text --> job.on_token … job.on_result

A step runs the decoder once for all texts that have the same number of beams, whatever their
lengths: they share a group. An error in one text ends only that text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from shoal.errors import BackendFailure, ShoalError
from shoal.generation.beams import BeamSearch
from shoal.generation.choice import TokenSampler
from shoal.generation.decoder import DecoderRows, RowsFactory, Search
from shoal.generation.options import Generated, GenerationOptions


class GenerationJob(Protocol):
    """One requested text. The caller of `step` calls these; only `on_token` may raise."""

    prompt: Sequence[int]  # at least one token
    options: GenerationOptions

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled; checked before each step."""

    def on_token(self, token: int) -> None:
        """A token was chosen, and more will follow. Not called for beams."""

    def on_result(self, result: Generated) -> None:
        """The text is complete."""

    def on_error(self, error: Exception) -> None:
        """The text failed."""

    def on_cancelled(self) -> None:
        """It was cancelled."""


_Joining = tuple[GenerationJob, Any]  # with its further inputs


class ContinuousBatch:
    """All texts that one decoder generates. For one thread."""

    def __init__(
        self, make_rows: RowsFactory, max_rows: int, ran: Callable[[int], None] = lambda _: None
    ) -> None:
        """At most `max_rows` rows: a text takes one, or one for each of its beams.

        `ran` is called with the number of rows after each run of the decoder, before any text is
        notified of its results.
        """
        self.max_rows = max_rows
        self._make_rows = make_rows
        self._ran = ran
        self._groups: dict[int, _WidthGroup] = {}

    @property
    def rows(self) -> int:
        """Rows in use."""
        return sum(group.rows.rows for group in self._groups.values())

    @property
    def texts(self) -> int:
        """Texts in progress."""
        return sum(len(group.jobs) for group in self._groups.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(group.rows.nbytes for group in self._groups.values())

    def join(self, jobs: Sequence[GenerationJob], contexts: Sequence[Any]) -> None:
        """Add jobs from the next step on, with their further inputs as the rows take them. A job
        that fails is notified."""
        found: dict[int, list[_Joining]] = {}
        for job, context in zip(jobs, contexts, strict=True):
            found.setdefault(job.options.num_beams, []).append((job, context))
        for width, joining in found.items():
            if width not in self._groups:
                self._groups[width] = _WidthGroup(self._make_rows(width), self._ran)
            self._groups[width].join(joining)
        self._remove_empty()

    def step(self) -> list[int]:
        """A token for every text; returns how many rows each run of the decoder had."""
        sizes: list[int] = []
        for group in self._groups.values():
            group.drop_cancelled()
            if group.jobs:
                sizes.append(group.rows.rows)
                group.step()
        self._remove_empty()
        return sizes

    def fail_all(self, error: Exception) -> None:
        """End every text with an error."""
        for group in self._groups.values():
            for job in group.jobs:
                job.on_error(error)
        self._groups.clear()

    def _remove_empty(self) -> None:
        """Free the memory of groups without texts."""
        for width in [width for width, group in self._groups.items() if not group.jobs]:
            del self._groups[width]


class _WidthGroup:
    """Texts with the same number of beams."""

    def __init__(self, rows: DecoderRows, ran: Callable[[int], None]) -> None:
        self.jobs: list[GenerationJob] = []  # by their slot in the rows
        self.rows = rows
        self._ran = ran
        self._searches: list[Search] = []

    def join(self, jobs: Sequence[_Joining]) -> None:
        """Add texts, whose next steps start with the last tokens of their prompts."""
        ordered = sorted(jobs, key=lambda pair: len(pair[0].prompt) > 1)  # stable
        first = self.rows.join(
            [context for _, context in ordered], [job.prompt[-1] for job, _ in ordered]
        )
        for job, _ in ordered:
            single = self.rows.width == 1
            self.jobs.append(job)
            self._searches.append(TokenSampler(job.options) if single else BeamSearch(job.options))
        first += sum(len(job.prompt) == 1 for job, _ in ordered)
        if first < len(self.jobs):
            self._begin(first, len(self.jobs))

    def _begin(self, first: int, last: int) -> None:
        """Compute the states of all but the last tokens of prompts, if that fails each alone."""
        try:
            self.rows.begin(first, [job.prompt[:-1] for job in self.jobs[first:last]])
        except Exception as error:  # noqa: BLE001 - reported to the request
            if last - first == 1:
                self.jobs[first].on_error(error)
                self._leave(first)
                return
            for slot in reversed(range(first, last)):
                self._begin(slot, slot + 1)
            return
        self._ran(last - first)

    def drop_cancelled(self) -> None:
        """Remove cancelled jobs."""
        for slot in reversed(range(len(self.jobs))):
            if self.jobs[slot].cancelled:
                self.jobs[slot].on_cancelled()
                self._leave(slot)

    def step(self) -> None:
        """Run the decoder once for all texts, or if that fails once for each."""
        try:
            self._run(0, len(self.jobs))
        except Exception:  # noqa: BLE001 - running each alone shows the cause
            for slot in reversed(range(len(self.jobs))):
                try:
                    self._run(slot, slot + 1)
                except Exception as error:  # noqa: BLE001 - reported to the request
                    self.jobs[slot].on_error(error)
                    self._leave(slot)

    def _run(self, first: int, last: int) -> None:
        """One step for the texts in these slots. If this raises, nothing has changed."""
        results = self.rows.step(first, self._searches[first:last])
        self._ran((last - first) * self.rows.width)
        for slot in reversed(range(first, last)):  # free slots are filled from the end
            job, search = self.jobs[slot], self._searches[slot]
            try:
                chosen = results.advance(slot - first, search)
                result = search.result()
                if result is not None:
                    self._leave(slot)
                    job.on_result(result)
                    continue
                self.rows.follow(slot, chosen)
                if isinstance(chosen, int):
                    job.on_token(chosen)
            except Exception as error:  # noqa: BLE001 - of this text; the others are intact
                job.on_error(error)
                self._leave(slot)

    def _leave(self, slot: int) -> None:
        """Free a slot, which the last text gets."""
        self.rows.leave(slot)
        self.jobs[slot], self._searches[slot] = self.jobs[-1], self._searches[-1]
        self.jobs.pop()
        self._searches.pop()


def as_shoal_error(error: Exception) -> ShoalError:
    """The error that a client receives for an exception."""
    if isinstance(error, ShoalError):
        return error
    return BackendFailure(f"{type(error).__name__}: {error}")
