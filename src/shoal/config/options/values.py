"""The text of an option's value, read and checked by the option's row in the table.

"8000" --convert--> 8000, or OptionError: --http-port takes a whole number from 0 to 65535
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from shoal.config.options.option import NamedSetting, Option, OptionError

BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


def convert(option: Option, flag: str, text: str) -> Any:
    """The value of `text` for `option`; `flag` is the name that the user typed."""
    lowered = text.lower()
    try:
        if not text and not option.empty:
            raise ValueError
        if lowered in option.words:
            return option.words[lowered]
        if option.choices:
            return next(choice for choice in option.choices if choice.lower() == lowered)
        return _READERS[option.type](option, text)
    except (ValueError, StopIteration):
        found = f"found '{text}'" if text else "found nothing"
        raise OptionError(f"{flag} takes {accepted(option)}; {found}") from None


def accepted(option: Option) -> str:
    """The accepted values, as text that follows 'takes'."""
    if option.choices:
        return _listed(option.choices)
    if option.type == "bool":
        return "true or false (or 1 or 0)"
    if option.type in {"int", "float"}:
        kind = "a whole number" if option.type == "int" else "a number"
        low, high = option.limits or (None, None)
        if high is not None:
            return f"{kind} from {low} to {high}"
        return f"{kind} of at least {low}" if low is not None else kind
    return option.form or "a text"


def _read_boolean(_option: Option, text: str) -> bool:
    if text.lower() not in BOOLEANS:
        raise ValueError
    return BOOLEANS[text.lower()]


def _read_integer(option: Option, text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text):  # int() also accepts 1_000 and non-ASCII digits
        raise ValueError
    return int(_within(option, int(text)))


def _read_number(option: Option, text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return _within(option, number)


def _within(option: Option, number: float) -> float:
    low, high = option.limits or (None, None)
    if (low is not None and number < low) or (high is not None and number > high):
        raise ValueError
    return number


def _read_text(option: Option, text: str) -> str:
    if option.pattern and not re.fullmatch(option.pattern, text):
        raise ValueError
    return text


def _read_setting(option: Option, text: str) -> NamedSetting:
    match = re.fullmatch(option.pattern, text)
    if match is None:
        raise ValueError
    groups = match.groupdict()
    return NamedSetting(groups.get("name") or "", groups["key"], groups["value"])


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


_READERS: dict[str, Callable[[Option, str], Any]] = {
    "bool": _read_boolean,
    "int": _read_integer,
    "float": _read_number,
    "str": _read_text,
    "tuple[str, ...]": _read_text,
    "tuple[NamedSetting, ...]": _read_setting,
}
