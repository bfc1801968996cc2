"""Model configurations, which a client may send with a load request."""

from __future__ import annotations

from fuzz.outcomes import outcome
from shoal.config.pbtxt import parse_pbtxt, to_pbtxt
from shoal.errors import ShoalError


def pbtxt(data: bytes) -> None:
    """A config is refused with a sentence, or survives being written and read again."""
    text = data.decode("utf-8", "replace")
    kind, config = outcome(lambda: parse_pbtxt(text, "config.pbtxt"), ShoalError)
    if kind == "returned":
        assert parse_pbtxt(to_pbtxt(config), "config.pbtxt") == config
