"""The past states of texts that are generated together, in arrays that runtimes can read in place.

    rows of one text ─┐
    [ a a | b b | c c | . . | . . ]     used rows are always in front, so that a batch is a view
                ↑ leaves: the last one moves here

States are not copied from step to step: a step writes those of its new tokens, and nothing else
moves unless a text ends or beams change places. Arrays grow by doubling, in both directions.
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
        """Rows that are in use."""
        return self.texts * self.width

    @property
    def nbytes(self) -> int:
        """What the arrays take."""
        return self._past.nbytes + sum(array.nbytes for array in self._context)

    def past(self, first: int = 0, last: int | None = None) -> list[np.ndarray]:
        """The states of texts, all unless told, as a decoder takes them. Views."""
        width = self.width
        rows = slice(first * width, (self.texts if last is None else last) * width)
        return [state[rows] for state in self._past]

    def context(self, first: int = 0, last: int | None = None) -> list[np.ndarray]:
        """What texts are about, all unless told. Views."""
        texts = slice(first, self.texts if last is None else last)
        return [array[texts] for array in self._context]

    def join(self, context: Sequence[np.ndarray]) -> int:
        """Make room for a text and keep what it is about; returns its place."""
        place = self.texts
        if place == self._room:
            self._grow(2 * self._room, self._length)
        for kept, given in zip(self._context, context, strict=True):
            kept[place] = given
        self.texts += 1
        self.lengths[self._rows(place)] = 0
        return place

    def begin(self, place: int, states: np.ndarray, length: int) -> None:
        """Give a text its first states: those of `length` tokens, the same for all its rows."""
        self.make_room(length + 1)
        self._past[:, self._rows(place), :, :length] = states[:, None, :, :length]
        self.lengths[self._rows(place)] = length

    def make_room(self, length: int) -> None:
        """Have each row hold at least so many tokens."""
        if length > self._length:
            doubled = max(length, 2 * self._length)
            self._grow(self._room, min(doubled, max(length, self._shape.max_length)))

    def append(self, states: np.ndarray, first: int = 0) -> None:
        """Keep the states of one new token in each row, from the text at `first` on."""
        begin = first * self.width
        rows = np.arange(begin, begin + states.shape[1])
        # The indexed dimensions come first in what numpy assigns to.
        self._past[:, rows, :, self.lengths[rows]] = states[:, :, :, 0].transpose(1, 0, 2, 3)
        self.lengths[rows] += 1

    def reorder(self, place: int, parents: np.ndarray) -> None:
        """Have the rows of a text go on from others of its rows."""
        if np.array_equal(parents, np.arange(self.width)):
            return
        rows = place * self.width + parents
        used = int(self.lengths[place * self.width])
        self._past[:, self._rows(place), :, :used] = self._past[:, rows, :, :used]

    def leave(self, place: int) -> None:
        """Forget a text. The last one takes its place."""
        last = self.texts - 1
        if place != last:
            used = int(self.lengths[last * self.width])
            into, come = self._rows(place), self._rows(last)
            self._past[:, into, :, :used] = self._past[:, come, :, :used]
            self.lengths[into] = self.lengths[come]
            for array in self._context:
                array[place] = array[last]
        self.texts = last

    def _rows(self, place: int) -> slice:
        return slice(place * self.width, (place + 1) * self.width)

    def _empty_past(self) -> np.ndarray:
        shape = self._shape
        rows = self._room * self.width
        # Zeros: what has no meaning must at least be a number, which a mask can take away.
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
