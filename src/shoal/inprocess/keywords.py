"""The arguments of `shoal.Server`: models, and the options of `shoal serve` as keywords.

Server("models", [double], http_port=8000)  -->  Options(...), [double]

The names, types, limits and choices are those of the table of options.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shoal.config.options import TABLE, NamedSetting, Option, Options
from shoal.config.options.values import convert
from shoal.config.suggest import did_you_mean
from shoal.errors import InvalidArgument

LOOPBACK = "127.0.0.1"
# Differences from `shoal serve`: reachable only from this machine, on free ports.
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "http_address": LOOPBACK,
        "http_port": 0,
        "grpc_address": LOOPBACK,
        "grpc_port": 0,
        "metrics_port": 0,
    }
)
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str, Path),
    "bool": (bool,),
    "float": (int, float),
}


def read(
    models: Sequence[Any], options: Options | None, settings: Mapping[str, Any]
) -> tuple[Options, list[Any]]:
    """The options, with the folders and files of `models`, and the functions among `models`.

    Raises InvalidArgument.
    """
    paths = [str(each) for each in _flat(models) if isinstance(each, (str, Path))]
    functions = [each for each in _flat(models) if not isinstance(each, (str, Path))]
    if options is None:
        checked = {name: _checked(name, value) for name, value in settings.items()}
        options = Options(**{**DEFAULTS, **checked}, given=frozenset(checked))
    elif settings:
        raise InvalidArgument(f"give either options= or {', '.join(settings)}, not both")
    repositories = (*options.model_repository, *paths)
    if not repositories and not functions:
        raise InvalidArgument(
            "there are no models to serve; pass a folder of models or functions, as in "
            'shoal.Server("models") or shoal.Server([double])'
        )
    return dataclasses.replace(options, model_repository=repositories), functions


def _flat(models: Sequence[Any]) -> Iterator[Any]:
    for entry in models:
        if isinstance(entry, (list, tuple)):
            yield from _flat(entry)
        else:
            yield entry


def _checked(name: str, value: Any) -> Any:
    """The value of one option as `Options` has it."""
    known = {option.attribute: option for option in TABLE}
    option = known.get(name)
    if option is None:
        fix = did_you_mean(name, list(known), "options")
        raise InvalidArgument(f"unknown option {name}=. {fix}")
    if option.repeatable:
        values = [value] if isinstance(value, (str, Path)) else list(value)
        return tuple(_element(option, each) for each in values)
    if not isinstance(value, _TYPES[option.type]) or (
        isinstance(value, bool) and option.type != "bool"
    ):
        raise InvalidArgument(f"{name}= takes {option.type}, found {value!r}")
    return value if option.type == "bool" else convert(option, f"{name}=", str(value))


def _element(option: Option, value: Any) -> Any:
    """One value of an option that has several: a text, or the parts of a named setting."""
    if isinstance(value, (str, Path)):
        return convert(option, f"{option.attribute}=", str(value))
    return NamedSetting(*(str(part) for part in value))
