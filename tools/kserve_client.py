"""Install KServe's Python package for the tests: `python tools/kserve_client.py`.

    PyPI --pip install --no-deps--> .tools/kserve --> .tools/bin/kserve-python

The package pins old versions of what the tests use (psutil), and what it needs in all takes 450 MB
and 50 s to install: its clients need 50 MB of that and 3 s. So these are installed into a folder of
their own, and `kserve-python` is the Python of the virtual environment with that folder in front.
`tests/compat/kserve_sdk.py` says which parts of the package can be used that way.

Without a package index it prints the reason and exits with 1; tests marked `kserve` are skipped.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "kserve==0.21.0",
    "cloudevents>=1.6.2,<2",
    "deprecation>=2.1",
    "httpcore>=1.0",
    "httpx>=0.27.2,<1",
    "pandas>=2.2,<3",
    "pytz>=2024.1",
    "tabulate>=0.9,<1",
)


def install(folder: Path) -> Path:
    """The script that starts Python with the package, installed if it is missing.

    Raises RuntimeError with the reason. It is written last, so that an incomplete installation is
    repeated the next time.
    """
    script = folder / "bin" / "kserve-python"
    if script.exists():
        return script
    packages = folder / "kserve"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-compile", "--upgrade", "--target", str(packages), *PACKAGES]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["pip install failed"])[-1]
        raise RuntimeError(f"pip cannot install it: {reason}")
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(
        "#!/bin/sh\n"
        "# Written by tools/kserve_client.py: Python with KServe's package.\n"
        f"export PYTHONPATH={shlex.quote(str(packages))}${{PYTHONPATH:+:$PYTHONPATH}}\n"
        f'exec {shlex.quote(sys.executable)} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    return script


def main() -> int:
    """Install it and print the script; the exit status."""
    try:
        print(install(ROOT / ".tools"))
    except RuntimeError as error:
        print(f"KServe's package is not available: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
