"""Lines that the program adds to the server's log."""

from __future__ import annotations

import logging

from shoal.tritonserver.enums import LogLevel

logger = logging.getLogger(__name__)
_LEVELS = {
    LogLevel.INFO: logging.INFO,
    LogLevel.WARN: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.VERBOSE: logging.DEBUG,
}


def LogMessage(level: LogLevel, message: str) -> None:  # noqa: N802 - Triton's name
    """Log `message`; the line names the caller's file and line."""
    logger.log(_LEVELS[level], "%s", message, stacklevel=2)
