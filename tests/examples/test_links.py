"""Links between the repository's own pages lead to files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for folder in (".", "decisions", "docs", "docs/deploy", "examples", "benchmarks")
    for page in (ROOT / folder).glob("*.md")
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    own = [link for link in links if "://" not in link]
    assert [link for link in own if not (page.parent / link).exists()] == []


def test_every_decision_is_listed():
    listed = (ROOT / "decisions" / "README.md").read_text(encoding="utf-8")
    pages = [page.name for page in (ROOT / "decisions").glob("0*.md")]
    assert [name for name in pages if f"({name})" not in listed] == []
