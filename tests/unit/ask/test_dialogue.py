"""Readers and the dialogue, without terminal and server."""

from __future__ import annotations

import io

import pytest

from shoal.ask.conversation import Conversation
from shoal.ask.question import Answer
from shoal.ask.reading import GivenReader, StreamReader, TerminalReader
from shoal.ask.screen import Screen
from shoal.client.errors import ConnectionFailed, ServerError

END = object()


class Person:
    """Types lines; END is Ctrl-D."""

    def __init__(self, *lines):
        self._lines = list(lines)
        self.prompts = []

    def __call__(self, prompt):
        self.prompts.append(prompt)
        line = self._lines.pop(0) if self._lines else END
        if line is END:
            raise EOFError
        return line


class Server:
    """Answers from a list; an exception there is raised."""

    place = "here"

    def __init__(self, *answers):
        self._answers = list(answers)
        self.asked = []

    def ask(self, question):
        self.asked.append((question.text, question.question))
        answer = self._answers.pop(0) if self._answers else "yes"
        if isinstance(answer, Exception):
            raise answer
        return Answer(answer), 1.0

    def close(self):
        pass


class Shown:
    def __init__(self):
        self.answers, self.problems = [], []

    def answer(self, question, answer, latency_ms):
        self.answers.append(answer.text)

    def problem(self, sentence):
        self.problems.append(sentence)


def talk(reader, server=None, **settings):
    server, shown = server or Server(), Shown()
    conversation = Conversation(server, reader, shown, **settings)
    conversation.run()
    return server.asked, shown, conversation.failed


def typed(*lines):
    return TerminalReader(Person(*lines), Screen())


def test_a_text_of_several_lines_then_questions_about_it():
    asked, shown, failed = talk(typed("one", "two", "", "Q1", "", "Q2", "quit"))
    assert asked == [("one\ntwo", "Q1"), ("one\ntwo", "Q2")]
    assert shown.answers == ["yes", "yes"]
    assert not failed


def test_ctrl_d_ends_a_text_and_at_once_the_dialogue():
    asked, _, _ = talk(typed("one", END, "Q1", END))
    assert asked == [("one", "Q1")]


@pytest.mark.parametrize("word", ["quit", "exit", " Quit "])
@pytest.mark.parametrize("before", [(), ("text", "")])
def test_words_that_leave(before, word):
    asked, shown, _ = talk(typed(*before, word, "never"))
    assert asked == []
    assert shown.problems == []


def test_a_new_text_replaces_the_old_one():
    asked, _, _ = talk(typed("one", "", "Q1", "two", "", "Q2"))
    assert asked == [("one", "Q1"), ("two", "Q2")]


def test_without_text_or_question_it_says_so():
    asked, shown, _ = talk(typed("", "one", "", "", "", "Q1"))
    assert asked == [("one", "Q1")]
    assert shown.problems == [
        "there is no text yet; type one, then an empty line",
        "the question is empty; type one, or 'quit'",
    ]


def test_prompts_and_their_colours():
    person = Person("one", "two", "", "Q1")
    talk(TerminalReader(person, Screen()))
    assert person.prompts == [
        "text> ",
        "....> ",
        "....> ",
        "question> ",
        "text (empty: the same)> ",
    ]
    coloured = Person("one")
    talk(TerminalReader(coloured, Screen(80, colours=True)))
    # The line editor is told what takes no room.
    assert coloured.prompts[0] == "\x01\x1b[1;36m\x02text> \x01\x1b[0m\x02"


def test_a_fixed_text_is_not_asked_for():
    asked, _, _ = talk(typed("Q1", "Q2", "exit"), text="given", fixed=True)
    assert asked == [("given", "Q1"), ("given", "Q2")]


@pytest.mark.parametrize("ends", ["", "\n", "\n\n", "\nquit\n"])
def test_a_stream_holds_the_same_without_prompts(ends):
    stream = io.StringIO(f"\none\r\ntwo\n\nQ1\n\nQ2\nthree\n\n\nQ3{ends}")
    asked, _, _ = talk(StreamReader(stream))
    assert asked == [("one\ntwo", "Q1"), ("one\ntwo", "Q2"), ("three", "Q3")]


def test_a_stream_of_questions():
    stream = io.StringIO("Q1\n\n Q2 \nexit\nQ3\n")
    asked, _, _ = talk(StreamReader(stream), text="given", fixed=True)
    assert asked == [("given", "Q1"), ("given", "Q2")]


def test_a_text_without_a_question_asks_nothing():
    assert talk(StreamReader(io.StringIO("one\ntwo")))[0] == []


def test_given_questions():
    asked, _, _ = talk(GivenReader(["Q1", "Q2"]), text="given", fixed=True)
    assert asked == [("given", "Q1"), ("given", "Q2")]


def test_what_the_server_refuses_is_said_and_the_dialogue_goes_on():
    server = Server(ServerError("the text is too long"), "blue")
    _, shown, failed = talk(GivenReader(["Q1", "Q2"]), server, text="given", fixed=True)
    assert shown.problems == ["the text is too long"]
    assert shown.answers == ["blue"]
    assert failed == 1


def test_a_lost_server_ends_what_nobody_watches():
    server = Server(ConnectionFailed("gone"))
    asked, shown, failed = talk(GivenReader(["Q1", "Q2"]), server, text="given", fixed=True)
    assert len(asked) == 1
    assert shown.problems == ["gone"]
    assert failed == 1


def test_a_person_may_start_it_again_and_the_text_is_kept():
    server = Server(ConnectionFailed("gone"), "blue")
    asked, shown, _ = talk(typed("one", "", "Q1", "", "Q1"), server, interactive=True)
    assert asked == [("one", "Q1"), ("one", "Q1")]
    assert shown.problems == ["gone; your text is kept: ask again when the server is running"]
    assert shown.answers == ["blue"]
