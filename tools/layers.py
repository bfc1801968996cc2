"""Write the import layers of pyproject.toml into ARCHITECTURE.md: `tools/layers.py [--check]`.

The contract of import-linter is the only place where the layers are written down. The block between
the two markers below is made from it; --check fails where the two differ.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest depends on it there
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
BEGIN = "<!-- layers: written by tools/layers.py from pyproject.toml -->\n"
END = "<!-- end of layers -->\n"


def layers(project: dict[str, Any]) -> list[str]:
    """The layers from the top down, as `perf | image`."""
    contracts = project["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each["type"] == "layers")
    return [layer.replace("(", "").replace(")", "") for layer in contract["layers"]]


def with_layers(page: str, names: list[str]) -> str:
    """The page with the block between the markers replaced. ValueError where one is missing."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n    {' > '.join(names)}\n\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Write the block, or with --check only compare it; the exit status."""
    page = ROOT / "ARCHITECTURE.md"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    written = page.read_text("utf-8")
    current = with_layers(written, layers(project))
    if arguments == ["--check"]:
        if current != written:
            print("ARCHITECTURE.md: the layers are not those of pyproject.toml; run `make layers`")
        return int(current != written)
    page.write_text(current, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
