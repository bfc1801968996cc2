"""The parameters about requests of different shapes: `padding…` and `batch_by_shape…`.

    parameters { key: "padding" value: { string_value: "input_ids=0, attention_mask=0" } }

Triton has no fields for them, so they are entries of a config's `parameters`. This module only
parses them; `rules.shapes` compares them with the rest of the config.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal.config.backends import PYTHON, declared_backend
from shoal.config.model import ModelConfig
from shoal.config.parameters import value_of

PADDING = "padding"
AXES = "padding_axes"
MASK = "padding_mask"
MULTIPLE = "padding_multiple"
BY_SHAPE = "batch_by_shape"
BUCKET = "batch_by_shape_bucket"
WINDOW = "batch_by_shape_window"
KEYS = (PADDING, AXES, MASK, MULTIPLE, BY_SHAPE, BUCKET, WINDOW)

NO_LENGTH = "_"  # in `padding_axes`: a dimension without a common length

_ENTRY = re.compile(r"\s*(?P<tensor>[^\[\],]+?)\s*\[(?P<names>[^\[\]]*)\]\s*(?:,|$)")
_LENGTH = re.compile(r"[A-Za-z_][\w.+*/-]*")


class WrongParameter(Exception):
    """A parameter that cannot be parsed, with the problem and the fix."""

    def __init__(self, key: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.field = f"parameters['{key}']"
        self.message = message
        self.fix = fix


@dataclass(frozen=True, slots=True)
class PaddingParameters:
    """How a batch is padded, as the config says."""

    fills: Mapping[str, str] | None = None  # by input; None: all inputs of variable shape
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the lengths of a tensor
    masks: tuple[str, ...] = ()
    multiple: int = 1


@dataclass(frozen=True, slots=True)
class ByShapeParameters:
    """Which requests of the queue may be batched before older ones."""

    window: int | None = None
    width: int = 0  # of buckets, if they are equally wide
    edges: tuple[int, ...] = ()  # where buckets end, if they are not


def padding_of(config: ModelConfig) -> PaddingParameters | None:
    """The settings of `padding`; None if batches are not padded.

    Python models receive single requests, never padded batches; such parameters are their own.
    """
    if declared_backend(config) == PYTHON:
        return None
    text = _text(config, PADDING)
    if text is None or text.lower() == "false":
        for key in (AXES, MASK, MULTIPLE):
            if key in config.parameters:
                raise WrongParameter(
                    key,
                    f"'{key}' has no effect without '{PADDING}' for {config.name}",
                    _line(PADDING, "true"),
                )
        return None
    return PaddingParameters(
        fills=None if text.lower() == "true" else _fills(text),
        axes=_axes(_text(config, AXES) or ""),
        masks=tuple(_names(_text(config, MASK) or "")),
        multiple=value_of(config, MULTIPLE) or 1,
    )


def by_shape_of(config: ModelConfig) -> ByShapeParameters | None:
    """The settings of `batch_by_shape`; None if requests keep their order."""
    if not value_of(config, BY_SHAPE):
        for key in (BUCKET, WINDOW):
            if key in config.parameters:
                raise WrongParameter(
                    key,
                    f"'{key}' has no effect without '{BY_SHAPE}' for {config.name}",
                    _line(BY_SHAPE, "true"),
                )
        return None
    width, edges = _buckets(_text(config, BUCKET))
    return ByShapeParameters(value_of(config, WINDOW), width, edges)


def _text(config: ModelConfig, key: str) -> str | None:
    parameter = config.parameters.get(key)
    return None if parameter is None else parameter.string_value.strip()


def _line(key: str, value: str) -> str:
    return f'Write parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'


def _names(text: str) -> Sequence[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _fills(text: str) -> dict[str, str]:
    fills: dict[str, str] = {}
    for entry in _names(text):
        name, _, value = (part.strip() for part in entry.partition("="))
        if not name or name in fills:
            what = f"names input '{name}' twice" if name else "has an entry without a name"
            raise WrongParameter(
                PADDING, f"'{text}' {what}", "Write each input once: input_ids=0, attention_mask=0"
            )
        fills[name] = value
    if not fills:
        raise WrongParameter(
            PADDING, "it is empty", "Write true, or inputs with their fillers: input_ids=0"
        )
    return fills


def _axes(text: str) -> dict[str, tuple[str, ...]]:
    axes: dict[str, tuple[str, ...]] = {}
    place = 0
    example = "Write the lengths of each tensor in order: input_ids[n], scores[n, n], boxes[_]"
    while place < len(text):
        match = _ENTRY.match(text, place)
        if match is None:
            raise WrongParameter(AXES, f"cannot read '{text[place:].strip()}'", example)
        tensor, names = match["tensor"], tuple(_names(match["names"]))
        for name in names:
            if _LENGTH.fullmatch(name) is None:
                raise WrongParameter(AXES, f"'{name}' cannot be the name of a length", example)
        if tensor in axes:
            raise WrongParameter(AXES, f"'{tensor}' is listed twice", example)
        axes[tensor] = names
        place = match.end()
    return axes


def _buckets(text: str | None) -> tuple[int, tuple[int, ...]]:
    if text is None:
        return 0, ()
    words = _names(text)
    sizes = tuple(int(word) for word in words if word.isdecimal())
    rising = all(left < right for left, right in itertools.pairwise(sizes))
    if not sizes or len(sizes) != len(words) or sizes[0] < 1 or not rising:
        raise WrongParameter(
            BUCKET,
            f"found '{text}'",
            "Write how wide buckets are (32), or where each of them ends (16, 64, 256)",
        )
    return (sizes[0], ()) if len(sizes) == 1 else (0, sizes)
