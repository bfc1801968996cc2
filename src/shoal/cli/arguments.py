"""Parses a command line into `Options`, by the table of options.

    ["models", "--http-port", "9000", "--log-info=false"]  -->  Options(...)

Every option accepts `--name=value` and `--name value`. An error is one sentence: what was found and
what is accepted.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal.config.options import BY_FLAG, TABLE, Option, OptionError, Options
from shoal.config.options.values import BOOLEANS, accepted, convert


def parse(
    words: Sequence[str], *, paths: bool = True, defaults: Mapping[str, Any] | None = None
) -> Options:
    """The options in `words`. Words that belong to no option are repositories; without `paths`
    they are an error. `defaults` are values of options that `words` do not set. Raises
    OptionError."""
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
    return Options(**{**(defaults or {}), **_merged(given)}, given=frozenset(given))


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
    if option.bare and following.lower() not in BOOLEANS:
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
