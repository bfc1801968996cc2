"""Reading the parameters of a model, and finding misspelt ones; `parameter_table` declares them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from shoal.config.backends import BACKENDS, PYTHON, declared_backend
from shoal.config.model import ModelConfig
from shoal.config.parameter import ANY, COUNT, FLAG, NUMBER, SIZE, TEXT, Parameter, ValueType
from shoal.config.parameter_table import TABLE
from shoal.errors import ConfigError

DEFAULT_MAX_BATCH_SIZE = 4  # Triton's default for models that can batch
_NEAR = 0.85  # how similar a misspelt name is to the one that was meant


def declared(name: str, backend: str = "") -> Parameter | None:
    """The row for a parameter of a backend; without one, that of all models."""
    for row in TABLE:
        if name in (row.name, *row.aliases) and (
            backend in row.backends if backend else not row.backends
        ):
            return row
    return None


def value_of(config: ModelConfig, name: str) -> Any:
    """The value of a parameter for all models; None where the config does not set it."""
    return Parameters("", config, {}, "config.pbtxt").value(name)


def misspelt(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Each parameter that nothing reads, with the similar one that was probably meant.

    None for Python models and functions, which have parameters of their own.
    """
    if declared_backend(config) in (PYTHON, "function"):
        return
    known = {
        name.lower(): name
        for row in TABLE
        if row.concerns(config)
        for name in (row.name, *row.aliases)
    }
    prefixes = tuple(name.removesuffix(ANY) for name in known.values() if name.endswith(ANY))
    names = {*known.values()}
    for key in config.parameters:
        near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=_NEAR)
        if near and key not in names and not key.startswith(prefixes):
            yield key, known[near[0]]


class Parameters:
    """Reads the parameters of one model: its config first, then --backend-config.

    Wrong values raise ConfigError. A backend of another package, whose parameters are not in the
    table, passes a `Parameter` of its own or lets the method choose the type.
    """

    def __init__(
        self, backend: str, config: ModelConfig, settings: Mapping[str, str], file: str
    ) -> None:
        self._backend = backend
        self._values = {key: item.string_value for key, item in config.parameters.items()}
        self._settings = settings
        self._file = file

    def text(self, key: str | Parameter) -> str:
        """A text or one of the declared words; "" where there is none."""
        return self.value(key, TEXT) or ""

    def count(self, key: str | Parameter) -> int:
        """A number of something; 0 where there is none."""
        return self.value(key, COUNT) or 0

    def number(self, key: str | Parameter) -> float | None:
        """Any number, or None."""
        number: float | None = self.value(key, NUMBER)
        return number

    def flag(self, key: str | Parameter) -> bool | None:
        """True, false, or None where there is none."""
        flag: bool | None = self.value(key, FLAG)
        return flag

    def with_prefix(self, *prefixes: str) -> dict[str, str]:
        """The parameters of the config whose names begin so, as they are."""
        return {key: text for key, text in self._values.items() if key.startswith(prefixes)}

    def default_max_batch_size(self, default: int = DEFAULT_MAX_BATCH_SIZE) -> int:
        """What max_batch_size becomes where a model can batch and its config does not set it."""
        row = Parameter("default-max-batch-size", SIZE, "", in_config=False)
        size: int | None = self.value(row)
        return default if size is None else size

    def value(self, key: str | Parameter, type: ValueType = TEXT) -> Any:
        """The value, by its declared type; None where there is none."""
        row = key if isinstance(key, Parameter) else declared(key, self._backend)
        if row is None:
            if self._backend in BACKENDS or not self._backend:
                raise KeyError(f"{key} is not in the table of parameters")
            assert isinstance(key, str)
            row = Parameter(key, type, "")
        sources = ([self._values] if row.in_config else []) + (
            [self._settings] if row.in_settings else []
        )
        found = None
        for source in sources:
            for name in (row.name, *row.aliases):
                text = source.get(name, "").strip()
                if text:
                    try:
                        found = row.type.parse(text)
                    except ValueError:
                        raise self.wrong(row, text, name=name) from None
                    if found or row.type is not COUNT:  # 0 stands for the next default
                        return found
        return found

    def wrong(
        self, key: str | Parameter, text: str, expected: str = "", *, name: str = ""
    ) -> ConfigError:
        """The error for a value that cannot be, with the place where it is written."""
        row = key if isinstance(key, Parameter) else declared(key, self._backend)
        if row is None:
            assert isinstance(key, str)
            row = Parameter(key, TEXT, "")
        names = (name,) if name else (row.name, *row.aliases)
        written = next((each for each in names if each in self._values), "")
        if row.in_config and written:
            file, field = self._file, f"parameters['{written}']"
        else:
            file, field = "", f"--backend-config={self._backend},{names[0]}"
        return ConfigError(
            row.wrong.format(text=text),
            file=file,
            field=field,
            fix=f"Write {expected or row.type.expected}",
        )
