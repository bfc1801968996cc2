"""Paths of remote files: which of them may become files of this machine."""

from __future__ import annotations

_LONGEST_PART = 255  # bytes of one name, on the file systems of Linux
_LONGEST = 3000  # bytes of all, below the folder of the cache
_MOST_PARTS = 64  # folders are made and removed recursively


def why_unsafe(path: str) -> str:
    """Why a file must not be written at this path below a folder; empty if it may be.

    The path has "/" between its parts. It may have any other characters that a file system allows.
    """
    if path.startswith("/"):
        return "it begins with '/'"
    if "\0" in path or "\\" in path:
        return "it contains a zero byte or a backslash"
    if any(ord(character) < 32 for character in path):
        return "it contains control characters"
    parts = path.split("/")
    if "" in parts:
        return "it contains an empty part"
    if "." in parts or ".." in parts:
        return "it contains '.' or '..' as a part"
    if len(parts) > _MOST_PARTS:
        return f"it has more than {_MOST_PARTS} parts"
    try:
        lengths = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        return "it is not Unicode"
    if max(lengths) > _LONGEST_PART or sum(lengths) > _LONGEST:
        return "it is too long for a file system"
    return ""
