"""deploy/conda: the recipe names the version and the dependencies of pyproject.toml."""

from __future__ import annotations

import re

import pytest

yaml = pytest.importorskip("yaml")


@pytest.fixture(scope="module")
def recipe(root):
    return yaml.safe_load((root / "deploy" / "conda" / "recipe.yaml").read_text("utf-8"))


@pytest.fixture(scope="module")
def pyproject(root):
    return (root / "pyproject.toml").read_text("utf-8")


def test_the_version_is_that_of_the_source(recipe, root):
    source = (root / "src" / "shoal" / "__init__.py").read_text("utf-8")
    assert f'__version__ = "{recipe["context"]["version"]}"' in source


def test_the_dependencies_are_those_of_the_package(recipe, pyproject):
    listed = re.search(r"^dependencies = \[(.*?)^\]", pyproject, re.MULTILINE | re.DOTALL)[1]
    own = {
        f"{name} {bound}"
        for name, bound in re.findall(r'^ *"([\w-]+)(>=[\w.]+)', listed, re.MULTILINE)
    }
    python = re.search(r'^requires-python = "(.+)"', pyproject, re.MULTILINE)[1]
    assert set(recipe["requirements"]["run"]) == {*own, f"python {python}", "__unix"}


def test_the_commands_are_those_of_the_package(recipe, pyproject):
    listed = pyproject.split("[project.scripts]\n")[1].split("\n\n")[0]
    assert recipe["build"]["python"]["entry_points"] == listed.replace('"', "").splitlines()
