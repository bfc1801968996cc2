"""The log: two formats, four switches, one destination."""

import json
import logging
import os
import sys

import pytest

from shoal import logs
from shoal.logs import Formatter, Log, LogSettings

MOMENT = 1723198747.015127  # 2024-08-09 10:19:07 UTC


def record(level=logging.INFO, message="hello", *arguments, exc_info=None):
    made = logging.LogRecord(
        "shoal.x", level, "/somewhere/file.py", 275, message, arguments, exc_info
    )
    made.created = MOMENT
    made.process = 3254750
    return made


@pytest.mark.parametrize(
    ("log_format", "level", "line"),
    [
        ("default", logging.INFO, 'I0809 10:19:07.015127 3254750 file.py:275] "hello"'),
        ("default", logging.WARNING, 'W0809 10:19:07.015127 3254750 file.py:275] "hello"'),
        ("default", logging.ERROR, 'E0809 10:19:07.015127 3254750 file.py:275] "hello"'),
        ("default", logging.CRITICAL, 'E0809 10:19:07.015127 3254750 file.py:275] "hello"'),
        ("default", logging.DEBUG, 'I0809 10:19:07.015127 3254750 file.py:275] "hello"'),
        ("ISO8601", logging.INFO, '2024-08-09T10:19:07Z I 3254750 file.py:275] "hello"'),
        ("ISO8601", logging.ERROR, '2024-08-09T10:19:07Z E 3254750 file.py:275] "hello"'),
    ],
)
def test_formats(log_format, level, line):
    assert Formatter(log_format).format(record(level)) == line


def test_a_message_cannot_forge_a_line():
    text = Formatter().format(record(logging.INFO, "model '%s'", 'a"\nE0809 gone'))
    assert text.endswith("""] "model 'a\\"\\nE0809 gone'\"""")
    assert "\n" not in text


def test_a_table_follows_its_line():
    made = record()
    made.table = "a  b\n1  2"
    assert Formatter().format(made).endswith('] "hello"\na  b\n1  2')


def test_a_traceback_is_indented():
    try:
        raise ValueError("boom")
    except ValueError:
        text = Formatter().format(record(exc_info=sys.exc_info()))
    first, *rest = text.splitlines()
    assert first.endswith('] "hello"')
    assert all(line.startswith("    ") for line in rest)
    assert rest[-1] == "    ValueError: boom"


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        ({}, "IWE"),
        ({"log_info": False}, "WE"),
        ({"log_warning": False}, "IE"),
        ({"log_error": False}, "IW"),
        ({"log_info": False, "log_warning": False, "log_error": False}, ""),
        ({"log_verbose_level": 1}, "1IWE"),
        ({"log_verbose_level": 2}, "21IWE"),
        ({"log_verbose_level": 99}, "21IWE"),
        ({"log_verbose_level": 1, "log_info": False}, "1WE"),
    ],
)
def test_switches(settings, written):
    levels = {
        "2": logs.VERBOSE_2,
        "1": logs.VERBOSE_1,
        "I": logging.INFO,
        "W": logging.WARNING,
        "E": logging.ERROR,
    }
    chosen = LogSettings(**settings)
    assert "".join(name for name, level in levels.items() if chosen.allows(level)) == written


def test_settings_change_while_running(capsys):
    logger = logging.getLogger("shoal.somewhere")
    log = Log()
    log.install()
    try:
        logger.info("one")
        logger.debug("unheard")
        log.apply(LogSettings(log_info=False, log_verbose_level=1, log_format="ISO8601"))
        logger.info("unheard")
        logger.debug("two")
        logger.warning("three")
        logging.getLogger("library").info("unheard")
    finally:
        log.close()
    logger.error("unheard")
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition("] ")[2] for line in lines] == ['"one"', '"two"', '"three"']
    assert f" {os.getpid()} test_logs.py:" in lines[0]
    assert lines[0].startswith("I")
    assert lines[1].startswith("2")


def test_a_log_file_takes_the_place_of_stderr(capsys, tmp_path):
    path = tmp_path / "shoal.log"
    log = Log(LogSettings(log_file=str(path)))
    log.install()
    try:
        logging.getLogger("shoal").warning("odd \udc80 text")
    finally:
        log.close()
    assert path.read_text(encoding="utf-8").endswith('] "odd \\udc80 text"\n')
    assert capsys.readouterr().err == ""


def test_a_log_file_that_cannot_be_written(tmp_path):
    with pytest.raises(OSError, match="Is a directory"):
        Log(LogSettings(log_file=str(tmp_path)))


def test_the_json_format():
    made = record(logging.WARNING, "model '%s'", "a\n")
    made.table = "a  b"
    assert json.loads(Formatter("json").format(made)) == {
        "time": "2024-08-09T10:19:07.015127Z",
        "level": "warning",
        "process": 3254750,
        "source": "file.py:275",
        "message": "model 'a\n'",
        "table": "a  b",
    }
    try:
        raise ValueError("boom")
    except ValueError:
        text = Formatter("json").format(record(logging.ERROR, exc_info=sys.exc_info()))
    assert "\n" not in text
    assert json.loads(text)["traceback"].endswith("ValueError: boom")


def test_a_full_disk_is_reported_once(capsys):
    """Every write to /dev/full fails, as on a full disk."""
    log = Log(LogSettings(log_file="/dev/full"))
    log.install()
    try:
        for _ in range(10):
            logging.getLogger("shoal.x").error("lost")
    finally:
        log.close()
    assert capsys.readouterr().err.count("could not be written") == 1


def test_a_renamed_log_is_continued_in_a_new_file(tmp_path):
    path = tmp_path / "log"
    log = Log(LogSettings(log_file=str(path)))
    log.install()
    try:
        logging.getLogger("shoal.x").info("before")
        path.rename(tmp_path / "log.1")
        log.reopen()
        logging.getLogger("shoal.x").info("after")
    finally:
        log.close()
    assert '"before"' in (tmp_path / "log.1").read_text()
    assert '"after"' in path.read_text()
    assert '"before"' not in path.read_text()
