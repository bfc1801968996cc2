"""A virtual environment for each peer, created on first use.

    .tools/bench/<name>/   the installed requirements; `.installed` lists them

Peers need different versions of the same libraries, so they do not share an environment with each
other or with the tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.places import HOME, ROOT

INSTALL_WITHIN_SECS = 900

RUNTIME = ("onnxruntime>=1.20",)  # the same for everybody: pip takes the newest
PICTURES = ("opencv-python-headless==4.11.0.86",)  # runs with every numpy that a peer asks for
RUNNER = (
    *RUNTIME,
    *PICTURES,
    "matplotlib>=3.8",
    "numpy>=1.26",
    "onnx>=1.16",
    "psutil>=5.9",
    # Not [grpc]: its extras ask for more than messages and a channel.
    "grpcio>=1.76",
    "protobuf>=6.31,<7",
    "tritonclient>=2.64",
)

_LIST_VERSIONS = """
import json, sys
from importlib import metadata
names = {one.metadata["Name"]: one.version for one in metadata.distributions()}
print(json.dumps(names))
"""


class Unavailable(Exception):
    """A peer or a program is not available on this machine; the text is the reason."""


def ensure(name: str, requirements: tuple[str, ...], edition: str = "") -> Path:
    """The Python of environment `name` with `requirements` in it, installed again when these or
    `edition` change.

    Raises Unavailable with pip's own reason. An incomplete environment is created
    again, because the stamp is written last.
    """
    folder = HOME / name
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    # Several trees may share the folder: Shoal's source is found by PYTHONPATH, not by this.
    named = [one.replace(str(ROOT), ".") for one in requirements]
    wanted = "\n".join([sys.version, *named, edition]) + "\n"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"installing {name}: {' '.join(requirements)}", flush=True)
    if not python.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _run([str(ROOT / "tools" / "make_venv.sh"), sys.executable, str(folder)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *requirements])
    stamp.write_text(wanted, encoding="utf-8")
    return python


def versions(name: str, packages: tuple[str, ...]) -> dict[str, str]:
    """Versions of `packages` in environment `name`; without those that are not installed."""
    python = HOME / name / "bin" / "python"
    if not python.exists():
        return {}
    listed = subprocess.run([python, "-c", _LIST_VERSIONS], capture_output=True, check=False)
    if listed.returncode != 0:
        return {}
    found = {_normal(key): value for key, value in json.loads(listed.stdout).items()}
    return {name: found[_normal(name)] for name in packages if _normal(name) in found}


def _run(line: list[str]) -> None:
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, check=False, timeout=INSTALL_WITHIN_SECS
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"not installed within {INSTALL_WITHIN_SECS} s") from None
    if done.returncode != 0:
        errors = [text for text in done.stderr.splitlines() if text.lower().startswith("error")]
        last = (errors or done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"pip: {last.strip()[:300]}")


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")
