"""Calibrate when a question-answering model responds "Unknown", and write it into task.json.

    python tools/calibrate_unknown.py [--model FOLDER] [--write]

A model that was not trained to refuse returns an answer to every question. How far its logits are
above those of [CLS], and how full the window is, separate good answers from bad ones. This script
runs the questions of tests/tasks/data/questions.json, half of which their texts do not answer, on
texts from one sentence to several windows; fits a logistic regression to two thirds of the
passages; chooses the threshold; and reports the results on the other third.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import string
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

from shoal.tasks.questions import spans, windows
from shoal.tasks.questions.spans import Calibration
from shoal.tasks.settings import TaskSettings
from shoal.tasks.tokenizer import pad_token_of, read_tokenizer

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "tasks" / "data" / "questions.json"
MODEL = ROOT / "demo" / "shoal_demo" / "models" / "questions"
SENTENCE = 0
SIZES = (SENTENCE, 1, 2, 3, 5)  # passages in a text
ANSWERABLE, NEAR, FAR = "answered", "near", "far"
HELD_OUT = 3  # every third passage
MAX_REFUSED = 0.03  # of the questions that the text answers
SEED = 7

Passage = dict[str, Any]


class Case(NamedTuple):
    """A question about a text. `near` questions are about its subject, `far` ones about another."""

    kind: str
    size: int
    question: str
    text: str
    answer: str = ""


class Result(NamedTuple):
    """The model's answer to a case."""

    case: Case
    answer: str
    margin: float
    fill: float


# ---- cases


def cases(passages: Sequence[Passage]) -> Iterator[Case]:
    """Every question of some passages, in texts of all sizes made of them."""
    chance = random.Random(SEED)  # noqa: S311 - the same cases every time
    for passage in passages:
        others = [other for other in passages if other is not passage]
        for (question, answer), unanswered in zip(
            passage["answerable"], passage["unanswerable"], strict=True
        ):
            for size in SIZES:
                chance.shuffle(others)
                if size == SENTENCE:
                    yield from _sentences(passage, others[0], question, answer)
                    continue
                chosen = [passage, *others[: size - 1]]
                chance.shuffle(chosen)
                text = "\n\n".join(one["text"] for one in chosen)
                foreign = "\n\n".join(one["text"] for one in others[-size:])
                yield Case(ANSWERABLE, size, question, text, answer)
                yield Case(NEAR, size, unanswered, text)
                yield Case(FAR, size, question, foreign)


def _sentences(passage: Passage, other: Passage, question: str, answer: str) -> Iterator[Case]:
    own = re.split(r"(?<=[.!?]) ", passage["text"])
    with_it = [one for one in own if answer.lower() in one.lower()]
    if len(with_it) == 1:  # else another sentence may answer it, too
        yield Case(ANSWERABLE, SENTENCE, question, with_it[0], answer)
        without = next(one for one in reversed(own) if one != with_it[0])
        yield Case(NEAR, SENTENCE, question, without)
        yield Case(FAR, SENTENCE, question, re.split(r"(?<=[.!?]) ", other["text"])[0])


# ---- answers


class Reader:
    """The model of a folder, without a server."""

    def __init__(self, folder: Path) -> None:
        settings = TaskSettings.of(folder)
        self._tokenizer = read_tokenizer(settings)
        self._tokenizer.encode_special_tokens = True
        self._frame = windows.frame_of(self._tokenizer)
        self._filler = pad_token_of(self._tokenizer)
        self._max_length = settings.value("max_length", 384)
        self._stride = settings.value("stride", 128)
        self._longest = settings.value("max_answer_length", 30)
        self._session = onnxruntime.InferenceSession(str(folder / "1" / "model.onnx"))

    def answer(self, case: Case) -> Result:
        """The span with the largest margin over all windows."""
        question, text = self._tokenizer.encode_batch(
            [case.question, case.text], add_special_tokens=False
        )
        cut = windows.arrange(
            self._frame,
            [question.ids],
            text.ids,
            max_length=self._max_length,
            overlap=self._stride,
        )
        rows = windows.stack(cut, pad=self._filler)
        starts, ends = self._session.run(["start_logits", "end_logits"], dict(rows))
        found = [
            spans.find(
                window, start, end, longest=self._longest, count=1, max_length=self._max_length
            )[0]
            for window, start, end in zip(cut, starts, ends, strict=True)
        ]
        best = max(found, key=lambda span: span.margin)
        begin, end = text.token_to_chars(best.first)[0], text.token_to_chars(best.last)[1]
        return Result(case, case.text[begin:end], best.margin, best.fill)


# ---- calibration and report


def fit(results: Sequence[Result], steps: int = 50) -> Calibration:
    """Logistic regression by Newton's method; both kinds of cases have the same weight."""
    inputs = np.array([[one.margin, one.fill, one.fill**2, 1.0] for one in results])
    scale = np.abs(inputs).max(axis=0)
    inputs = inputs / scale
    right = np.array([one.case.kind == ANSWERABLE for one in results], np.float64)
    weight = np.where(right == 1, 0.5 / right.sum(), 0.5 / (1 - right).sum())
    factors = np.zeros(4)
    for _ in range(steps):
        probability = 1 / (1 + np.exp(-inputs @ factors))
        slope = inputs.T @ (weight * (probability - right)) + 1e-4 * factors
        curve = (inputs.T * (weight * probability * (1 - probability))) @ inputs
        factors = factors - np.linalg.solve(curve + 1e-4 * np.eye(4), slope)
    return Calibration(*(round(float(factor), 4) for factor in factors / scale))


def threshold(results: Sequence[Result], calibration: Calibration) -> float:
    """The threshold that separates most cases and refuses few answerable questions."""
    scores = _scores(results, calibration)
    right = np.array([one.case.kind == ANSWERABLE for one in results])
    best = (0.0, 0.0)
    for limit in np.arange(0.01, 1.0, 0.01):
        kept, refused = (scores[right] >= limit).mean(), (scores[~right] < limit).mean()
        if kept >= 1 - MAX_REFUSED:
            best = max(best, (float(kept + refused), round(float(limit), 2)))
    return best[1]


def table(results: Sequence[Result], calibration: Calibration, limit: float) -> str:
    """The results as a Markdown table."""
    lines = [
        "| texts | questions | answered | of them right | near, refused | far, refused |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    names = {SENTENCE: "one sentence", 1: "one passage"}
    for size in (*SIZES, None):
        some = [one for one in results if size is None or one.case.size == size]
        scores = _scores(some, calibration)
        kinds = np.array([one.case.kind for one in some])
        good = np.array([_right(one) for one in some])
        answered = (kinds == ANSWERABLE) & (scores >= limit)
        name = "all" if size is None else names.get(size, f"{size} passages")
        lines.append(
            f"| {name} | {len(some)} | {answered.sum() / (kinds == ANSWERABLE).sum():.0%} "
            f"| {good[answered].mean():.0%} | {(scores[kinds == NEAR] < limit).mean():.0%} "
            f"| {(scores[kinds == FAR] < limit).mean():.0%} |"
        )
    scores = _scores(results, calibration)
    unanswered = np.array([one.case.kind != ANSWERABLE for one in results])
    unknown = scores < limit
    lines.append(
        f'\n"Unknown": precision {unanswered[unknown].mean():.2f}, '
        f"recall {unknown[unanswered].mean():.2f}, "
        f"area under the curve {_area(scores[~unanswered], scores[unanswered]):.3f}"
    )
    return "\n".join(lines)


def _scores(results: Sequence[Result], calibration: Calibration) -> np.ndarray:
    return np.array([calibration.probability(one.margin, one.fill) for one in results])


def _area(higher: np.ndarray, lower: np.ndarray) -> float:
    above = higher[:, None] > lower[None]
    level = higher[:, None] == lower[None]
    return float((above + 0.5 * level).mean())


def _right(one: Result) -> bool:
    """Whether at least half of the words are those of the answer (F1, as for SQuAD)."""
    found, wanted = _words(one.answer), _words(one.case.answer)
    common = len(found & wanted)
    return bool(common) and 2 * common / (len(found) + len(wanted)) >= 0.5


def _words(text: str) -> set[str]:
    plain = text.lower().translate(str.maketrans("", "", string.punctuation))
    return set(plain.split()) - {"a", "an", "the"}


def main() -> None:
    """Calibrate the model of a folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=MODEL, help="the model's folder")
    parser.add_argument("--write", action="store_true", help="change its task.json")
    arguments = parser.parse_args()
    passages = json.loads(DATA.read_text())
    reader = Reader(arguments.model)
    held_out = [one for number, one in enumerate(passages) if number % HELD_OUT == HELD_OUT - 1]
    learned = [one for one in passages if one not in held_out]
    seen = [reader.answer(case) for case in cases(learned)]
    calibration = fit(seen)
    limit = threshold(seen, calibration)
    unseen = [reader.answer(case) for case in cases(held_out)]
    print(f"{calibration}, threshold {limit}")
    print(f"\n{len(learned)} passages that it was fitted to:\n\n{table(seen, calibration, limit)}")
    print(f"\n{len(held_out)} others:\n\n{table(unseen, calibration, limit)}")
    if arguments.write:
        path = arguments.model / "task.json"
        settings = json.loads(path.read_text())
        factors = {name: getattr(calibration, name) for name in Calibration.__slots__}
        settings.update(threshold=limit, calibration=factors)
        path.write_text(json.dumps(settings, indent=2) + "\n")


if __name__ == "__main__":
    main()
