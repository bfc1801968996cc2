"""Text out of tokens as they come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.generation.text import TextStream
from tests.support.text_generators import byte_tokenizer, word_tokenizer

BYTES = byte_tokenizer()
WORDS = word_tokenizer()


def pieces(tokenizer, ids, before=()):
    stream = TextStream(tokenizer.decode, before)
    return [*(stream.push([token]) for token in ids), stream.rest()]


@given(st.text(max_size=40))
def test_pieces_of_bytes_are_the_text_and_never_half_a_letter(text):
    found = pieces(BYTES, BYTES.encode(text).ids)
    assert "".join(found) == text
    assert not any("\ufffd" in piece for piece in found) or "\ufffd" in text


def test_a_letter_comes_with_its_last_byte():
    ids = BYTES.encode("a日é").ids
    assert pieces(BYTES, ids) == ["a", "", "", "日", "", "é", ""]


def test_a_text_that_ends_within_a_letter_shows_that_at_the_end():
    ids = BYTES.encode("a日").ids[:-1]
    found = pieces(BYTES, ids)
    assert found[:3] == ["a", "", ""]
    assert "".join(found) == BYTES.decode(ids)


@given(st.lists(st.integers(5, WORDS.get_vocab_size() - 1), max_size=40))
def test_pieces_of_words_are_the_text(ids):
    assert "".join(pieces(WORDS, ids)) == WORDS.decode(ids)


@given(
    st.lists(st.integers(5, WORDS.get_vocab_size() - 1), min_size=1, max_size=12),
    st.lists(st.integers(5, WORDS.get_vocab_size() - 1), max_size=12),
)
def test_what_follows_a_prompt_is_written_as_if_both_were_one(before, ids):
    after = "".join(pieces(WORDS, ids, before))
    assert WORDS.decode(before) + after == WORDS.decode([*before, *ids])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["two", "dog", "##s"], ["two", " dog", "s", ""]),
        (["a", "cat", "."], ["a", " cat", ".", ""]),
        (["[DEC]", "cat"], ["", "cat", ""]),
    ],
)
def test_word_pieces(words, expected):
    ids = [WORDS.token_to_id(word) for word in words]
    assert pieces(WORDS, ids) == expected


def test_many_tokens_at_once():
    stream = TextStream(BYTES.decode)
    assert stream.push(BYTES.encode("hello ").ids) == "hello "
    assert stream.push(BYTES.encode("日").ids[:2]) == ""
    assert stream.push(BYTES.encode("日").ids[2:]) == "日"
    assert stream.rest() == ""
