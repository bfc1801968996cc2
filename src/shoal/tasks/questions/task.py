"""The task `question-answering`: finds the words of a text that answer a question.

    text, question --threads: tokens, windows--> model, some windows at a time
                                             --threads: best span over all windows--> JSON

The windows of a call go to the model in few requests of many rows; those of other calls share
batches with them in the model's queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Encoding

from shoal.errors import Internal, InvalidArgument
from shoal.tasks.base import Task, TaskContext
from shoal.tasks.gather import gather_or_cancel
from shoal.tasks.questions import spans, windows
from shoal.tasks.questions.reader import ReaderTensors
from shoal.tasks.questions.settings import HIGHEST_TOP, QuestionSettings
from shoal.tasks.questions.spans import Span
from shoal.tasks.questions.windows import TextWindow
from shoal.tasks.request import TaskRequest
from shoal.tasks.tokenizer import pad_token_of, read_tokenizer

_REQUESTS_AHEAD = 2  # of one call in the model's queue, so that other calls get their share
_CALLS_AT_ONCE = 16  # tokenised in one run, and finished in one run
_SPARE_SPANS = 2  # of each window, as some overlap after they are extended to words
_DIGITS = 6
_MOST_BYTES = 4  # of a character in UTF-8


class _QuestionOptions(NamedTuple):
    """The text, questions and options of a call."""

    text: str
    questions: Sequence[str]
    top: int
    threshold: float


class _TokenWindows(NamedTuple):
    """A call's text and questions as tokens."""

    text: Encoding
    windows: Sequence[TextWindow]


class _Logits(NamedTuple):
    """The model's output, a row of logits for each window."""

    options: _QuestionOptions
    cut: _TokenWindows
    starts: Sequence[np.ndarray]
    ends: Sequence[np.ndarray]


class QuestionAnswering(Task):
    """Answers questions with words of a text."""

    name = "question-answering"
    operation = "answer"

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        self._tensors = ReaderTensors.of(context.signature)
        self._tokenizer = read_tokenizer(context.settings)
        self._tokenizer.encode_special_tokens = True  # "[SEP]" in a text is plain characters
        self._settings = QuestionSettings.of(context.settings, self._tokenizer, self._tensors)
        self._pad_token = pad_token_of(self._tokenizer)
        self._prepare = context.stage("preprocess", self._prepared, most=_CALLS_AT_ONCE)
        self._finish = context.stage("postprocess", self._finished, most=_CALLS_AT_ONCE)

    async def perform(self, request: TaskRequest) -> dict[str, Any]:
        """`answer`, `score`, `start` and `end`; or `answers`, one for each of `questions`.

        Raises InvalidArgument for a text or question that is missing, empty, of the wrong type or
        too long, and for numbers out of range.
        """
        options = self._options(request)
        cut = await self._prepare(options)
        starts, ends = await self._ask(cut.windows)
        answers = await self._finish(_Logits(options, cut, starts, ends))
        model = {
            "model_name": self.context.model_name,
            "model_version": str(self.context.model_version),
        }
        if not request.has("questions"):
            return {**model, **answers[0]}
        pairs = zip(options.questions, answers, strict=True)
        return {**model, "answers": [{"question": each, **answer} for each, answer in pairs]}

    # ---- the request

    def _options(self, request: TaskRequest) -> _QuestionOptions:
        settings = self._settings
        text = _text(request, settings.max_characters)
        if not text.strip():
            raise InvalidArgument("'text' is empty: send the text that contains the answer")
        return _QuestionOptions(
            text,
            self._questions(request),
            request.integer("top", settings.top, lowest=1, highest=HIGHEST_TOP),
            request.number("threshold", settings.threshold, lowest=0, highest=1),
        )

    def _questions(self, request: TaskRequest) -> Sequence[str]:
        longest = self._settings.max_characters
        if not request.has("questions"):
            questions: Any = [request.text("question", longest=longest)]
        elif request.has("question"):
            raise InvalidArgument("send either 'question', or 'questions' for several, not both")
        else:
            questions = request.values["questions"]
            most = self._settings.max_questions
            if type(questions) is not list or not all(type(each) is str for each in questions):
                raise InvalidArgument("'questions' must be a list of texts")
            if not 1 <= len(questions) <= most:
                raise InvalidArgument(
                    f"'questions' must have from 1 to {most} elements, not {len(questions)}"
                )
        for question in questions:
            if not question.strip():
                raise InvalidArgument("the question is empty")
            if len(question) > longest:
                raise InvalidArgument(
                    f"a question has {len(question):,} characters, at most {longest:,} are allowed"
                )
        return list(questions)

    # ---- before the model, on threads

    def _prepared(self, calls: Sequence[_QuestionOptions]) -> list[_TokenWindows | Exception]:
        valid = [_is_valid(each) for each in calls]
        texts = [
            text
            for each, fit in zip(calls, valid, strict=True)
            if fit
            for text in (each.text, *each.questions)
        ]
        # Not `encode`, which holds the GIL.
        encoded = iter(self._tokenizer.encode_batch(texts, add_special_tokens=False))
        prepared: list[_TokenWindows | Exception] = []
        for each, fit in zip(calls, valid, strict=True):
            if not fit:
                prepared.append(InvalidArgument("the text has half a surrogate pair: remove it"))
                continue
            text = next(encoded)
            questions = [next(encoded).ids for _ in each.questions]
            try:
                prepared.append(_TokenWindows(text, self._windows(text.ids, questions)))
            except InvalidArgument as error:
                prepared.append(error)
        return prepared

    def _windows(self, text: Sequence[int], questions: Sequence[Sequence[int]]) -> list[TextWindow]:
        if not text:
            raise InvalidArgument("'text' has no character in the model's vocabulary")
        settings = self._settings
        for question in questions:
            if not question:
                raise InvalidArgument("the question has no character in the model's vocabulary")
            if len(question) > settings.longest_question:
                raise InvalidArgument(
                    f"the question has {len(question)} tokens (words and parts of words), at most "
                    f"{settings.longest_question} are allowed; use fewer words"
                )
        return windows.arrange(
            settings.frame,
            questions,
            text,
            max_length=settings.max_length,
            overlap=settings.stride,
        )

    # ---- the model

    async def _ask(
        self, cut: Sequence[TextWindow]
    ) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
        tensors, settings = self._tensors, self._settings
        groups = windows.group(cut, settings.windows_per_request, mixed=tensors.masked)
        slots = asyncio.Semaphore(_REQUESTS_AHEAD)

        async def ask(group: Sequence[TextWindow]) -> tuple[np.ndarray, np.ndarray]:
            async with slots:
                rows = windows.stack(group, pad=self._pad_token, length=tensors.width or None)
                found = await self.context.infer(tensors.arrays(rows), tensors.outputs)
            return tensors.logits(found, len(group), max(map(len, group)))

        found = await gather_or_cancel(ask(group) for group in groups)
        starts = [row for start, _ in found for row in start]
        ends = [row for _, end in found for row in end]
        return starts, ends

    # ---- after the model, on threads

    def _finished(self, calls: Sequence[_Logits]) -> list[list[dict[str, Any]] | Exception]:
        finished: list[list[dict[str, Any]] | Exception] = []
        for call in calls:
            try:
                finished.append(self._answers(call))
            except Exception as error:  # noqa: BLE001 - fails only its own call
                finished.append(error)
        return finished

    def _answers(self, read: _Logits) -> list[dict[str, Any]]:
        """The answer to each question."""
        settings, options = self._settings, read.options
        found: list[list[Span]] = [[] for _ in options.questions]
        for window, start, end in zip(read.cut.windows, read.starts, read.ends, strict=True):
            found[window.question] += spans.find(
                window,
                start,
                end,
                longest=settings.max_answer_length,
                count=options.top if options.top == 1 else options.top + _SPARE_SPANS,
                max_length=settings.max_length,
                calibration=settings.calibration,
            )
        return [self._answer(each, read) for each in found]

    def _answer(self, found: Sequence[Span], read: _Logits) -> dict[str, Any]:
        text, options = read.options.text, read.options
        offsets = [_offsets(span, read.cut.text, text) for span in found]
        kept = spans.best(found, offsets, text, options.top)
        if not kept:
            raise Internal("the model returned no finite numbers for this text and question")
        best, *others = (
            {
                "answer": text[slice(*offsets[number])],
                "score": round(found[number].score, _DIGITS),
                "start": offsets[number][0],
                "end": offsets[number][1],
            }
            for number in kept
        )
        answer: dict[str, Any] = best
        if found[kept[0]].score < options.threshold:
            score = round(1 - found[kept[0]].score, _DIGITS)
            unknown = self._settings.unknown
            answer = {"answer": unknown, "score": score, "start": None, "end": None, "best": best}
        return {**answer, "alternatives": others} if options.top > 1 else answer


def _text(request: TaskRequest, longest: int) -> str:
    """The text, as a value or as a file of that name."""
    sent = next((file for file in request.files if file.field == "text"), None)
    if sent is None or request.has("text"):
        return request.text("text", longest=longest)
    if len(sent.data) > longest * _MOST_BYTES:
        raise InvalidArgument(f"the file 'text' has more than {longest:,} characters")
    try:
        return TaskRequest((), {"text": str(sent.data, "utf-8")}).text("text", longest=longest)
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"the file 'text' is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from None


def _is_valid(call: _QuestionOptions) -> bool:
    """Whether all texts are valid Unicode; JSON can contain half a surrogate pair."""
    try:
        for text in (call.text, *call.questions):
            text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _offsets(span: Span, encoding: Encoding, text: str) -> tuple[int, int]:
    """The begin and end of a span in characters: whole words, with all their accents."""
    begin, _ = _word(encoding, span.first)
    _, end = _word(encoding, span.last)
    return begin, spans.whole_characters(text, end)


def _word(encoding: Encoding, token: int) -> tuple[int, int]:
    word = encoding.token_to_word(token)
    offsets = None if word is None else encoding.word_to_chars(word)
    if offsets is None:  # a tokenizer without words
        offsets = encoding.token_to_chars(token)
    begin, end = offsets or (0, 0)
    return int(begin), int(end)
