"""Parses a command line into `Options`, by the table of options.

    ["models", "--http-port", "9000", "--log-info=false"]  -->  Options(...)

Every option accepts `--name=value` and `--name value`. An error is one sentence: what was found and
what is accepted.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shoal.config.options import BY_FLAG, TABLE, NamedSetting, Option, OptionError, Options

_BOOLEANS = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


def parse(words: Sequence[str], *, paths: bool = True) -> Options:
    """The options in `words`. Words that belong to no option are repositories; without `paths`
    they are an error. Raises OptionError."""
    given: dict[str, list[Any]] = {}
    repositories: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word == "--":
            repositories.extend(words[position:])
            break
        if not word.startswith("-") or word == "-":
            repositories.append(word)
            continue
        flag, equals, text = word.partition("=")
        option = BY_FLAG.get(flag)
        if option is None:
            raise OptionError(f"unknown option {flag}; {_advice(flag)}")
        if not equals:
            following = words[position] if position < len(words) else None
            taken = _value_of(option, following)
            if taken:
                position += 1
            text = taken or "true"
        given.setdefault(option.attribute, []).append(convert(option, flag, text))
    if repositories and not paths:
        raise OptionError(
            f"unexpected argument '{repositories[0]}'; "
            f"a repository is given as --model-repository={repositories[0]}"
        )
    if repositories:
        option = BY_FLAG["--model-repository"]
        found = [convert(option, "the repository's PATH", path) for path in repositories]
        given[option.attribute] = [*given.get(option.attribute, ()), *found]
    return Options(**_merged(given), given=frozenset(given))


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


def suggest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant: one with this prefix, or with a similar spelling."""
    words = list(known)
    longer = [candidate for candidate in words if len(word) > 3 and candidate.startswith(word)]
    close = longer or difflib.get_close_matches(word, words, n=1)
    return close[0] if close else None


def _advice(flag: str) -> str:
    bare_name = flag.lstrip("-").lower().replace("_", "-")
    near = suggest(f"--{bare_name}", BY_FLAG)
    return f"did you mean {near}?" if near else "--help lists all of them"


def _value_of(option: Option, following: str | None) -> str | None:
    """The following word if it is the option's value. None means 'true' for a boolean."""
    if following is None or following.startswith("--"):
        if option.type == "bool":
            return None
        raise OptionError(
            f"{option.flag} needs a value ({accepted(option)}), written as {option.flag}=..."
        )
    if option.bare and following.lower() not in _BOOLEANS:
        return None  # a switch: the next word is a path
    if option.type == "bool":
        convert(option, option.flag, following)
    return following


def _merged(given: dict[str, list[Any]]) -> dict[str, Any]:
    """One value per option: all of them if it is repeatable, else the last."""
    repeatable = {option.attribute for option in TABLE if option.repeatable}
    return {
        name: tuple(dict.fromkeys(values)) if name in repeatable else values[-1]
        for name, values in given.items()
    }


def _read_boolean(_option: Option, text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError
    return _BOOLEANS[text.lower()]


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
