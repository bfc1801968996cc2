"""Windows: every token in one, neighbours together, rows as the model wants them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from shoal.tasks.questions import windows
from shoal.tasks.questions.windows import Frame, frame_of

FRAME = Frame(before=((101, 0),), between=((102, 0),), after=((102, 1),), text_type=1)


@pytest.mark.parametrize(
    ("tokens", "room", "overlap", "pieces"),
    [
        (5, 10, 4, [(0, 5)]),  # all of it fits
        (10, 10, 4, [(0, 10)]),
        (11, 10, 4, [(0, 10), (1, 11)]),  # the last one reaches back
        (16, 10, 4, [(0, 10), (6, 16)]),
        (17, 10, 4, [(0, 10), (6, 16), (7, 17)]),
        (20, 10, 0, [(0, 10), (10, 20)]),
        (4, 1, 0, [(0, 1), (1, 2), (2, 3), (3, 4)]),
    ],
)
def test_cut(tokens, room, overlap, pieces):
    assert windows.cut(tokens, room, overlap) == pieces


@given(st.integers(1, 500), st.integers(1, 60), st.integers(0, 59))
def test_neighbours_are_together_in_some_piece(tokens, room, overlap):
    overlap = min(overlap, room - 1)
    pieces = windows.cut(tokens, room, overlap)
    assert all(0 <= begin < end <= begin + room for begin, end in pieces)
    for first in range(tokens):
        last = min(tokens, first + overlap + 1)
        assert any(begin <= first and last <= end for begin, end in pieces)
    if tokens > room:
        assert {end - begin for begin, end in pieces} == {room}


def test_rows_hold_question_and_text():
    made = windows.arrange(FRAME, [[7], [8, 9]], range(20, 26), max_length=8, overlap=1)
    assert [(one.question, one.begin, one.end, one.lead) for one in made] == [
        (0, 0, 4, 3),
        (0, 2, 6, 3),
        (1, 0, 3, 4),
        (1, 2, 5, 4),
        (1, 3, 6, 4),
    ]
    assert made[1].ids.tolist() == [101, 7, 102, 22, 23, 24, 25, 102]
    assert made[1].types.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert made[2].ids.tolist() == [101, 8, 9, 102, 20, 21, 22, 102]


def test_a_short_text_is_a_short_row():
    (one,) = windows.arrange(FRAME, [[7]], [20], max_length=384, overlap=128)
    assert one.ids.tolist() == [101, 7, 102, 20, 102]
    assert len(one) == 5


def test_rows_of_a_request_are_padded_and_masked():
    made = windows.arrange(FRAME, [[7], [8, 9]], [20], max_length=384, overlap=128)
    rows = windows.stack(made, pad=4)
    assert rows["input_ids"].tolist() == [[101, 7, 102, 20, 102, 4], [101, 8, 9, 102, 20, 102]]
    assert rows["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]
    assert rows["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1]]
    assert windows.stack(made, pad=0, length=9)["input_ids"].shape == (2, 9)


def test_requests_hold_many_rows():
    made = windows.arrange(FRAME, [[7], [8, 9]], range(20, 26), max_length=8, overlap=1)
    mixed = windows.group(made, 2, mixed=True)
    assert [len(group) for group in mixed] == [2, 2, 1]
    assert [one for group in mixed for one in group] == made


def test_without_a_mask_only_equal_lengths_go_together():
    made = windows.arrange(FRAME, [[7], [8, 9], [3, 4]], [20], max_length=384, overlap=128)
    assert [len(group) for group in windows.group(made, 8, mixed=False)] == [1, 2]


def test_the_frame_of_a_tokenizer(words):
    frame = frame_of(words)
    assert frame == Frame(
        before=((1, 0),), between=((2, 0),), after=((2, 1),), question_type=0, text_type=1
    )
    assert frame.size == 3


def test_a_tokenizer_without_pairs_has_no_frame():
    with pytest.raises(ValueError, match="into one row"):
        frame_of(Tokenizer(models.BPE()))


def test_types_are_whole_numbers(words):
    (one,) = windows.arrange(frame_of(words), [[5]], [6], max_length=50, overlap=4)
    assert one.ids.dtype == one.types.dtype == np.int64
