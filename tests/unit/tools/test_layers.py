"""The layers are written in pyproject.toml; ARCHITECTURE.md has a copy that a tool makes."""

from __future__ import annotations

import re

import pytest

PROJECT = {
    "tool": {
        "importlinter": {
            "contracts": [
                {"type": "layers", "layers": ["(cli) | (testing)", "(server)", "errors | (logs)"]},
                {"type": "forbidden"},
            ]
        }
    }
}


@pytest.fixture
def layers(tool):
    return tool("layers")


def test_the_block_is_made_from_the_contract(layers):
    page = f"above\n{layers.BEGIN}old\n{layers.END}below\n"
    assert layers.with_layers(page, layers.layers(PROJECT)) == (
        f"above\n{layers.BEGIN}\n    cli | testing > server > errors | logs\n\n{layers.END}below\n"
    )


def test_a_page_without_the_markers_is_refused(layers):
    with pytest.raises(ValueError, match="unpack"):
        layers.with_layers("a page", ["cli"])


def test_architecture_has_the_current_layers(layers):
    assert layers.main(["--check"]) == 0


def test_no_other_page_repeats_them(root):
    pages = [root / "CONTRIBUTING.md", root / "README.md", *(root / "docs").glob("**/*.md")]
    repeated = [page.name for page in pages if re.search(r"> wire\b.*> core\b", page.read_text())]
    assert repeated == []
