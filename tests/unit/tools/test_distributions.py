"""Two distributions, one version: `shoal`, and `shoal-demo` with the models of the demo."""

from __future__ import annotations

import re

import shoal
import shoal_demo


def test_the_extra_demo_names_the_version_of_both(root):
    pyproject = (root / "pyproject.toml").read_text("utf-8")
    assert re.findall(r'"shoal-demo==([^"]+)"', pyproject) == [shoal.__version__]
    assert shoal_demo.__version__ == shoal.__version__


def test_the_package_of_the_server_holds_no_models(root):
    large = [path for path in (root / "src").rglob("*") if path.stat().st_size > 500_000]
    assert large == []
