"""The settings of a cache: `--cache-config=<cache>,<key>=<value>`, one method per type."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shoal.config.options.checks import SIZE, read_size
from shoal.errors import InvalidArgument


class CacheSettings:
    """The settings of one cache; each method checks that a value has its type."""

    def __init__(self, cache: str, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        """Raises InvalidArgument for a key that is not among the `known`."""
        self._cache = cache
        self._given = given
        for key in given:
            if key not in known:
                raise InvalidArgument(
                    f"--cache-config={cache},{key}={given[key]}: the cache '{cache}' has no "
                    f"setting '{key}'; its settings are {', '.join(known)}"
                )

    def text(self, key: str, default: str = "") -> str:
        """Any text."""
        return self._given.get(key, default)

    def required(self, key: str, example: str) -> str:
        """A text that is required."""
        if not self._given.get(key):
            raise InvalidArgument(
                f"the cache '{self._cache}' needs '{key}'; write for example "
                f"--cache-config={self._cache},{key}={example}"
            )
        return self._given[key]

    def number(self, key: str, default: int | None, *, least: int, most: int | None = None) -> int:
        """A whole number; without a default it is required."""
        text = self._given.get(key)
        if text is None and default is not None:
            return default
        if text is None or not (text.isascii() and text.isdecimal()):
            raise self._wrong(key, text, f"a whole number from {least} on")
        value = int(text)
        if value < least or (most is not None and value > most):
            bounds = f"from {least} on" if most is None else f"from {least} to {most}"
            raise self._wrong(key, text, f"a whole number {bounds}")
        return value

    def size(self, key: str) -> int:
        """A required number of bytes: 1048576, 512M, 4G."""
        text = self._given.get(key, "")
        if re.fullmatch(SIZE, text) is None:
            raise self._wrong(key, text or None, "bytes, such as 1048576 or 64M")
        return read_size(text)

    def truth(self, key: str, default: bool) -> bool:
        """Yes or no."""
        text = self._given.get(key)
        if text is None:
            return default
        if text.lower() not in ("true", "false", "1", "0"):
            raise self._wrong(key, text, "true or false")
        return text.lower() in ("true", "1")

    def _wrong(self, key: str, text: str | None, wanted: str) -> InvalidArgument:
        found = "is missing" if text is None else f"is '{text}'"
        return InvalidArgument(
            f"--cache-config={self._cache},{key}=…: '{key}' {found}; write {wanted}"
        )
