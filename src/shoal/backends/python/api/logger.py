"""`pb_utils.Logger`: lines in the server's log, with the model's file and line number."""

from __future__ import annotations

import enum
import logging
import sys

from shoal.backends.python.api import arguments, host


class _LogLevel(enum.Enum):
    """The severity of a line."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


_LEVELS = {
    _LogLevel.INFO: logging.INFO,
    _LogLevel.WARNING: logging.WARNING,
    _LogLevel.ERROR: logging.ERROR,
    _LogLevel.VERBOSE: logging.DEBUG,
}


class Logger:
    """Called on the class itself: `pb_utils.Logger.log_info("text")`."""

    LogLevel = _LogLevel
    INFO = _LogLevel.INFO
    WARNING = _LogLevel.WARNING
    ERROR = _LogLevel.ERROR
    VERBOSE = _LogLevel.VERBOSE

    @staticmethod
    def log(message: str | bytes, level: _LogLevel = _LogLevel.INFO) -> None:
        """Log at a level of your choice."""
        _log(message, level)

    @staticmethod
    def log_info(message: str | bytes) -> None:
        """Log information."""
        _log(message, _LogLevel.INFO)

    @staticmethod
    def log_warn(message: str | bytes) -> None:
        """Log a warning."""
        _log(message, _LogLevel.WARNING)

    @staticmethod
    def log_error(message: str | bytes) -> None:
        """Log an error."""
        _log(message, _LogLevel.ERROR)

    @staticmethod
    def log_verbose(message: str | bytes) -> None:
        """Log details for debugging."""
        _log(message, _LogLevel.VERBOSE)


def _log(message: str | bytes, level: _LogLevel) -> None:
    message = arguments.text("a log message", message)
    if not isinstance(level, _LogLevel):
        raise TypeError(f"a log level must be one of Logger._LogLevel, not {level!r}")
    caller = sys._getframe(2)
    host.current().host.log(_LEVELS[level], message, caller.f_code.co_filename, caller.f_lineno)
