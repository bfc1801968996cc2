"""Print the section of CHANGELOG.md for a tag: `python tools/release_notes.py v0.1.0`.

The release workflow publishes this text. It fails where the tag is not the version of the package
or the changelog has no section for it, so a release without notes does not happen.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def section(changelog: str, version: str) -> str:
    """The text below `## VERSION` (a date may follow), up to the next title; empty without one."""
    title = re.compile(rf"^## {re.escape(version)}(?: .*)?$", re.MULTILINE)
    found = title.search(changelog)
    if found is None:
        return ""
    return re.split(r"^## ", changelog[found.end() :], maxsplit=1, flags=re.MULTILINE)[0].strip()


def main(arguments: list[str]) -> int:
    """Print the notes; the exit status."""
    if len(arguments) != 1:
        print("usage: python tools/release_notes.py v0.1.0", file=sys.stderr)
        return 2
    version = arguments[0].removeprefix("v")
    package = (ROOT / "src" / "shoal" / "__init__.py").read_text("utf-8")
    if f'__version__ = "{version}"' not in package:
        print(f"the version in src/shoal/__init__.py is not {version}", file=sys.stderr)
        return 1
    notes = section((ROOT / "CHANGELOG.md").read_text("utf-8"), version)
    if not notes:
        print(f"CHANGELOG.md has no section '## {version}'", file=sys.stderr)
        return 1
    print(notes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
