"""Putting a content of the cache into a folder: as a clone, a copy or a link.

A backend may write to the files of its model. A clone (on file systems that share blocks until one
is written to) or a copy keeps the cache as it was. Copies of large files would cost time and space,
so these are hard links, which are read-only; what is written to one nevertheless is found by the
cache before it is used again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from pathlib import Path

_CLONE = 0x40049409  # FICLONE of Linux
_LINK_FROM_BYTES = 1 << 20


def place_file(content: Path, path: Path, *, link_from_bytes: int = _LINK_FROM_BYTES) -> None:
    """Make `path`, which must not exist, a file with this content and its time. Raises OSError."""
    status = content.stat()
    if status.st_size >= link_from_bytes:
        if _clone(content, path, status):
            return
        with contextlib.suppress(OSError):  # another file system, or one without links
            os.link(content, path)
            return
    shutil.copyfile(content, path)
    os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))


def _clone(content: Path, path: Path, status: os.stat_result) -> bool:
    """Whether a clone was made."""
    if not sys.platform.startswith("linux"):
        return False
    import fcntl

    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    source = os.open(content, os.O_RDONLY | os.O_CLOEXEC)
    try:
        target = os.open(path, flags, 0o644)
        try:
            fcntl.ioctl(target, _CLONE, source)
            os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))
        except OSError as error:
            path.unlink()
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            return False
        else:
            return True
        finally:
            os.close(target)
    finally:
        os.close(source)
