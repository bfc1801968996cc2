"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

_MOST_LISTED = 30
_LONGEST_NAME = 100  # nothing longer is a misspelt name, and comparing takes long


def near_match(written: str, known: Sequence[str]) -> str | None:
    """The known name that was most likely meant, or None if none is close."""
    if len(written) > _LONGEST_NAME:
        return None
    folded = {name.lower(): name for name in reversed(known)}
    word = written.lower()
    for name in known:  # INT32 means TYPE_INT32, GPU means KIND_GPU
        if word and name.lower().endswith("_" + word):
            return name
    close = difflib.get_close_matches(word, list(folded), n=1, cutoff=0.7)
    return folded[close[0]] if close else None


def did_you_mean(written: str, known: Sequence[str], what: str) -> str:
    """`Did you mean 'dims'?`, or the known names if none is close."""
    found = near_match(written, known)
    if found is not None:
        return f"Did you mean '{found}'?"
    listed = ", ".join(known[:_MOST_LISTED])
    return f"Known {what} are: {listed}" + (", …" if len(known) > _MOST_LISTED else "")
