"""Retired terms stay out of pages and source: docs/glossary.md has the terms to use instead."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from pages import ROOT, all_pages


class Retired(NamedTuple):
    """A term that we no longer use."""

    pattern: str  # whole words, without case
    instead: str


TERMS = (
    Retired("usual way", "slow path"),
    Retired("short way", "fast path"),
    Retired("quarrels?", "GIL contention"),
    Retired("in vain", "without success"),
    Retired("familiar", "template hit, matches"),
    Retired("lanes?", "fast path, slot, connection"),
    Retired("nobody", "no client, none"),
    Retired("somebody|everybody", "a client, a reader, everyone"),
    Retired("doors?", "entry point"),
    Retired("strangers?", "full request"),
    Retired("(un)?patience", "time-out"),
    Retired("looks? again", "retry, repoll"),
    Retired("withdraws?|withdrawn|withdrew", "cancel"),
    Retired("hands? over|handed over|hand-overs?", "submit, pass"),
    Retired("company|in the hope of", "requests to batch with"),
    Retired("as ever", "as usual"),
    Retired("of one's own", "your own"),
    Retired("shines through", "is transparent"),
    Retired("whoever|whom", "the one that"),
    Retired("infer plan|plan cache|planned answer", "request template, planned responses"),
    Retired("tickets?|state book", "pending request, state store"),
    Retired("fleet|harvest|crowd|narrator|mailbox", "worker pool, measurement, printer, queue"),
)
# Legitimate uses: DLPack has lanes.
ALLOWED = {("lanes?", "src/shoal/backends/python/api/dlpack.py")}
OTHER_PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/README.md")
PAGES = [*(path.as_posix() for path in all_pages()), *OTHER_PAGES]
SOURCE_SUFFIXES = {".py", ".js", ".html", ".css"}


def expression(pattern: str) -> re.Pattern[str]:
    """Whole words, also inside of names such as `_usual_way` and `UsualWay`; see `words_of`."""
    words = pattern.replace(" ", "[ _]?")
    return re.compile(rf"(?<![a-z])(?:{words})(?![a-z])")


ANY_TERM = expression("|".join(term.pattern for term in TERMS))


def words_of(text: str) -> str:
    """`text` in lower case, with the words of names apart from each other."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()


def found(text: str) -> list[tuple[Retired, str]]:
    """Every term in `text`, and the line that has it."""
    return [
        (term, f"{number}: {line.strip()}")
        for number, line in enumerate(words_of(text).splitlines(), 1)
        if ANY_TERM.search(line)
        for term in TERMS
        if expression(term.pattern).search(line)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_no_retired_terms(page):
    uses = found((ROOT / page).read_text(encoding="utf-8"))
    assert [f"{page}:{line}: write {term.instead!r}" for term, line in uses] == []


def test_source_has_no_retired_terms():
    names = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.suffix in SOURCE_SUFFIXES
    }
    uses = [
        f"{name}:{line}: write {term.instead!r}"
        for name in sorted(names)
        for term, line in found((ROOT / name).read_text(encoding="utf-8"))
        if (term.pattern, name) not in ALLOWED
    ]
    assert uses == []


def test_classes_in_the_glossary_exist():
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    _, terms = glossary.split("## Terms of the source code")
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = re.findall(r"`([A-Z][A-Za-z]+)`", terms)
    assert [name for name in named if f"class {name}" not in source] == []


def test_terms_are_found_in_names():
    text = "the usual way\nself._usual_way()\nclass UsualWay:\nunusual ways\nThe Doors of a Fleet"
    assert [(term.pattern.partition("|")[0], line.split(":")[0]) for term, line in found(text)] == [
        ("usual way", "1"),
        ("usual way", "2"),
        ("usual way", "3"),
        ("doors?", "5"),
        ("fleet", "5"),
    ]
