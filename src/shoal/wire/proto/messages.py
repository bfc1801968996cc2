"""Every top-level message and enum of the schema as an attribute, made when first asked for.

from shoal.wire.proto import messages
request = messages.ModelInferRequest(model_name="simple")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.wire.proto import schema


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):  # what the import system and debuggers ask for is not a message
        makers: tuple[Callable[[str], Any], ...] = (schema.message_class, schema.enum_wrapper)
        for make in makers:
            for package in schema.PACKAGES:
                try:
                    found = make(f"{package}.{name}")
                except KeyError:
                    continue
                globals()[name] = found  # the next access is a plain attribute
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
