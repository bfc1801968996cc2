"""Three distributions, one version: `shoal`, `shoal-demo` with the models of the demo, and
`shoal-tritonserver` with a module of Triton's name."""

from __future__ import annotations

import re

import pytest

import shoal
import shoal_demo


@pytest.fixture
def version(tool):
    """The version in the source; that of a build may name a commit, too."""
    return tool("version").base()


def test_the_version_of_a_build_is_that_of_the_source(version):
    assert shoal.__version__.startswith(version), "install shoal again: its version has changed"


def test_the_extra_demo_names_the_version_of_both(root, version):
    pyproject = (root / "pyproject.toml").read_text("utf-8")
    assert re.findall(r'"shoal-demo==([^"]+)"', pyproject) == [version]
    assert shoal_demo.__version__ == version


def test_the_extra_tritonserver_names_the_version_of_both(root, version):
    pyproject = (root / "pyproject.toml").read_text("utf-8")
    alias = (root / "packages" / "tritonserver" / "pyproject.toml").read_text("utf-8")
    named = re.findall(r'"shoal-tritonserver==([^"]+)"', pyproject)
    named += re.findall(r'^version = "([^"]+)"|"shoal==([^"]+)"', alias, re.MULTILINE)
    assert named == [version, (version, ""), ("", f"{version}.*")]


def test_the_package_of_the_server_holds_no_models(root):
    large = [path for path in (root / "src").rglob("*") if path.stat().st_size > 500_000]
    assert large == []
