"""The output: the text with the answer highlighted, the question, the answer, the latency.

    text      A shoal of herring rests by day and feeds at night.
    question  When does it feed?
    answer    at night
    latency   12.3 ms

On a terminal, lines are wrapped and coloured; elsewhere they are printed as they are.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from shoal.ask.question import Answer, Question

LABEL_WIDTH = 10
MOST_LINES = 12  # of a text on a terminal; more would scroll the answer out of sight
_NARROWEST = 20
_LABEL, _ANSWER, _UNKNOWN, _PROBLEM = "\x1b[2m", "\x1b[1;32m", "\x1b[33m", "\x1b[31m"
_PLAIN = "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Screen:
    """The output format: `width` 0 does not wrap lines."""

    width: int = 0
    colours: bool = False

    def lines(self, question: Question, answer: Answer, latency_ms: float) -> Iterator[str]:
        """One question and its answer."""
        yield from self._labelled("text", self._text(question.text, answer))
        yield from self._labelled("question", self._wrapped(question.question))
        style = _ANSWER if answer.known else _UNKNOWN
        shown = [self.styled(line, style) for line in self._wrapped(answer.text)]
        yield from self._labelled("answer", shown)
        yield from self._labelled("latency", [f"{latency_ms:.1f} ms{self._details(answer)}"])

    def problem(self, sentence: str) -> str:
        """An error as a line."""
        return f"{self.styled('error:', _PROBLEM)} {printable(sentence)}"

    def styled(self, text: str, style: str) -> str:
        """The text in a colour, if colours are enabled."""
        return f"{style}{text}{_PLAIN}" if self.colours and text else text

    def _labelled(self, label: str, lines: list[str]) -> Iterator[str]:
        for number, line in enumerate(lines or [""]):
            head = f"{label if number == 0 else '':<{LABEL_WIDTH}}"
            yield f"{self.styled(head, _LABEL) if number == 0 else head}{line}".rstrip()

    def _text(self, text: str, answer: Answer) -> list[str]:
        """The text with the answer in colour; of a long text, the lines around the answer."""
        text = printable(text)
        span = answer.span(text) or (0, 0)
        spans = list(wrap(text, self._columns()))
        first, last = 0, len(spans)
        if self.width and last > MOST_LINES:
            where = next((n for n, (_, end) in enumerate(spans) if end > span[0]), 0)
            first = max(0, min(where - MOST_LINES // 2, last - MOST_LINES))
            last = first + MOST_LINES
        lines = [self._marked(text, line, span) for line in spans[first:last]]
        if first:
            lines.insert(0, f"… {_count(first, 'line')} above")
        if last < len(spans):
            lines.append(f"… {_count(len(spans) - last, 'line')} more")
        return lines

    def _marked(self, text: str, line: tuple[int, int], span: tuple[int, int]) -> str:
        begin, end = line
        low, high = max(begin, span[0]), min(end, span[1])
        if low >= high:
            return text[begin:end]
        return f"{text[begin:low]}{self.styled(text[low:high], _ANSWER)}{text[high:end]}"

    def _wrapped(self, text: str) -> list[str]:
        text = printable(text)
        return [text[begin:end] for begin, end in wrap(text, self._columns())]

    def _columns(self) -> int:
        return max(_NARROWEST, self.width - LABEL_WIDTH) if self.width else 0

    def _details(self, answer: Answer) -> str:
        parts = []
        if answer.score is not None:
            parts.append(f"score {answer.score:.2f}")
        if answer.start is not None and answer.end is not None:
            parts.append(f"characters {answer.start} to {answer.end}")
        if answer.model:
            parts.append(f"model {printable(answer.model)}")
        if not parts:
            return ""
        return self.styled(f"  ({', '.join(parts)})", _LABEL)


def wrap(text: str, columns: int) -> Iterator[tuple[int, int]]:
    """Start and end of each line of `text`, wrapped to `columns` (0: not wrapped)."""
    stop = -1
    for line in text.rstrip().split("\n"):
        start = stop + 1
        stop = start + len(line)
        if not columns:
            yield start, stop
            continue
        begin = end = -1
        for word in _pieces(text, start, stop, columns):
            if begin >= 0 and width(text[begin : word[1]]) <= columns:
                end = word[1]
                continue
            if begin >= 0:
                yield begin, end
            begin, end = word
        yield (begin, end) if begin >= 0 else (start, start)


def _pieces(text: str, begin: int, end: int, columns: int) -> Iterator[tuple[int, int]]:
    """The words of a paragraph; words wider than a line are split."""
    for word in re.compile(r"\S+").finditer(text, begin, end):
        start, stop = word.span()
        # Comparing lengths first avoids measuring a very long word repeatedly.
        while stop - start > columns or width(text[start:stop]) > columns:
            cut = start + 1
            while cut < stop and width(text[start : cut + 1]) <= columns:
                cut += 1
            yield start, cut
            start = cut
        if start < stop:
            yield start, stop


def width(text: str) -> int:
    """The columns of a text: two for wide (East Asian) characters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(
        1 + (unicodedata.east_asian_width(character) in "WF")
        for character in text
        if not unicodedata.combining(character)
    )


def printable(text: str) -> str:
    """`text` with control characters replaced, of the same length."""
    if text.isprintable():
        return text
    return "".join(map(_printable_character, text))


def _printable_character(character: str) -> str:
    if character.isprintable() or character == "\n":
        return character
    return " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
