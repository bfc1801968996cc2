"""The server's log: Python logging in Triton's two formats and JSON, with settings that can change.

    default   I0809 10:19:07.015127 3254750 server.py:275] "message"
    ISO8601   2024-08-09T10:19:07Z I 3254750 server.py:275] "message"
    json      {"time": "2024-08-09T10:19:07.015127Z", "level": "info", … "message": "message"}

Modules log as usual, through `logging.getLogger(__name__)`. Messages are quoted as JSON strings,
so that text sent by a client cannot forge a log line. Times are UTC. A log that cannot be written
(a full disk, a closed stderr) loses lines and nothing else.

Verbose level 1 is logging.DEBUG; each further level is one number below it (`VERBOSE_2` is 9).
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

VERBOSE_1 = logging.DEBUG
VERBOSE_2 = logging.DEBUG - 1

FORMATS = ("default", "ISO8601", "json")

_package = logging.getLogger("shoal")
_REPORT_SECS = 60.0  # between two reports of lines that could not be written


@dataclass(frozen=True)
class LogSettings:
    """Levels, format and destination. The names are those of the logging API."""

    log_file: str = ""  # empty: stderr
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    log_format: str = "default"  # one of FORMATS

    def allows(self, level: int) -> bool:
        """Whether a record of this level is written."""
        if level >= logging.ERROR:
            return self.log_error
        if level >= logging.WARNING:
            return self.log_warning
        if level >= logging.INFO:
            return self.log_info
        return level >= self.least_level

    @property
    def least_level(self) -> int:
        """Records below this level are never written."""
        if self.log_verbose_level > 0:
            return max(1, logging.DEBUG + 1 - self.log_verbose_level)
        return logging.INFO


class Formatter(logging.Formatter):
    """One line per record. A `table` passed in `extra` follows the line as it is, and so does a
    traceback, indented."""

    def __init__(self, log_format: str = "default") -> None:
        super().__init__()
        self._iso8601 = log_format == "ISO8601"
        self._json = log_format == "json"

    def format(self, record: logging.LogRecord) -> str:
        """The finished text, without its newline."""
        if self._json:
            return self._as_json(record)
        letter = "E" if record.levelno >= logging.ERROR else "I"
        if logging.WARNING <= record.levelno < logging.ERROR:
            letter = "W"
        seconds, microseconds = divmod(round(record.created * 1_000_000), 1_000_000)
        moment = time.gmtime(seconds)
        if self._iso8601:
            start = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', moment)} {letter}"
        else:
            start = f"{letter}{time.strftime('%m%d %H:%M:%S', moment)}.{microseconds:06d}"
        message = json.dumps(record.getMessage(), ensure_ascii=False)
        text = f"{start} {record.process} {record.filename}:{record.lineno}] {message}"
        table = getattr(record, "table", "")
        if table:
            text += f"\n{table}"
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            text += "\n" + "\n".join(f"    {line}" for line in trace.splitlines())
        return text

    def _as_json(self, record: logging.LogRecord) -> str:
        seconds, microseconds = divmod(round(record.created * 1_000_000), 1_000_000)
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        level = "debug"
        for least, name in (
            (logging.INFO, "info"),
            (logging.WARNING, "warning"),
            (logging.ERROR, "error"),
        ):
            if record.levelno >= least:
                level = name
        fields = {
            "time": f"{moment}.{microseconds:06d}Z",
            "level": level,
            "process": record.process,
            "source": f"{record.filename}:{record.lineno}",
            "message": record.getMessage(),
        }
        table = getattr(record, "table", "")
        if table:
            fields["table"] = table
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[TextIO]
else:
    _StreamHandler = logging.StreamHandler  # Python 3.10 cannot name its type at run time


class _Handler(_StreamHandler):
    """Loses what cannot be written, and says so on stderr once a minute, if that can be written."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lost = 0
        self._reported = -_REPORT_SECS

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, ARG002 - its name
        """A line could not be written."""
        self._lost += 1
        now = time.monotonic()
        if now - self._reported < _REPORT_SECS:
            return
        self._reported = now
        lost, self._lost = self._lost, 0
        with contextlib.suppress(Exception):
            error = sys.exc_info()[1]
            sys.stderr.write(f"{lost} lines of the log could not be written: {error}\n")


class Log:
    """The log handler of the process. `apply` and `update` are thread-safe.

    If it is not installed, it only keeps settings: the embedding program decides what is logged.
    """

    def __init__(self, settings: LogSettings | None = None) -> None:
        """Opens the log file, if one is set; raises OSError if it cannot be written."""
        self.settings = settings or LogSettings()
        self._installed = False
        self._logger = logging.getLogger()
        self._file: TextIO | None = None
        if self.settings.log_file:
            self._file = self._open()
        self._handler = _Handler(self._file or sys.stderr)
        self._handler.addFilter(lambda record: self.settings.allows(record.levelno))

    def install(self, logger: logging.Logger | None = None) -> None:
        """Start handling the records of `logger`, or of the whole process; those of libraries from
        WARNING on."""
        self._logger = logger or logging.getLogger()
        self._logger.addHandler(self._handler)
        self._installed = True
        self.apply(self.settings)

    def apply(self, settings: LogSettings) -> None:
        """Use these settings from now on; the log file does not change."""
        self.settings = settings
        self._handler.setFormatter(Formatter(settings.log_format))
        if self._installed:
            _package.setLevel(settings.least_level)

    def update(self, **changes: Any) -> None:
        """Change some settings, by the names of LogSettings."""
        self.apply(replace(self.settings, **changes))

    def reopen(self) -> None:
        """Continue in a new file of the same name, if the old one was renamed.

        Raises OSError if it cannot be opened; the old one is used on.
        """
        if self._file is None:
            return
        old, self._file = self._file, self._open()
        self._handler.setStream(self._file)
        with contextlib.suppress(OSError):  # a full disk: its last lines are lost
            old.close()

    def _open(self) -> TextIO:
        # A line with unencodable characters must still be written.
        return Path(self.settings.log_file).open("a", encoding="utf-8", errors="backslashreplace")

    def close(self) -> None:
        """Stop handling records and close the file."""
        self._installed = False
        self._logger.removeHandler(self._handler)
        _package.setLevel(logging.NOTSET)
        self._handler.close()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
