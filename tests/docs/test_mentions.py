"""Included files are run by some test; flags, commands and routes named in sentences exist."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from pages import ROOT, all_pages

from shoal.cli.main import COMMANDS
from shoal.frontends.http.routes import resolve
from shoal.tasks.registry import operations

PAGES = [path.as_posix() for path in all_pages()]
TESTS = "\n".join(
    path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))
)
# Flags that pages name as unsupported.
OTHERS = {"--fixed-schedule", "--periodic-concurrency-range", "--session-concurrency"}
OPERATIONS = {"", *operations()}  # of tasks; empty for other routes


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def known_flags():
    """All flags in the help of our commands."""
    helps = [
        subprocess.run(
            (sys.executable, "-m", "shoal", command.name, "--help"),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for command in COMMANDS
    ]
    return set(re.findall(r"--[a-z][\w-]*", "\n".join(helps)))


@pytest.mark.parametrize("page", PAGES)
def test_included_files_are_run_by_some_test(page):
    files = re.findall(r"\{literalinclude\} (\S+)", read(page))
    folders = [(ROOT / page).parent / file for file in files]
    for path in folders:
        assert path.is_file(), f"{page} includes {path}, which does not exist"
        by_pattern = path.resolve().parent == ROOT / "examples" and path.suffix == ".py"
        names = (path.name, path.parent.name, path.parent.parent.parent.name)
        assert by_pattern or any(f'"{name}"' in TESTS for name in names), (
            f"{page} includes {path.name}, which no test seems to run"
        )


@pytest.mark.parametrize("page", PAGES)
def test_flags_within_sentences_exist(page, known_flags):
    spans = re.findall(r"(?<!`)`(--[a-z][\w-]*)", read(page))
    wrong = sorted(set(spans) - known_flags - OTHERS)
    assert wrong == [], f"{page} speaks of flags that no command has"


@pytest.mark.parametrize("page", PAGES)
def test_commands_within_sentences_exist(page):
    names = {command.name for command in COMMANDS}
    found = re.findall(r"(?<!`)`shoal ([a-z]+)\b[^`]*`", read(page))
    assert sorted(set(found) - names) == []


@pytest.mark.parametrize("page", PAGES)
def test_routes_within_sentences_exist(page):
    for method, path in re.findall(r"`(GET|POST) (/[^\s`?]*)[^`]*`", read(page)):
        for spelling in (re.sub(r"\[.*?\]", "", path), re.sub(r"[\[\]]", "", path)):
            target = resolve(spelling.replace("/V", "/1"))
            assert target is not None, f"{page}: no route serves {path}"
            assert method in target.route.endpoints, f"{page}: {method} {path}"
            assert target.operation in OPERATIONS, f"{page}: no task has {path}"


@pytest.mark.parametrize("page", PAGES)
def test_images_exist(page):
    named = re.findall(r'(?:src|srcset)="([^"]+)"|\{image\} (\S+)', read(page))
    files = [(ROOT / page).parent / (tag or directive) for tag, directive in named]
    assert [str(file) for file in files if not file.is_file()] == []
