"""Windows: divides a text that may be longer than the model's input into rows of tokens.

    question + text  -->  [CLS] question [SEP] a piece of the text [SEP],  the next piece, …

Neighbouring windows overlap, so that an answer at the edge of one is inside the other. All windows
of a long text are full: the last one overlaps more instead of being short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

Ids = NDArray[np.int64]

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"


@dataclass(frozen=True, slots=True)
class Frame:
    """The special tokens around a question and a text: (token, type) pairs."""

    before: tuple[tuple[int, int], ...]
    between: tuple[tuple[int, int], ...]
    after: tuple[tuple[int, int], ...]
    question_type: int = 0
    text_type: int = 0

    @property
    def size(self) -> int:
        """The number of special tokens in a window."""
        return len(self.before) + len(self.between) + len(self.after)


def frame_of(tokenizer: Tokenizer) -> Frame:
    """The frame that a tokenizer adds to a pair. ValueError if it does not support pairs."""
    pair = tokenizer.encode("a", "b")
    tokens = list(zip(pair.ids, pair.type_ids, strict=True))
    question = [at for at, part in enumerate(pair.sequence_ids) if part == 0]
    text = [at for at, part in enumerate(pair.sequence_ids) if part == 1]
    if not question or not text or question[-1] > text[0]:
        raise ValueError("it does not put a question and a text into one row")
    return Frame(
        before=tuple(tokens[: question[0]]),
        between=tuple(tokens[question[-1] + 1 : text[0]]),
        after=tuple(tokens[text[-1] + 1 :]),
        question_type=tokens[question[0]][1],
        text_type=tokens[text[0]][1],
    )


@dataclass(frozen=True, slots=True)
class TextWindow:
    """One row for the model, and where the text is in it."""

    question: int  # its index in the call
    begin: int  # the tokens of the text that are in it
    end: int
    lead: int  # the number of tokens before them in the row
    ids: Ids
    types: Ids

    def __len__(self) -> int:
        return len(self.ids)


def cut(tokens: int, room: int, overlap: int) -> list[tuple[int, int]]:
    """The begin and end of each piece of a text.

    `room` is the number of tokens of the text that fit into a window, more than `overlap`. Any
    `overlap` + 1 neighbours are together in at least one piece.
    """
    pieces = []
    begin = 0
    while begin + room < tokens:
        pieces.append((begin, begin + room))
        begin += room - overlap
    pieces.append((max(0, tokens - room), tokens))
    return pieces


def arrange(
    frame: Frame,
    questions: Sequence[Sequence[int]],
    text: Sequence[int],
    *,
    max_length: int,
    overlap: int,
) -> list[TextWindow]:
    """The windows of every question, in order. Each question must leave room for `overlap` + 1."""
    text_ids = np.asarray(text, np.int64)
    before, between, after = (
        np.array(part, np.int64).reshape(-1, 2)
        for part in (frame.before, frame.between, frame.after)
    )
    windows = []
    for number, question in enumerate(questions):
        lead_ids = np.concatenate((before[:, 0], np.asarray(question, np.int64), between[:, 0]))
        lead_types = np.concatenate(
            (before[:, 1], np.full(len(question), frame.question_type, np.int64), between[:, 1])
        )
        room = max_length - frame.size - len(question)
        for begin, end in cut(len(text_ids), room, overlap):
            ids = np.concatenate((lead_ids, text_ids[begin:end], after[:, 0]))
            text_types = np.full(end - begin, frame.text_type, np.int64)
            types = np.concatenate((lead_types, text_types, after[:, 1]))
            windows.append(TextWindow(number, begin, end, len(lead_ids), ids, types))
    return windows


def group(windows: Sequence[TextWindow], most: int, *, mixed: bool) -> list[list[TextWindow]]:
    """The windows by request: at most `most` rows, of different lengths only if `mixed`."""
    groups: list[list[TextWindow]] = []
    for window in windows:
        last = groups[-1] if groups else None
        if last and len(last) < most and (mixed or len(last[0]) == len(window)):
            last.append(window)
        else:
            groups.append([window])
    return groups


def stack(windows: Sequence[TextWindow], *, pad: int, length: int | None = None) -> dict[str, Ids]:
    """The tensors of one request; rows that are shorter than the longest, or `length`, are padded.

    The mask is 0 for padding.
    """
    width = length or max(len(window) for window in windows)
    ids = np.full((len(windows), width), pad, np.int64)
    mask = np.zeros_like(ids)
    types = np.zeros_like(ids)
    for row, window in enumerate(windows):
        ids[row, : len(window)] = window.ids
        mask[row, : len(window)] = 1
        types[row, : len(window)] = window.types
    return {IDS: ids, MASK: mask, TYPES: types}
