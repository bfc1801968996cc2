"""One parameter of config.pbtxt: its row in `parameter_table`, and the types of values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal.config.backends import declared_backend
from shoal.config.model import ModelConfig

ANY = "…"  # at the end of a name: all parameters that begin so
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True)
class ValueType:
    """The values a parameter takes: what an error recommends, and how a text is read."""

    expected: str  # completes "Write …"
    parse: Callable[[str], Any]  # raises ValueError


@dataclass(frozen=True, slots=True)
class Parameter:
    """One row of the table."""

    name: str
    type: ValueType
    help: str
    default: str = ""  # for the documentation
    backends: tuple[str, ...] = ()  # the backends that read it; none: it is for all models
    ignored_by: tuple[str, ...] = ()  # backends whose models may use the name themselves
    schedulers: tuple[str, ...] = ()  # "default", "dynamic", "sequence"; none: all of them
    aliases: tuple[str, ...] = ()
    in_config: bool = True  # false: only the operator may set it, with --backend-config
    in_settings: bool = True  # whether --backend-config may set it; only where it has backends
    wrong: str = "found '{text}'"  # the message about a value that cannot be

    def concerns(self, config: ModelConfig) -> bool:
        """Whether the parameter has this meaning in `config`."""
        backend = declared_backend(config)
        return (
            self.in_config
            and (not self.backends or backend in self.backends)
            and backend not in self.ignored_by
            and (not self.schedulers or _scheduler(config) in self.schedulers)
        )


def _whole(text: str, minimum: int = 0) -> int:
    if not text.isdecimal() or int(text) < minimum:
        raise ValueError(text)
    return int(text)


def _flag(text: str) -> bool:
    try:
        return _FLAGS[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise ValueError(text)
    return seconds


def one_of(*choices: str) -> ValueType:
    """One of these words, in any case of letters."""

    def parse(text: str) -> str:
        for choice in choices:
            if choice.lower() == text.lower():
                return choice
        raise ValueError(text)

    return ValueType(f"{', '.join(choices[:-1])} or {choices[-1]}", parse)


def numbered(**words: str) -> ValueType:
    """A number that stands for a word."""
    by_number = {number.removeprefix("_"): word for number, word in words.items()}

    def parse(text: str) -> str:
        if text not in by_number:
            raise ValueError(text)
        return by_number[text]

    listed = ", ".join(f"{number} ({word})" for number, word in by_number.items())
    return ValueType(f"one of {listed}", parse)


TEXT = ValueType("a text", str)
FLAG = ValueType("true or false", _flag)
COUNT = ValueType("a whole number, 0 for the default", _whole)
POSITIVE = ValueType("a whole number, at least 1", lambda text: _whole(text, 1))
NUMBER = ValueType("a number", float)
LIMIT = ValueType("a whole number, 0 for no limit", _whole)
SIZE = ValueType("a whole number", int)
MILLISECONDS = ValueType("a whole number of milliseconds", _whole)
TIME_LIMIT = ValueType("a whole number of milliseconds, at least 1", lambda text: _whole(text, 1))
WHOLE = ValueType("a whole number, 0 or more", _whole)
SECONDS = ValueType("a number of seconds greater than 0", _seconds)
FILE = ValueType("the name of a file", str)
TENSOR = ValueType("the name of a tensor", str)


def _scheduler(config: ModelConfig) -> str:
    if config.sequence_batching is not None:
        return "sequence"
    return "default" if config.dynamic_batching is None else "dynamic"
