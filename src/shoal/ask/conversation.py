"""The dialogue: text, question, answer, repeated. Errors are shown; the text is kept."""

from __future__ import annotations

from typing import Protocol

from shoal.ask.askers import Asker
from shoal.ask.question import Answer, Question
from shoal.ask.reading import Reader
from shoal.client.errors import ConnectionFailed, Timeout
from shoal.errors import ShoalError


class Display(Protocol):
    """Shows answers and errors."""

    def answer(self, question: Question, answer: Answer, latency_ms: float) -> None:
        """A question was answered."""

    def problem(self, sentence: str) -> None:
        """A question was not answered, or the input is not a question."""


class Conversation:
    """Asks one question after the other until the reader has no more."""

    def __init__(
        self,
        asker: Asker,
        reader: Reader,
        display: Display,
        *,
        text: str = "",
        fixed: bool = False,
        interactive: bool = False,
    ) -> None:
        """`text` is the first text, and with `fixed` the only one. With `interactive`, a lost
        connection does not end the dialogue: the user may restart the server."""
        self._asker = asker
        self._reader = reader
        self._display = display
        self._text = text
        self._fixed = fixed
        self._interactive = interactive
        self.failed = 0  # number of questions without an answer

    def run(self) -> None:
        """Run until there are no more questions, or the connection is lost and not interactive."""
        while self._next_text():
            question = self._reader.question()
            if question is None:
                return
            if not question:
                self._display.problem("the question is empty; type one, or 'quit'")
                continue
            if not self._asked(Question(self._text, question)):
                return

    def _next_text(self) -> bool:
        """Whether there is a text to ask about."""
        while not self._fixed:
            text = self._reader.text(kept=bool(self._text))
            if text is None:
                return False
            if text.strip():
                self._text = text
            if self._text:
                break
            self._display.problem("there is no text yet; type one, then an empty line")
        return True

    def _asked(self, question: Question) -> bool:
        """Ask and show the answer; returns whether to continue."""
        try:
            answer, latency_ms = self._asker.ask(question)
        except ShoalError as error:
            self.failed += 1
            sentence = error.message
            disconnected = isinstance(error, (ConnectionFailed, Timeout))
            if disconnected and self._interactive:
                sentence += "; your text is kept: ask again when the server is running"
            self._display.problem(sentence)
            return self._interactive or not disconnected
        self._display.answer(question, answer, latency_ms)
        return True
