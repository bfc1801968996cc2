"""Continuous batching: texts join and leave between any two steps of the decoder.

    job --join--> [ groups ] --step--> a token for each text --> job.on_token … job.on_result

A step runs the decoder once for all texts that have the same number of beams, whatever their
lengths: they share a group. An error in one text ends only that text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from shoal.errors import BackendFailure, ShoalError
from shoal.generation.beams import BeamSearch
from shoal.generation.choice import TokenSampler
from shoal.generation.decoder import Decoder
from shoal.generation.options import Generated, GenerationOptions
from shoal.generation.states import States


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


class ContinuousBatch:
    """All texts that one decoder generates. For one thread."""

    def __init__(self, decoder: Decoder, max_rows: int) -> None:
        """At most `max_rows` rows: a text takes one, or one for each of its beams."""
        self.max_rows = max_rows
        self._decoder = decoder
        self._groups: dict[int, _WidthGroup] = {}

    @property
    def rows(self) -> int:
        """Rows in use."""
        return sum(group.states.rows for group in self._groups.values())

    @property
    def texts(self) -> int:
        """Texts in progress."""
        return sum(len(group.jobs) for group in self._groups.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(group.states.nbytes for group in self._groups.values())

    def join(self, jobs: Sequence[GenerationJob], contexts: Sequence[Sequence[np.ndarray]]) -> None:
        """Add jobs from the next step on. A job that fails is notified."""
        longer: list[tuple[GenerationJob, Sequence[np.ndarray]]] = []
        for job, context in zip(jobs, contexts, strict=True):
            if len(job.prompt) == 1:
                self._group(job).join(job, context)
            else:
                longer.append((job, context))
        if longer:
            self._begin(longer)
        self._remove_empty()

    def step(self) -> list[int]:
        """A token for every text; returns how many rows each run of the decoder had."""
        sizes: list[int] = []
        for group in self._groups.values():
            group.drop_cancelled()
            if group.jobs:
                sizes.append(group.states.rows)
                group.step()
        self._remove_empty()
        return sizes

    def fail_all(self, error: Exception) -> None:
        """End every text with an error."""
        for group in self._groups.values():
            for job in group.jobs:
                job.on_error(error)
        self._groups.clear()

    def _group(self, job: GenerationJob) -> _WidthGroup:
        width = job.options.num_beams
        group = self._groups.get(width)
        if group is None:
            group = self._groups[width] = _WidthGroup(self._decoder, width)
        return group

    def _remove_empty(self) -> None:
        """Free the memory of groups without texts."""
        for width in [width for width, group in self._groups.items() if not group.jobs]:
            del self._groups[width]

    def _begin(self, jobs: Sequence[tuple[GenerationJob, Sequence[np.ndarray]]]) -> None:
        """Compute the states of all but the last tokens of prompts, then let them join."""
        lengths = [len(job.prompt) - 1 for job, _ in jobs]
        shape = self._decoder.shape
        tokens = np.zeros((len(jobs), max(lengths)), np.int64)  # padding is never read
        for row, (job, _) in enumerate(jobs):
            tokens[row, : lengths[row]] = job.prompt[:-1]
        nothing = np.zeros((len(jobs), shape.heads, 1, shape.head_size), np.float32)
        context = [_stacked(arrays) for arrays in zip(*(given for _, given in jobs), strict=True)]
        try:
            _, states = self._decoder.run(
                tokens, np.zeros(len(jobs), np.int64), [nothing] * shape.states, context
            )
        except Exception as error:  # noqa: BLE001 - reported to the request
            if len(jobs) == 1:
                jobs[0][0].on_error(error)
                return
            for alone in jobs:
                self._begin([alone])
            return
        for row, (job, given) in enumerate(jobs):
            group = self._group(job)
            slot = group.join(job, given)
            group.states.begin(slot, states[:, row], lengths[row])


class _WidthGroup:
    """Texts with the same number of beams."""

    def __init__(self, decoder: Decoder, width: int) -> None:
        self.jobs: list[GenerationJob] = []  # by their slot in the states
        self.states = States(decoder.shape, width)
        self._decoder = decoder
        self._searches: list[TokenSampler | BeamSearch] = []
        self._next = np.zeros(width, np.int64)  # by row: the token the next step starts with

    def join(self, job: GenerationJob, context: Sequence[np.ndarray]) -> int:
        """Add a text, whose next step starts with the last token of its prompt."""
        slot = self.states.join(context)
        width = self.states.width
        search = TokenSampler(job.options) if width == 1 else BeamSearch(job.options)
        self.jobs.append(job)
        self._searches.append(search)
        if len(self._next) < self.states.rows:
            self._next = np.resize(self._next, 2 * self.states.rows)
        self._next[slot * width : (slot + 1) * width] = job.prompt[-1]
        return slot

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
        states, width = self.states, self.states.width
        rows = slice(first * width, last * width)
        states.make_room(int(states.lengths[rows].max()) + 1)
        logits, new = self._decoder.run(
            self._next[rows, None],
            states.lengths[rows],
            states.past(first, last),
            states.context(first, last),
        )
        most_likely = logits.argmax(axis=1)
        sane = np.isfinite(logits[np.arange(len(logits)), most_likely])
        if not sane.all():
            raise BackendFailure("the decoder computed logits that are not numbers")
        states.append(new, first)
        for slot in reversed(range(first, last)):  # free slots are filled from the end
            at = (slot - first) * width
            try:
                self._advance(slot, logits[at : at + width], int(most_likely[at]))
            except Exception as error:  # noqa: BLE001 - of this text; the others are intact
                self.jobs[slot].on_error(error)
                self._leave(slot)

    def _advance(self, slot: int, logits: np.ndarray, most_likely: int) -> None:
        job, search = self.jobs[slot], self._searches[slot]
        if isinstance(search, TokenSampler):
            token = search.advance(logits[0], most_likely)
            self._next[slot] = token
        else:
            step = search.advance(logits)
            self.states.reorder(slot, step.parents)
            width = self.states.width
            self._next[slot * width : (slot + 1) * width] = step.tokens
        result = search.result()
        if result is not None:
            self._leave(slot)
            job.on_result(result)
        elif isinstance(search, TokenSampler):
            job.on_token(token)

    def _leave(self, slot: int) -> None:
        """Free a slot; the last text moves into it."""
        width, last = self.states.width, len(self.jobs) - 1
        self.states.leave(slot)
        self._next[slot * width : (slot + 1) * width] = self._next[
            last * width : (last + 1) * width
        ]
        self.jobs[slot], self._searches[slot] = self.jobs[last], self._searches[last]
        self.jobs.pop()
        self._searches.pop()


def _stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)


def as_shoal_error(error: Exception) -> ShoalError:
    """The error that a client receives for an exception."""
    if isinstance(error, ShoalError):
        return error
    return BackendFailure(f"{type(error).__name__}: {error}")
