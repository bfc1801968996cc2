"""The trace settings that clients may change: for all models, and for single ones.

    command line  <--  all models  <--  one model        each falls back to the one before

Each of these is a scope with its own sampling: a change makes a new scope, and requests that were
sampled before stay with the old one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.config.options.trace import MOST_COUNT, MOST_RATE
from shoal.errors import InvalidArgument, Unsupported
from shoal.statistics.trace import TraceLevel

# The changes of a client: the texts of a value, or None to reset it.
Changes = Mapping[str, Sequence[str] | None]

_FILE_REFUSED = "trace file location can not be updated through network protocol"
_LEVELS: Mapping[str, TraceLevel] = {
    "TIMESTAMPS": TraceLevel.TIMESTAMPS,
    "TENSORS": TraceLevel.TENSORS,
    **dict.fromkeys(("MIN", "MAX"), TraceLevel.TIMESTAMPS),  # the words of older releases
}


@dataclass(frozen=True, slots=True)
class TraceSetting:
    """A value for each setting."""

    level: TraceLevel = TraceLevel.OFF
    rate: int = 1000  # one request in `rate` is traced
    count: int = -1  # how many more; -1: no limit
    log_frequency: int = 0


def read_changes(changes: Changes) -> dict[str, TraceLevel | int | None]:
    """The changes by field of TraceSetting; None clears it.

    Raises Unsupported for the file, InvalidArgument for unknown settings and invalid values.
    """
    if "trace_file" in changes:
        raise Unsupported(_FILE_REFUSED)
    read: dict[str, TraceLevel | int | None] = {}
    for name, texts in changes.items():
        if name not in _READERS:
            raise InvalidArgument(
                f"there is no trace setting '{name}' that can be changed; these can: "
                f"{', '.join(_READERS)}"
            )
        field, reader = _READERS[name]
        read[field] = None if texts is None else reader(name, texts)
    return read


class TraceScope:
    """A setting in force, and its count of requests."""

    def __init__(self, setting: TraceSetting, specified: frozenset[str] = frozenset()) -> None:
        """`specified` are the fields that this scope sets itself."""
        self._setting = setting
        self._lock = threading.Lock()  # guards everything below
        self._left = setting.count
        self._seen = 0
        self._unfinished = 0
        self.level = setting.level
        self.specified = specified

    @property
    def setting(self) -> TraceSetting:
        """The current values: `count` is the remaining number."""
        return replace(self._setting, count=self._left)

    @property
    def exhausted(self) -> bool:
        """Whether no request is sampled any more unless its caller records it."""
        return self.level is TraceLevel.OFF or not self._setting.rate or not self._left

    def changed(
        self, fallback: TraceScope, changes: Mapping[str, TraceLevel | int | None]
    ) -> TraceScope:
        """This scope with `changes`. Fields that it does not set come from `fallback`."""
        own = self.setting
        own_fields: dict[str, Any] = {field: getattr(own, field) for field in self.specified} | {
            **changes
        }
        own_fields = {field: value for field, value in own_fields.items() if value is not None}
        return TraceScope(replace(fallback.setting, **own_fields), frozenset(own_fields))

    def sample(self, *, insists: bool) -> bool:
        """Whether to trace a request; `insists` if its caller records it, in any case."""
        if self.level is TraceLevel.OFF:
            return False
        rate = self._setting.rate
        hit = False
        with self._lock:
            if rate and self._left:
                self._seen += 1
                hit = self._seen % rate == 0
                if hit and self._left > 0:
                    self._left -= 1
            if hit or insists:
                self._unfinished += 1
                return True
        return False

    def finished(self) -> bool:
        """A sampled request is complete. True when it was the last of a limited number."""
        with self._lock:
            self._unfinished -= 1
            return not self._left and not self._unfinished


def _level(_name: str, texts: Sequence[str]) -> TraceLevel:
    if "OFF" in texts:
        if len(texts) > 1:
            raise InvalidArgument("Expect only one trace level 'OFF' is specified")
        return TraceLevel.OFF
    level = TraceLevel.OFF
    for text in texts:
        if text not in _LEVELS:
            raise InvalidArgument(
                f"there is no trace level '{text}'; use OFF, or TIMESTAMPS and TENSORS"
            )
        level |= _LEVELS[text]
    return level


def _number(least: int, most: int) -> Callable[[str, Sequence[str]], int]:
    def read(name: str, texts: Sequence[str]) -> int:
        if len(texts) != 1:
            raise InvalidArgument(f"expect only 1 value for '{name}'")
        text = texts[0].strip()
        digits = text[1:] if text[:1] in ("-", "+") else text
        if not (digits.isascii() and digits.isdecimal()):
            raise InvalidArgument(f"Unable to parse '{name}', got: {text}")
        if len(digits) > 10 or not least <= int(text) <= most:
            raise InvalidArgument(
                f"Unable to parse '{name}', value is out of range [ {least}, {most} ], got: {text}"
            )
        return int(text)

    return read


_Reader = Callable[[str, Sequence[str]], TraceLevel | int]
_READERS: Mapping[str, tuple[str, _Reader]] = {
    "trace_level": ("level", _level),
    "trace_rate": ("rate", _number(0, MOST_RATE)),
    "trace_count": ("count", _number(-1, MOST_COUNT)),
    "log_frequency": ("log_frequency", _number(0, MOST_RATE)),
}
