"""Three distributions, one version: `shoal`, `shoal-demo` with the models of the demo, and
`shoal-tritonserver` with a module of Triton's name."""

from __future__ import annotations

import re

import shoal
import shoal_demo


def test_the_extra_demo_names_the_version_of_both(root):
    pyproject = (root / "pyproject.toml").read_text("utf-8")
    assert re.findall(r'"shoal-demo==([^"]+)"', pyproject) == [shoal.__version__]
    assert shoal_demo.__version__ == shoal.__version__


def test_the_extra_tritonserver_names_the_version_of_both(root):
    pyproject = (root / "pyproject.toml").read_text("utf-8")
    alias = (root / "packages" / "tritonserver" / "pyproject.toml").read_text("utf-8")
    named = re.findall(r'"shoal-tritonserver==([^"]+)"', pyproject)
    named += re.findall(r'^version = "([^"]+)"|"shoal==([^"]+)"', alias, re.MULTILINE)
    assert named == [shoal.__version__, (shoal.__version__, ""), ("", shoal.__version__)]


def test_the_package_of_the_server_holds_no_models(root):
    large = [path for path in (root / "src").rglob("*") if path.stat().st_size > 500_000]
    assert large == []
