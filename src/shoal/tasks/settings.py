"""task.json: the settings of a model's task, in its folder next to config.pbtxt.

The errors of every reader name the file, the field and the fix. A setting that no reader has read
is unknown: `check_all_read` reports it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import orjson

from shoal.errors import ConfigError

FILE = "task.json"


class TaskSettings:
    """The settings of one model. Readers raise ConfigError."""

    def __init__(self, values: Mapping[str, Any], folder: Path) -> None:
        self._values = values
        self._folder = folder
        self._read: set[str] = set()

    @classmethod
    def of(cls, folder: Path) -> TaskSettings:
        """The settings in the model's folder; none if it has no task.json."""
        path = folder / FILE
        try:
            values = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            return cls({}, folder)
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot be read: {error}", file=FILE) from None
        if type(values) is not dict:
            raise ConfigError("must contain a JSON object", file=FILE, fix='Write {"top": 5}')
        return cls(values, folder)

    def value(self, name: str, default: Any = None) -> Any:
        """A setting without checks."""
        self._read.add(name)
        return self._values.get(name, default)

    def text(self, name: str, default: str = "") -> str:
        """A text."""
        value = self.value(name, default)
        if type(value) is not str:
            self.wrong(name, f"found {value!r}", "Write a text in quotes")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.value(name, default)
        if type(value) is not bool:
            self.wrong(name, f"found {value!r}", "Write true or false")
        return value

    def integer(self, name: str, default: int, *, lowest: int, highest: int) -> int:
        """A whole number within bounds."""
        value = self.value(name, default)
        if type(value) is not int or not lowest <= value <= highest:
            self.wrong(name, f"found {value!r}", f"Write a whole number from {lowest} to {highest}")
        return value

    def number(self, name: str, default: float, *, lowest: float, highest: float) -> float:
        """A number within bounds."""
        value = self.value(name, default)
        if type(value) not in (int, float) or not lowest <= value <= highest:
            self.wrong(name, f"found {value!r}", f"Write a number from {lowest:g} to {highest:g}")
        return float(value)

    def numbers(self, name: str, default: Sequence[float], *, count: int) -> tuple[float, ...]:
        """A list of `count` numbers; a single number is used for all."""
        value = self.value(name, list(default))
        if type(value) in (int, float):
            return (float(value),) * count
        if (
            type(value) is not list
            or len(value) != count
            or any(type(number) not in (int, float) for number in value)
        ):
            self.wrong(name, f"found {value!r}", f"Write {count} numbers, or one for all of them")
        return tuple(float(number) for number in value)

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        """One of some words."""
        value = self.value(name, default)
        if value not in choices:
            self.wrong(name, f"found {value!r}", f"Write one of {', '.join(choices)}")
        return str(value)

    def file(self, name: str, default: str) -> Path:
        """The path of a file in the model's folder, which must exist."""
        value = self.text(name, default)
        base = self._folder.resolve()
        path = (base / value).resolve()
        if not path.is_relative_to(base):
            self.wrong(name, f"'{value}' is outside the model's folder", "Copy the file into it")
        if not path.is_file():
            self.wrong(name, f"there is no file '{value}'", "Put it into the model's folder")
        return path

    def wrong(self, name: str, message: str, fix: str) -> NoReturn:
        """Raise the error for a setting."""
        raise ConfigError(message, file=FILE, field=name, fix=fix)

    def check_all_read(self) -> None:
        """Raise ConfigError for an unknown setting."""
        for name in self._values:
            if name not in self._read:
                near = difflib.get_close_matches(name, self._read, 1)
                known = ", ".join(sorted(self._read))
                fix = f"Did you mean '{near[0]}'?" if near else f"Known settings: {known}"
                self.wrong(name, "no such setting for this task", fix)
