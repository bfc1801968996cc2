"""Install Azurite, Microsoft's emulator of Azure Storage, for the tests marked `azurite`.

    npm --npm install--> .tools/azurite --> .tools/bin/azurite-blob

    python tools/azurite.py            install it if it is missing, then print its path

Without npm, Node or a package registry it prints the reason and exits with 1; the tests that need
it are then skipped.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = "azurite@3.37.0"
PROGRAM = "azurite-blob"
_SECS = 240


def install(folder: Path) -> Path:
    """The program below `folder`, installed if it is missing. Raises RuntimeError with the reason.

    An incomplete installation is repeated the next time, because the script is written last.
    """
    home = folder / "azurite"
    script = folder / "bin" / PROGRAM
    if script.exists() and home.exists():
        return script
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise RuntimeError("it needs npm and node (Debian: npm)")
    home.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--silent", "--no-fund", "--no-audit", "--no-save"]
    command += ["--ignore-scripts", "--omit=optional", "--prefix", str(home), PACKAGE]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_SECS, cwd=home
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"npm has not installed {PACKAGE} within {_SECS} s") from None
    target = home / "node_modules" / ".bin" / PROGRAM
    if done.returncode != 0 or not target.exists():
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise RuntimeError(f"npm cannot install {PACKAGE}: {reason}")
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(
        "#!/bin/sh\n# Written by tools/azurite.py.\n"
        f'exec {shlex.quote(node)} {shlex.quote(str(target))} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    return script


def main() -> int:
    """Print the path of the program; the exit status."""
    parser = argparse.ArgumentParser(description="Install Azurite from the npm registry.")
    here = Path(__file__).resolve().parent.parent / ".tools"
    parser.add_argument("--into", type=Path, default=here, help="target folder (default .tools)")
    try:
        print(install(parser.parse_args().into.resolve()))
    except (RuntimeError, OSError) as error:
        print(f"azurite is not available: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
