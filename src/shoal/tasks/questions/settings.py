"""The settings of question answering in task.json."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tokenizers import Tokenizer

from shoal.tasks.questions.reader import ReaderTensors
from shoal.tasks.questions.spans import Calibration
from shoal.tasks.questions.windows import Frame, frame_of
from shoal.tasks.settings import TaskSettings

_USUAL_LENGTH = 384
_LONGEST = 1 << 20  # of a window; models have lower limits
_SHORTEST_PIECE = 16  # of the text, beside a question, in a window
_SHORTEST_QUESTION = 8
HIGHEST_TOP = 20


@dataclass(frozen=True, slots=True)
class QuestionSettings:
    """How texts are divided, and what counts as an answer. Lengths are in tokens."""

    frame: Frame
    max_length: int  # of a window: question, text and special tokens
    stride: int  # how many tokens neighbouring windows share
    longest_question: int
    max_answer_length: int
    windows_per_request: int
    max_characters: int  # of a text
    max_questions: int  # in one call
    top: int
    unknown: str  # the answer if the text contains none
    threshold: float  # the score below which that is the answer; 0: never
    calibration: Calibration | None

    @classmethod
    def of(
        cls, settings: TaskSettings, tokenizer: Tokenizer, tensors: ReaderTensors
    ) -> QuestionSettings:
        """Read and check them. Raises ConfigError."""
        try:
            frame = frame_of(tokenizer)
        except Exception as error:  # noqa: BLE001 - the library raises plain exceptions
            settings.wrong("tokenizer", str(error), "Use the tokenizer the model was trained with")
        if not frame.before:
            settings.wrong(
                "tokenizer",
                "it puts no token before a question, which the model needs for 'no answer'",
                "Use the tokenizer the model was trained with",
            )
        width = tensors.width
        max_length = settings.integer(
            "max_length", width or _USUAL_LENGTH, lowest=1, highest=width or _LONGEST
        )
        stride = settings.integer("stride", max_length // 3, lowest=0, highest=max_length)
        longest_question = max_length - frame.size - max(2 * stride, _SHORTEST_PIECE)
        if longest_question < _SHORTEST_QUESTION:
            settings.wrong(
                "max_length",
                f"windows of {max_length} tokens, of which neighbours share {stride}, have no room "
                "for a question",
                "Write a larger max_length or a smaller stride",
            )
        rows = tensors.most_rows
        return cls(
            frame,
            max_length,
            stride,
            longest_question,
            settings.integer("max_answer_length", 30, lowest=1, highest=max_length),
            min(rows, settings.integer("windows_per_request", 8, lowest=1, highest=1 << 16)),
            settings.integer("max_characters", 200_000, lowest=1, highest=1 << 30),
            settings.integer("max_questions", 32, lowest=1, highest=1 << 16),
            settings.integer("top", 1, lowest=1, highest=HIGHEST_TOP),
            _unknown(settings),
            _threshold(settings),
            _calibration(settings),
        )


def _unknown(settings: TaskSettings) -> str:
    unknown = settings.text("unknown", "Unknown")
    if not unknown.strip():
        settings.wrong("unknown", "it is empty", 'Write an answer, such as "Unknown"')
    return unknown


def _threshold(settings: TaskSettings) -> float:
    if settings.value("threshold") is None:
        return 0.0
    return settings.number("threshold", 0.0, lowest=0, highest=1)


def _calibration(settings: TaskSettings) -> Calibration | None:
    value = settings.value("calibration")
    if value is None:
        return None
    names = [field.name for field in fields(Calibration)]
    if (
        type(value) is not dict
        or sorted(value) != sorted(names)
        or any(type(number) not in (int, float) for number in value.values())
    ):
        settings.wrong(
            "calibration",
            f"found {value!r}",
            f"Write an object with the numbers {', '.join(names)}, or leave it out",
        )
    return Calibration(**{name: float(value[name]) for name in names})
