"""Where texts and questions come from: a person at a terminal, or a stream.

    text> …lines, then an empty one         question> one line         quit, exit or Ctrl-D ends

A stream holds the same without prompts: a text, an empty line, a question, and so on.
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
Ask = Callable[[str], str]  # as `input`: shows a prompt, raises EOFError at the end


class Reader(Protocol):
    """Gives texts and questions. None means that there are no more."""

    def text(self, *, kept: bool) -> str | None:
        """The next text; an empty one keeps the one before, if there is one (`kept`)."""

    def question(self) -> str | None:
        """The next question; it may be empty."""


class TerminalReader:
    """Asks a person. `ask` is `input`, which knows the line editor of the terminal."""

    def __init__(self, ask: Ask, screen: Screen) -> None:
        self._ask = ask
        self._colours = screen.colours

    def text(self, *, kept: bool) -> str | None:
        """Lines up to an empty one, or to Ctrl-D, which at once means the end."""
        lines: list[str] = []
        prompt = "text (empty: the same)> " if kept else "text> "
        try:
            while True:
                line = self._ask(self._prompt("....> " if lines else prompt))
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
            line = self._ask(self._prompt("question> "))
        except EOFError:
            return None
        return None if line.strip().lower() in _LEAVE else line.strip()

    def _prompt(self, words: str) -> str:
        # The editor must not count what takes no room on the line.
        return f"\x01{_PROMPT}\x02{words}\x01{_PLAIN}\x02" if self._colours else words


class StreamReader:
    """Reads a stream in which an empty line ends each text."""

    def __init__(self, stream: Iterable[str]) -> None:
        self._lines: Iterator[str] = (line.rstrip("\r\n") for line in stream)

    def text(self, *, kept: bool) -> str | None:
        """Lines up to an empty one; with `kept`, an empty line at once keeps the text."""
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
        """One line; empty ones before it mean nothing."""
        line = next((line for line in self._lines if line.strip()), None)
        return None if line is None or line.strip().lower() in _LEAVE else line.strip()


class GivenReader:
    """The questions of a command line, about a text that is there already."""

    def __init__(self, questions: Iterable[str]) -> None:
        self._questions = iter(questions)

    def text(self, *, kept: bool) -> str | None:
        """The text stays."""
        return "" if kept else None

    def question(self) -> str | None:
        """The next one."""
        return next(self._questions, None)


def with_history(ask: Ask) -> Ask:
    """`ask` with the arrow keys, where Python has a line editor. History lasts as long as we do."""
    with contextlib.suppress(ImportError):  # Windows, and some small builds
        import_module("readline")  # `input` uses it from now on
    return ask
