"""The version of a build; hatchling calls `version`, and writes it to src/shoal/_version.py.

    at a tag v0.2.0                         0.2.0
    three commits after it                  0.2.0.post3+g1a2b3c4
    after it, with 0.3.0 as next version    0.3.0.dev3+g1a2b3c4
    a clone without tags                    0.2.0+g1a2b3c4
    no clone: an archive                    0.2.0
    a source distribution                   the version with which it was made

The version without a tag is the one in src/shoal/__init__.py: that of the last release, or of the
next one once its changes begin. setuptools-scm would begin at 0.1 in a clone without tags, which
the other two distributions of this repository, with the same version, would not accept.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version(root: Path = ROOT) -> str:
    """The version of the tree in `root`."""
    made = root / "PKG-INFO"
    if made.exists():
        return _found(r"^Version: (.+)$", made)
    own = base(root)
    if not (root / ".git").exists():
        return own
    described = _git(root, "describe", "--tags", "--long", "--match", "v[0-9]*")
    if not described:
        commit = _git(root, "rev-parse", "--short", "HEAD")
        return f"{own}+g{commit}" if commit else own
    tag, distance, commit = described.rsplit("-", 2)
    release = tag.removeprefix("v")
    if distance == "0":
        return release
    kind = "post" if release == own else "dev"
    return f"{own}.{kind}{distance}+{commit}"


def base(root: Path = ROOT) -> str:
    """The version in the source."""
    return _found(r'__version__ = "(.+)"$', root / "src" / "shoal" / "__init__.py")


def _found(pattern: str, path: Path) -> str:
    match = re.search(pattern, path.read_text("utf-8"), re.MULTILINE)
    if match is None:
        raise ValueError(f"{path} has no version")
    return match[1]


def _git(root: Path, *words: str) -> str:
    """What git prints; nothing if it fails or is not installed."""
    try:
        done = subprocess.run(
            ("git", *words),  # noqa: S607
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
