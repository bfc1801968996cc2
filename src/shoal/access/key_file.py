"""The key file: a key in each line, as JSON. Read by the server, changed by `shoal key`.

Lines that are empty or begin with # are comments; a change leaves them as they are.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from shoal.access.entry import KeyEntry
from shoal.errors import AlreadyExists, InvalidArgument, NotFound

MOST_ENTRIES = 100_000
_MOST_BYTES = 64 << 20
_PRIVATE = 0o600


def read_keys(path: Path) -> list[KeyEntry]:
    """All entries. Raises InvalidArgument with the line and the reason."""
    entries: list[KeyEntry] = []
    names: dict[str, int] = {}
    digests: dict[str, int] = {}
    for number, line in enumerate(_lines(path), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            entry = KeyEntry.read(line)
        except InvalidArgument as error:
            raise InvalidArgument(f"{path}, line {number}: {error.message}") from None
        for field, value, seen in (
            ("name", entry.name, names),
            ("sha256", entry.sha256, digests),
        ):
            if value and value in seen:
                raise InvalidArgument(
                    f"{path}, line {number}: the same '{field}' as in line {seen[value]}; each key "
                    f"needs its own"
                )
            seen[value] = number
        entries.append(entry)
        if len(entries) > MOST_ENTRIES:
            raise InvalidArgument(f"{path}, line {number}: more than {MOST_ENTRIES} keys")
    return entries


def permission_problem(path: Path) -> str:
    """A sentence if other users can read or change the file; else empty."""
    if os.name != "posix":
        return ""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users can change {path}, and so give themselves keys; run 'chmod 600 {path}'"
    if mode & stat.S_IROTH:
        return f"all users can read {path}: names and permissions of keys; run 'chmod 600 {path}'"
    return ""


def add_key(path: Path, entry: KeyEntry) -> None:
    """Append an entry; the file is made if there is none. AlreadyExists if the name is taken."""
    existing = read_keys(path) if path.exists() else []
    if any(other.name == entry.name for other in existing):
        raise AlreadyExists(
            f"{path} has a key '{entry.name}' already; remove it with 'shoal key remove "
            f"{entry.name}', or choose another name"
        )
    try:
        # One write, so that a server that reads at this moment finds a whole line or none.
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, _PRIVATE)
        try:
            ended = True
            if os.fstat(handle).st_size:
                os.lseek(handle, -1, os.SEEK_END)
                ended = os.read(handle, 1) == b"\n"
            os.write(handle, ("" if ended else "\n").encode() + f"{entry.line()}\n".encode())
        finally:
            os.close(handle)
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error.strerror}") from None


def remove_key(path: Path, name: str) -> None:
    """Remove an entry, and replace the file at once. NotFound if there is no such key."""
    read_keys(path)  # a file with mistakes is not changed
    lines = _lines(path)
    kept = [line for line in lines if not _is_entry(line, name)]
    if len(kept) == len(lines):
        raise NotFound(f"{path} has no key '{name}'; 'shoal key list' shows those it has")
    target = path.resolve()
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in kept)
            Path(temporary).chmod(stat.S_IMODE(target.stat().st_mode))
            Path(temporary).replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error.strerror}") from None


def _is_entry(line: str, name: str) -> bool:
    if not line.strip() or line.lstrip().startswith("#"):
        return False
    return KeyEntry.read(line).name == name


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InvalidArgument(f"{path} is too large to be a key file")
        # Not splitlines, which also splits at characters that JSON texts may have.
        return path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    except UnicodeDecodeError:
        raise InvalidArgument(f"{path} is not a text in UTF-8") from None
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from None
