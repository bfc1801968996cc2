"""The version of a build: from a tag, a commit, an archive or a source distribution."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest


@pytest.fixture
def version(tool):
    return tool("version")


@pytest.fixture
def tree(tmp_path):
    """A tree whose next version is 0.2.0."""
    return made(tmp_path, "0.2.0")


def made(folder, version):
    package = folder / "src" / "shoal"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(
        f'try:\n    pass\nexcept ImportError:\n    __version__ = "{version}"\n'
    )
    return folder


def git(folder, *words):
    if shutil.which("git") is None:
        pytest.skip("needs git")
    settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    subprocess.run(("git", *settings, *words), cwd=folder, check=True, capture_output=True)


def commit(folder, *, tag=""):
    git(folder, "commit", "--allow-empty", "--message", "a change")
    if tag:
        git(folder, "tag", tag)


def test_an_archive_has_the_version_of_the_source(version, tree):
    assert version.version(tree) == "0.2.0"


def test_a_clone_without_tags_names_the_commit(version, tree):
    git(tree, "init")
    assert version.version(tree) == "0.2.0"  # there is no commit yet
    commit(tree)
    assert re.fullmatch(r"0\.2\.0\+g[0-9a-f]{7,}", version.version(tree))


def test_tags(version, tree):
    git(tree, "init")
    commit(tree, tag="v0.2.0")
    git(tree, "tag", "not-a-version")
    assert version.version(tree) == "0.2.0"
    commit(tree)
    commit(tree)
    assert re.fullmatch(r"0\.2\.0\.post2\+g[0-9a-f]{7,}", version.version(tree))
    made(tree, "0.3.0")
    assert re.fullmatch(r"0\.3\.0\.dev2\+g[0-9a-f]{7,}", version.version(tree))
    commit(tree, tag="v0.3.0")
    assert version.version(tree) == "0.3.0"


def test_a_folder_inside_of_another_clone_is_not_that_clone(version, tmp_path):
    git(tmp_path, "init")
    commit(tmp_path, tag="v9.9.9")
    assert version.version(made(tmp_path / "unpacked", "0.2.0")) == "0.2.0"


def test_a_source_distribution_keeps_its_version(version, tree):
    (tree / "PKG-INFO").write_text(
        "Metadata-Version: 2.4\nName: shoal\nVersion: 0.2.0.post2+gabc\n\nVersion: no\n"
    )
    assert version.version(tree) == "0.2.0.post2+gabc"


def test_a_tree_without_a_version_is_an_error(version, tree):
    (tree / "src" / "shoal" / "__init__.py").write_text("")
    with pytest.raises(ValueError, match="has no version"):
        version.version(tree)
