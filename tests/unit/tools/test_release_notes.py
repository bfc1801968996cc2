"""A tag's release notes are its section of the changelog."""

from __future__ import annotations

import pytest

CHANGELOG = """\
# Changelog

## Unreleased

- next

## 0.2.0 (2027-01-31)

- second
  line

## 0.1.0

- first
"""


@pytest.fixture
def notes(tool, tmp_path, monkeypatch):
    module = tool("release_notes")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "src" / "shoal").mkdir(parents=True)
    (tmp_path / "src" / "shoal" / "__init__.py").write_text('__version__ = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    return module


@pytest.mark.parametrize(
    ("version", "text"),
    [("0.2.0", "- second\n  line"), ("0.1.0", "- first"), ("0.3.0", ""), ("0.1", "")],
)
def test_the_section_of_a_version(notes, version, text):
    assert notes.section(CHANGELOG, version) == text


def test_a_tag_of_the_version_prints_its_notes(notes, capsys):
    assert notes.main(["v0.2.0"]) == 0
    assert capsys.readouterr().out == "- second\n  line\n"


def test_a_tag_of_another_version_is_refused(notes, capsys):
    assert notes.main(["v0.1.0"]) == 1
    assert "is not 0.1.0" in capsys.readouterr().err


def test_a_version_without_notes_is_refused(notes, tmp_path, capsys):
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n- next\n")
    assert notes.main(["v0.2.0"]) == 1
    assert "has no section '## 0.2.0'" in capsys.readouterr().err


def test_the_version_of_the_source_has_notes(tool, root):
    changelog = (root / "CHANGELOG.md").read_text("utf-8")
    assert changelog.startswith("# Changelog\n\n## Unreleased\n")
    assert tool("release_notes").section(changelog, tool("version").base())


def test_usage(notes):
    assert notes.main([]) == 2
