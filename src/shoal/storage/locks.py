"""Locks of files, against other threads and other processes."""

from __future__ import annotations

import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)


def open_lock(path: Path) -> int:
    """A descriptor of a file that `try_lock` may lock, until it is closed. Raises OSError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)


def try_lock(descriptor: int, *, if_unsupported: bool = True) -> bool:
    """False if another descriptor holds the lock.

    `if_unsupported` is the result without locks in the file system or the operating system: true
    where files are then downloaded twice, false where those of a running server would be deleted.
    """
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError) as error:
        logger.debug("no file locks in the repository cache: %s", error)
        return if_unsupported
    return True
