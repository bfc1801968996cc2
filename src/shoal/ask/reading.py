"""Reads texts and questions from a terminal or a stream.

    text> …lines, then an empty one         question> one line         quit, exit or Ctrl-D ends

A stream has the same format without prompts: a text, an empty line, a question, and so on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Protocol

from shoal.ask.screen import Screen

_LEAVE = ("quit", "exit")
_PROMPT = "\x1b[1;36m"
_PLAIN = "\x1b[0m"
ReadLine = Callable[[str], str]  # like `input`: shows a prompt, raises EOFError at the end


class Reader(Protocol):
    """Provides texts and questions. None means that there are no more."""

    def text(self, *, kept: bool) -> str | None:
        """The next text; an empty one keeps the previous one, if there is one (`kept`)."""

    def question(self) -> str | None:
        """The next question; it may be empty."""


class TerminalReader:
    """Prompts on a terminal. `read_line` is usually `input`."""

    def __init__(self, read_line: ReadLine, screen: Screen) -> None:
        self._read_line = read_line
        self._colours = screen.colours

    def text(self, *, kept: bool) -> str | None:
        """Lines up to an empty one or Ctrl-D; Ctrl-D on the first line ends the dialogue."""
        lines: list[str] = []
        prompt = "text (empty: the same)> " if kept else "text> "
        try:
            while True:
                line = self._read_line(self._prompt("....> " if lines else prompt))
                if not lines and line.strip().lower() in _LEAVE:
                    return None
                if not line.strip():
                    break
                lines.append(line)
        except EOFError:
            if not lines:
                return None
        return "\n".join(lines)

    def question(self) -> str | None:
        """One line."""
        try:
            line = self._read_line(self._prompt("question> "))
        except EOFError:
            return None
        return None if line.strip().lower() in _LEAVE else line.strip()

    def _prompt(self, words: str) -> str:
        # Mark escape sequences as zero-width for the line editor.
        return f"\x01{_PROMPT}\x02{words}\x01{_PLAIN}\x02" if self._colours else words


class StreamReader:
    """Reads a stream in which an empty line ends each text."""

    def __init__(self, stream: Iterable[str]) -> None:
        self._lines: Iterator[str] = (line.rstrip("\r\n") for line in stream)

    def text(self, *, kept: bool) -> str | None:
        """Lines up to an empty one; with `kept`, an empty first line keeps the previous text."""
        lines: list[str] = []
        for line in self._lines:
            if not lines and line.strip().lower() in _LEAVE:
                return None
            if not line.strip():
                if lines or kept:
                    break
                continue  # empty lines before the first text
            lines.append(line)
        else:
            return "\n".join(lines) if lines else None
        return "\n".join(lines)

    def question(self) -> str | None:
        """One line; empty lines before it are skipped."""
        line = next((line for line in self._lines if line.strip()), None)
        return None if line is None or line.strip().lower() in _LEAVE else line.strip()


class GivenReader:
    """The questions of the command line, about a given text."""

    def __init__(self, questions: Iterable[str]) -> None:
        self._questions = iter(questions)

    def text(self, *, kept: bool) -> str | None:
        """The text is kept."""
        return "" if kept else None

    def question(self) -> str | None:
        """The next question."""
        return next(self._questions, None)


def with_history(read_line: ReadLine) -> ReadLine:
    """Enable line editing and history for `input`, where Python has readline."""
    with contextlib.suppress(ImportError):  # Windows, and some small builds
        import_module("readline")  # `input` uses it from now on
    return read_line
