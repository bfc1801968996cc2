"""Key files for tests, and headers with their keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.access.entry import KeyEntry, digest_of


def key_of(name: str) -> str:
    """The key that `write_keys` gives to an entry."""
    return f"shoal_secret-of-{name}"


def bearer(name: str) -> dict[str, str]:
    """The header with that key."""
    return {"authorization": f"Bearer {key_of(name)}"}


def write_keys(path: Path, **entries: dict[str, Any]) -> str:
    """A key file with these entries, by name; returns its path."""
    lines = [
        KeyEntry(name, digest_of(key_of(name).encode()).hex(), **fields).line()
        for name, fields in entries.items()
    ]
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(0o600)
    return str(path)
