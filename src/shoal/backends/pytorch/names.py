"""Matches the names in a config with the inputs and outputs of `forward`.

    1  names that forward has: arguments, keys of a dictionary, ARGS[0], KWARGS[x], RESULT[0]
    2  <anything>__<index>: INPUT__0, OUTPUT__1
    3  otherwise the order in which the config lists them

Triton's rules. One of them applies to all inputs of a model, and one to all its outputs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.dtypes import DataType
from shoal.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Slot:
    """One argument or result of forward. Fields that the model's file lacks are None."""

    names: tuple[str, ...]  # its possible names in a config, the best first
    datatype: DataType | None = None
    dims: tuple[int, ...] | None = None  # with the batch; -1 for any size
    axes: tuple[str | None, ...] = ()  # the names of its dimensions, if any
    example: tuple[int, ...] | None = None  # a shape it was traced with, not the only possible one
    required: bool = True
    type_name: str = "Tensor"  # PyTorch's word for its type

    @property
    def strings(self) -> bool:
        """Whether it is a list of strings."""
        return self.type_name == "List[str]"


def places(
    kind: str, written: Sequence[str], slots: Sequence[Slot] | None, *, model: str, file: str
) -> tuple[int, ...]:
    """The position in forward of each name of a config.

    `kind` is "input" or "output"; `slots` is None where their number is not known. Raises
    ConfigError if a position does not exist, or two names have the same one.
    """
    if slots is not None:
        known = {name: place for place, slot in enumerate(slots) for name in slot.names}
        if all(name in known for name in written):
            return _once(kind, written, [known[name] for name in written], file)
    numbers = [index_of(name) for name in written]
    indexed = [number for number in numbers if number is not None]
    if len(indexed) == len(written):
        for name, number in zip(written, indexed, strict=True):
            if slots is not None and number >= len(slots):
                raise ConfigError(
                    f"The {kind} {name} in the model configuration refers to an {kind} index which "
                    f"doesn't exist. This model has {len(slots)} {kind}s",
                    file=file,
                    field=kind,
                    fix=_choice(kind, slots),
                )
        return _once(kind, written, indexed, file)
    if slots is not None and len(written) > len(slots):
        raise ConfigError(
            f"unable to load model '{model}', configuration expects {len(written)} {kind}s, model "
            f"provides {len(slots)}",
            file=file,
            field=kind,
            fix=_choice(kind, slots),
        )
    return tuple(range(len(written)))


def warn_of_order(
    kind: str, written: Sequence[str], slots: Sequence[Slot] | None, *, model: str, file: str
) -> None:
    """Log that several inputs or outputs are matched only by their order."""
    known = {name for slot in slots or () for name in slot.names}
    if len(written) < 2 or known.issuperset(written):
        return
    if any(index_of(name) is None for name in written):
        logger.warning(
            "%s: the %ss %s of model '%s' are neither names that its forward has nor of the form "
            "<name>__<index>: they are matched in the order in which they are listed",
            file,
            kind,
            ", ".join(written),
            model,
        )


def index_of(name: str) -> int | None:
    """The number in `<anything>__<number>`; None for other names."""
    number = name.partition("__")[2]
    return int(number) if number.isdecimal() else None


def walk(tree: Any, prefix: str, *, keys: bool = True) -> list[tuple[str, ...]]:
    """The names of the values in nested tuples, lists and dictionaries, in the order of the values.

    `prefix` stands for the whole: RESULT, RESULT[0], RESULT[key][1]. With `keys`, the keys of the
    outermost dictionary and the fields of the outermost named tuple are names too, and come first.
    """
    if is_leaf(tree):
        return [(prefix,)]
    of_mapping = isinstance(tree, Mapping)
    fields = list(tree) if of_mapping else list(getattr(tree, "_fields", ()))
    result: list[tuple[str, ...]] = []
    for place, (key, part) in enumerate(tree.items() if of_mapping else enumerate(tree)):
        inner = walk(part, f"{prefix}[{key}]", keys=False)
        if keys and fields and is_leaf(part):
            inner = [(str(fields[place]), *inner[0])]
        result += inner
    return result


def is_leaf(value: Any) -> bool:
    """Whether a value is one tensor, or one list of strings, and not a collection of them."""
    if isinstance(value, list | tuple):
        return isinstance(value, list) and (not value or isinstance(value[0], str))
    return not isinstance(value, Mapping)


def _once(kind: str, written: Sequence[str], numbers: Sequence[int], file: str) -> tuple[int, ...]:
    seen: dict[int, str] = {}
    for name, number in zip(written, numbers, strict=True):
        if number in seen:
            raise ConfigError(
                f"the {kind}s '{seen[number]}' and '{name}' stand for the same {kind} of the model",
                file=file,
                field=kind,
                fix="Give each its own index or name",
            )
        seen[number] = name
    return tuple(numbers)


def _choice(kind: str, slots: Sequence[Slot]) -> str:
    if not slots:
        return f"The model has no {kind}s"
    own = ", ".join(slot.names[0] for slot in slots)
    last = f"{kind.upper()}__{len(slots) - 1}"
    return f"Write the names the model has ({own}), or {kind.upper()}__0 to {last}"
