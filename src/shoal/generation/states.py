"""The past states of texts that are generated together, in arrays that runtimes can read in slot.

    rows of one text ─┐
    [ a a | b b | c c | . . | . . ]     used rows are always in front, so that a batch is a view
                ↑ leaves: the last one moves here

States are not copied from step to step: a step writes those of its new tokens; others move only
when a text ends or beams are reordered. Arrays grow by doubling, in both directions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.generation.decoder import Shape

_FIRST_LENGTH = 16


class States:
    """Past states and context of texts with `width` rows each."""

    def __init__(self, shape: Shape, width: int) -> None:
        self.width = width
        self.texts = 0
        self._shape = shape
        self._room = 1  # texts
        self._length = min(_FIRST_LENGTH, shape.max_length)  # tokens that each row has room for
        self._past = self._empty_past()
        self._context = [np.zeros((1, *dims), np.float32) for dims in shape.context]
        self.lengths = np.zeros(width, np.int64)  # tokens whose states are there, by row

    @property
    def rows(self) -> int:
        """Rows in use."""
        return self.texts * self.width

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self._past.nbytes + sum(array.nbytes for array in self._context)

    def past(self, first: int = 0, last: int | None = None) -> list[np.ndarray]:
        """The states of texts (all by default), as views for the decoder."""
        width = self.width
        rows = slice(first * width, (self.texts if last is None else last) * width)
        return [state[rows] for state in self._past]

    def context(self, first: int = 0, last: int | None = None) -> list[np.ndarray]:
        """The further inputs of texts (all by default), as views."""
        texts = slice(first, self.texts if last is None else last)
        return [array[texts] for array in self._context]

    def join(self, context: Sequence[np.ndarray]) -> int:
        """Add a text with its further inputs; returns its slot."""
        slot = self.texts
        if slot == self._room:
            self._grow(2 * self._room, self._length)
        for kept, given in zip(self._context, context, strict=True):
            kept[slot] = given
        self.texts += 1
        self.lengths[self._rows(slot)] = 0
        return slot

    def begin(self, slot: int, states: np.ndarray, length: int) -> None:
        """Give a text its first states: those of `length` tokens, the same for all its rows."""
        self.make_room(length + 1)
        self._past[:, self._rows(slot), :, :length] = states[:, None, :, :length]
        self.lengths[self._rows(slot)] = length

    def make_room(self, length: int) -> None:
        """Grow so that each row can hold `length` tokens."""
        if length > self._length:
            doubled = max(length, 2 * self._length)
            self._grow(self._room, min(doubled, max(length, self._shape.max_length)))

    def append(self, states: np.ndarray, first: int = 0) -> None:
        """Store the states of one new token in each row, from the text at `first` on."""
        begin = first * self.width
        rows = np.arange(begin, begin + states.shape[1])
        # The indexed dimensions come first in what numpy assigns to.
        self._past[:, rows, :, self.lengths[rows]] = states[:, :, :, 0].transpose(1, 0, 2, 3)
        self.lengths[rows] += 1

    def reorder(self, slot: int, parents: np.ndarray) -> None:
        """Make each row of a text continue from one of its rows."""
        if np.array_equal(parents, np.arange(self.width)):
            return
        rows = slot * self.width + parents
        used = int(self.lengths[slot * self.width])
        self._past[:, self._rows(slot), :, :used] = self._past[:, rows, :, :used]

    def leave(self, slot: int) -> None:
        """Remove a text. The last one moves into its slot."""
        last = self.texts - 1
        if slot != last:
            used = int(self.lengths[last * self.width])
            into, come = self._rows(slot), self._rows(last)
            self._past[:, into, :, :used] = self._past[:, come, :, :used]
            self.lengths[into] = self.lengths[come]
            for array in self._context:
                array[slot] = array[last]
        self.texts = last

    def _rows(self, slot: int) -> slice:
        return slice(slot * self.width, (slot + 1) * self.width)

    def _empty_past(self) -> np.ndarray:
        shape = self._shape
        rows = self._room * self.width
        # Zeros: padding must be finite for a mask to cancel it.
        return np.zeros(
            (shape.states, rows, shape.heads, self._length, shape.head_size), np.float32
        )

    def _grow(self, room: int, length: int) -> None:
        past, rows = self._past, self.rows
        used = int(self.lengths[:rows].max(initial=0))
        self._room, self._length = room, length
        self._past = self._empty_past()
        self._past[:, :rows, :, :used] = past[:, :rows, :, :used]
        self.lengths = np.resize(self.lengths, room * self.width)
        for index, old in enumerate(self._context):
            if len(old) < room:
                new = np.zeros((room, *old.shape[1:]), np.float32)
                new[: self.texts] = old[: self.texts]
                self._context[index] = new
