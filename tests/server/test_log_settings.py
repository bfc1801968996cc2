"""Log settings that clients change take effect at once."""

from __future__ import annotations

import logging

import pytest

from shoal.logs import Log, LogSettings
from shoal.testing.server import running_server

THIS_FILE = "test_log_settings.py"
logger = logging.getLogger("shoal.somewhere")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.txt"


@pytest.fixture
def running(tmp_path, path):
    log = Log(LogSettings(log_file=str(path)))
    log.install()
    folder = tmp_path / "models"
    folder.mkdir()
    try:
        with running_server(folder, log=log) as made:
            yield made
    finally:
        log.close()


def lines(path):
    """What is logged for one record of each kind."""
    before = len(path.read_text())
    for level, word in (
        *((logging.ERROR, "error"), (logging.WARNING, "warning"), (logging.INFO, "info")),
        *((logging.DEBUG, "verbose 1"), (logging.DEBUG - 1, "verbose 2")),
    ):
        logger.log(level, word)
    return [line for line in path.read_text()[before:].splitlines() if THIS_FILE in line]


def words(path):
    return [line.partition("] ")[2].strip('"') for line in lines(path)]


@pytest.mark.parametrize(
    ("change", "logged"),
    [
        ({}, ["error", "warning", "info"]),
        ({"log_info": False}, ["error", "warning"]),
        ({"log_warning": False, "log_error": False}, ["info"]),
        ({"log_verbose_level": 1}, ["error", "warning", "info", "verbose 1"]),
        (
            {"log_verbose_level": 2, "log_info": False},
            ["error", "warning", "verbose 1", "verbose 2"],
        ),
    ],
)
def test_what_is_logged(running, path, change, logged):
    answer = running.post("/v2/logging", change)
    assert (answer.status, answer.json["log_file"]) == (200, str(path))
    assert words(path) == logged


def test_how_it_is_logged(running, path):
    assert lines(path)[0].startswith("E")
    assert running.post("/v2/logging", {"log_format": "ISO8601"}).status == 200
    assert lines(path)[0][10] == "T"


def test_a_refused_change_changes_nothing(running, path):
    answer = running.post("/v2/logging", {"log_info": False, "log_file": "elsewhere"})
    assert answer.status == 501
    assert words(path) == ["error", "warning", "info"]
