"""The questions: the built-in ones about a built-in text, or those of a file.

text.txt + questions.txt (one on each line)    or    pairs.jsonl: {"text": …, "question": …}
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from shoal.ask.question import Question
from shoal.errors import InvalidArgument

TEXT = (
    "The harbour of Ebbing lies where the river Sorrel meets the sea. Its stone pier was built in "
    "1874 by the engineer Ada Thornwell, after two winters of storms had carried the old wooden "
    "one away. Forty-six boats are moored there today, most of them for herring, which arrive in "
    "large shoals each August. The fish market opens at five in the morning and is over by seven. "
    "Visitors come for the lighthouse, whose lamp has been electric since 1911, and for the smoked "
    "herring of Quay Street. Every spring the town holds a regatta, and the winner keeps a silver "
    "oar for a year."
)
QUESTIONS = (
    "Who built the stone pier?",
    "When was the stone pier built?",
    "Where does the harbour of Ebbing lie?",
    "How many boats are moored there today?",
    "When do the herring arrive?",
    "At what time does the fish market open?",
    "Which river meets the sea at Ebbing?",
    "What does the winner of the regatta keep for a year?",
    "Since when has the lamp of the lighthouse been electric?",
    "What carried the old wooden pier away?",
    "What do visitors come for?",
    "What is the name of the mayor?",
)


def read(text_file: str = "", questions_file: str = "") -> list[Question]:
    """The questions of the files, or the built-in ones.

    Raises InvalidArgument for files that cannot be read or contain no questions.
    """
    if not questions_file:
        if text_file:
            raise InvalidArgument(
                "--text-file needs questions about that text: name a file with one on each line "
                "with --questions"
            )
        return [Question(TEXT, question) for question in QUESTIONS]
    text = _read(text_file, "--text-file").strip() if text_file else ""
    lines = [line for line in _read(questions_file, "--questions").splitlines() if line.strip()]
    if not lines:
        raise InvalidArgument(f"--questions: there is no question in '{questions_file}'")
    if lines[0].lstrip().startswith("{"):
        return [_pair(line, number, questions_file) for number, line in enumerate(lines, 1)]
    if not text:
        raise InvalidArgument(
            f"'{questions_file}' contains questions but no text; name it with --text-file, or "
            'write lines of JSON: {"text": "…", "question": "…"}'
        )
    return [Question(text, line.strip()) for line in lines]


def shuffled(questions: Sequence[Question], clients: int, seed: int) -> list[list[Question]]:
    """The questions of each client, in a random order per client."""
    chance = random.Random(seed)  # noqa: S311 - an order, no secret
    return [chance.sample(questions, len(questions)) for _ in range(clients)]


def _pair(line: str, number: int, path: str) -> Question:
    try:
        found = json.loads(line)
        text, question = found["text"], found["question"]
    except (ValueError, KeyError, TypeError):
        text = question = None
    if not isinstance(text, str) or not isinstance(question, str):
        raise InvalidArgument(
            f"--questions: line {number} of '{path}' does not have the form "
            '{"text": "…", "question": "…"}'
        )
    return Question(text, question)


def _read(path: str, flag: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not UTF-8" if isinstance(error, ValueError) else error.strerror
        raise InvalidArgument(f"{flag}: '{path}' cannot be read: {reason}") from None
