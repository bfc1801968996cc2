"""Write constraints.txt: the newest versions that fit together, for one Python on one platform.

    python tools/constraints.py        (`make constraints`)

pip resolves shoal with its extras dev, deploy, docs and demo without installing anything. Each line
carries the environment it was resolved for; pip ignores the line on any other Python or platform,
and takes the newest versions that pyproject.toml allows there.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OURS = {"shoal", "shoal-demo", "shoal-tritonserver"}
HEAD = """\
# The versions with which `make test` runs; written by `make constraints` (tools/constraints.py).
# Lines for another Python or platform are ignored by pip.
"""


def pins(report: dict[str, Any], environment: str) -> str:
    """The lines for the packages of an installation report of pip."""
    lines = []
    for package in report["install"]:
        name, version = (package["metadata"][key] for key in ("name", "version"))
        name = name.lower().replace("_", "-").replace(".", "-")
        if name not in OURS:
            version = version.partition("+")[0]  # builds of one version differ by index
            lines.append(f"{name}=={version} ; {environment}\n")
    return HEAD + "".join(sorted(lines))


def main() -> None:
    """Resolve for this interpreter and platform, and write the file."""
    environment = (
        f"python_version == '{platform.python_version().rpartition('.')[0]}'"
        f" and sys_platform == '{sys.platform}' and platform_machine == '{platform.machine()}'"
    )
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
        command += ["--quiet", "--disable-pip-version-check", "--report", str(report)]
        command += ["--editable", ".[dev,deploy,docs,demo,tritonserver]", "--editable", "demo"]
        command += ["--editable", "packages/tritonserver"]
        subprocess.run(command, cwd=ROOT, check=True)
        found = json.loads(report.read_text("utf-8"))
    (ROOT / "constraints.txt").write_text(pins(found, environment), "utf-8")


if __name__ == "__main__":
    main()
