"""Package the Helm chart of a release: `tools/package_chart.py IMAGE FOLDER`.

The chart in the repository names no registry. That of a release has the image of the release as its
default, so that it can be installed without further values. Needs helm; prints the path of
the package.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

CHART = Path(__file__).resolve().parent.parent / "deploy" / "helm" / "shoal"
# Where the image is named, and how.
PLACES = {
    "values.yaml": "\n  repository: {}\n",
    "README.md": '| `image.repository` | text | `"{}"` |',
}
UNNAMED = "shoal"


def package(image: str, folder: Path) -> Path:
    """The package in `folder` of the chart with `image` as its default.

    Raises ValueError if the chart does not name its image as expected, FileNotFoundError without
    helm, and CalledProcessError.
    """
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / CHART.name
        shutil.copytree(CHART, copy)
        for name, line in PLACES.items():
            text = (copy / name).read_text("utf-8")
            if text.count(line.format(UNNAMED)) != 1:
                raise ValueError(f"{name} of the chart does not have '{line.format(UNNAMED)}' once")
            text = text.replace(line.format(UNNAMED), line.format(image))
            (copy / name).write_text(text, "utf-8")
        path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", "")))
        program = shutil.which("helm", path=path)
        if program is None:
            raise FileNotFoundError("helm is missing")
        words = [program, "package", str(copy), "--destination", str(folder)]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
    return Path(done.stdout.rpartition(": ")[2].strip())


def main(arguments: Sequence[str]) -> int:
    """Package, and print where; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image", help="without a tag, as ghcr.io/owner/shoal")
    parser.add_argument("folder", type=Path)
    chosen = parser.parse_args(arguments)
    try:
        print(package(chosen.image, chosen.folder))
    except (ValueError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(error.stderr, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
