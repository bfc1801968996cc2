"""Compare the output of a command with the output that a page shows.

exact     the same but for white space; an ellipsis stands for anything
numbers   as exact, and any number will do where a number stands
words     the words of the page occur in the answer, in that order
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORD = re.compile(r"[^\W\d_]{2,}")
_ELLIPSIS = re.compile(r" ?(?:…|\.\.\.) ?")


def same(shown: str, answer: str, mode: str = "") -> bool:
    """Return whether `answer` matches `shown`."""
    if mode == "words":
        return _in_order(_WORD.findall(shown), _WORD.findall(answer))
    shown_json, answer_json = _json(shown), _json(answer)
    if shown_json is not None and answer_json is not None:
        return _same_json(shown_json, answer_json, mode)
    parts = [_pattern(part, mode) for part in _ELLIPSIS.split(" ".join(shown.split()))]
    return re.fullmatch(".*".join(parts), " ".join(answer.split()), re.DOTALL) is not None


def _pattern(text: str, mode: str) -> str:
    if mode != "numbers":
        return re.escape(text)
    number = _NUMBER.pattern
    return number.join(re.escape(part) for part in _NUMBER.split(text))


def _in_order(wanted: list[str], there: list[str]) -> bool:
    rest = iter(there)
    return all(word in rest for word in wanted)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _same_json(shown: Any, answer: Any, mode: str) -> bool:
    if isinstance(shown, str) and shown in {"…", "..."}:
        return True
    if isinstance(shown, dict) and isinstance(answer, dict):
        return shown.keys() == answer.keys() and all(
            _same_json(shown[key], answer[key], mode) for key in shown
        )
    if isinstance(shown, list) and isinstance(answer, list):
        if shown and shown[-1] in ("…", "..."):
            shown, answer = shown[:-1], answer[: len(shown) - 1]
        return len(shown) == len(answer) and all(
            _same_json(a, b, mode) for a, b in zip(shown, answer, strict=True)
        )
    if _is_number(shown) and _is_number(answer):
        return mode == "numbers" or math.isclose(shown, answer, rel_tol=1e-3, abs_tol=1e-9)
    if isinstance(shown, str) and isinstance(answer, str) and shown != answer:
        return same(shown, answer, mode) if _json(shown) is None else False
    return bool(shown == answer)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
