"""What a person sees."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.ask.question import Answer, Question
from shoal.ask.screen import Screen, printable, width, wrap

TEXT = "A shoal of herring rests by day and comes up to feed at night, far from the coast."
SGR = re.compile(r"\x1b\[[0-9;]*m")


def shown(screen, text=TEXT, answer=None, latency_ms=12.34):
    answer = answer or Answer("at night")
    return list(screen.lines(Question(text, "When does it feed?"), answer, latency_ms))


def test_the_four_parts():
    assert shown(Screen()) == [
        f"text      {TEXT}",
        "question  When does it feed?",
        "answer    at night",
        "latency   12.3 ms",
    ]


def test_what_http_tells_besides():
    answer = Answer("at night", score=0.913, start=53, end=61, model="questions")
    assert shown(Screen(), answer=answer)[-1] == (
        "latency   12.3 ms  (score 0.91, characters 53 to 61, model questions)"
    )


def test_on_a_terminal_lines_fit_and_the_answer_stands_out():
    lines = shown(Screen(40, colours=True))
    plain = [SGR.sub("", line) for line in lines]
    assert plain == [
        "text      A shoal of herring rests by",
        "          day and comes up to feed at",
        "          night, far from the coast.",
        "question  When does it feed?",
        "answer    at night",
        "latency   12.3 ms",
    ]
    # The answer goes over the end of a line.
    assert "\x1b[1;32mat\x1b[0m" in lines[1]
    assert "\x1b[1;32mnight\x1b[0m, far" in lines[2]
    assert "\x1b" not in "".join(shown(Screen(40)))


def test_unknown_has_a_colour_of_its_own():
    assert "\x1b[33mUnknown\x1b[0m" in shown(Screen(80, colours=True), answer=Answer("Unknown"))[-2]


def test_of_a_long_text_what_stands_around_the_answer():
    text = "\n".join(f"line {number}" for number in range(100))
    lines = shown(Screen(80), text, Answer("line 50"))
    assert lines[0] == "text      … 44 lines above"
    assert "          line 50" in lines
    assert "          … 44 lines more" in lines
    assert len(lines) == 12 + 2 + 3
    assert len(shown(Screen(), text, Answer("line 50"))) == 100 + 3  # a file may have it all


def test_nothing_does_things_to_the_terminal():
    lines = shown(Screen(80), "a\x1b[2Jb\tc\r\nd", Answer("\x1b]0;x\x07"))
    assert "\x1b" not in "".join(lines)
    assert lines[:2] == ["text      a\ufffd[2Jb c", "          d"]
    assert "\x1b" not in Screen().problem("\x1b[2J")


@pytest.mark.parametrize(
    ("text", "columns", "lines"),
    [
        ("", 5, [""]),
        ("one two", 0, ["one two"]),
        ("one two three", 7, ["one two", "three"]),
        ("one\n\ntwo\n", 7, ["one", "", "two"]),
        ("abcdefgh ij", 5, ["abcde", "fgh", "ij"]),
        ("  far   apart  ", 20, ["far   apart"]),
        ("鯡の群れは夜", 6, ["鯡の群", "れは夜"]),
    ],
)
def test_wrap(text, columns, lines):
    assert [text[begin:end] for begin, end in wrap(text, columns)] == lines


@given(st.text("ab \n鯡é\u0301", max_size=60), st.integers(2, 12))
def test_wrapping_loses_no_word_and_no_line_is_too_wide(text, columns):
    lines = [text[begin:end] for begin, end in wrap(text, columns)]
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(width(line) <= columns for line in lines)


@given(st.text(max_size=40))
def test_printable_keeps_places(text):
    assert len(printable(text)) == len(text)
    assert printable(text).replace("\n", "").isprintable()


def test_a_word_of_a_megabyte_is_cut_in_good_time():
    assert sum(1 for _ in wrap("é" * 200_000, 70)) == -(-200_000 // 70)
