"""What Pydantic says of a value that does not fit, in the sentences of our own errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from shoal.backends.function.field_errors import (
    described,
    joined,
    missing_fields,
    title,
    unknown_field,
)
from shoal.config.suggest import near_match

_MOST_REPORTED = 5
_DETAILS = re.compile(", (?:unable to|input is|got|invalid) ")


def sentences_of(error: Exception, where: str, known: Sequence[str] = ()) -> str:
    """The sentences of a ValidationError of Pydantic's; of another error, its text."""
    try:
        found = error.errors(include_url=False)  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        return str(error) or type(error).__name__
    sentences = []
    for each in found[:_MOST_REPORTED]:
        place = ".".join(map(str, each["loc"]))
        at = joined(where, place) if place else where
        if each["type"] == "missing":
            sent = each["input"] if isinstance(each["input"], dict) else {}
            near = near_match(str(each["loc"][-1]), [key for key in sent if isinstance(key, str)])
            meant = f" (sent as `{near}`?)" if near else ""
            sentences.append(missing_fields([place], where).message + meant)
        elif each["type"] == "extra_forbidden":
            name = str(each["loc"][-1])
            names = known if len(each["loc"]) == 1 else ()
            within = ".".join(map(str, [*([where] if where else []), *each["loc"][:-1]]))
            sentences.append(unknown_field(name, names, within).message)
        else:
            sentences.append(_reported(title(at), each["msg"], each["input"]))
    more = len(found) - len(sentences)
    return "; ".join(sentences) + (f"; and {more} more" if more else "")


def _reported(where: str, text: str, value: Any) -> str:
    """A sentence of Pydantic's as ours are."""
    for start in ("Value error, ", "Assertion failed, "):  # of the model's own validators
        if text.startswith(start):
            return f"{where}: {text.removeprefix(start)}"
    rule = text.removeprefix("Input should ")
    if rule == text:
        return f"{where}: {text[:1].lower()}{text[1:]}"
    return f"{where} must {_DETAILS.split(rule)[0]}, not {described(value)}"
