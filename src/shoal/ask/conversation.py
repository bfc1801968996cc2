"""The dialogue: text, question, answer, and again. What goes wrong is said; the text is kept."""

from __future__ import annotations

from typing import Protocol

from shoal.ask.askers import Asker
from shoal.ask.question import Answer, Question
from shoal.ask.reading import Reader
from shoal.client.errors import ConnectionFailed, Timeout
from shoal.errors import ShoalError


class Show(Protocol):
    """Where things are shown."""

    def answer(self, question: Question, answer: Answer, latency_ms: float) -> None:
        """A question was answered."""

    def problem(self, sentence: str) -> None:
        """It was not, or what was entered cannot be asked."""


class Conversation:
    """One after the other, until the reader has no more."""

    def __init__(
        self,
        asker: Asker,
        reader: Reader,
        show: Show,
        *,
        text: str = "",
        fixed: bool = False,
        patient: bool = False,
    ) -> None:
        """`text` is the one to begin with, and with `fixed` the only one. Where somebody can
        start the server again (`patient`), a lost connection does not end the dialogue."""
        self._asker = asker
        self._reader = reader
        self._show = show
        self._text = text
        self._fixed = fixed
        self._patient = patient
        self.failed = 0  # questions without an answer

    def run(self) -> None:
        """Until there are no more questions; or, unless patient, no more server."""
        while self._next_text():
            question = self._reader.question()
            if question is None:
                return
            if not question:
                self._show.problem("there is no question; type one, or 'quit'")
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
            self._show.problem("there is no text yet; type one, then an empty line")
        return True

    def _asked(self, question: Question) -> bool:
        """Ask and show; false when there is no sense in going on."""
        try:
            answer, latency_ms = self._asker.ask(question)
        except ShoalError as error:
            self.failed += 1
            sentence = error.message
            gone = isinstance(error, (ConnectionFailed, Timeout))
            if gone and self._patient:
                sentence += "; your text is kept: ask again when the server is back"
            self._show.problem(sentence)
            return self._patient or not gone
        self._show.answer(question, answer, latency_ms)
        return True
