"""What a rule finds."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """One thing that is wrong: where, what, and what to write instead."""

    field: str
    message: str
    fix: str
