"""Rules about the parameters that Shoal and its backends read."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.config.model import ModelConfig
from shoal.config.parameter_table import TABLE
from shoal.config.rules.fault import Fault


def parameters(config: ModelConfig) -> Iterator[Fault]:
    """Each value is of its parameter's type."""
    for row in TABLE:
        if not row.concerns(config):
            continue
        for name in (row.name, *row.aliases):
            written = config.parameters.get(name)
            text = "" if written is None else written.string_value.strip()
            try:
                if text:
                    row.type.parse(text)
            except ValueError:
                message = row.wrong.format(text=text)
                yield Fault(f"parameters['{name}']", message, f"Write {row.type.expected}")
