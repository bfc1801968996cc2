"""Run fuzz targets under Atheris: `python -m fuzz [TARGET ...] --seconds 60`.

Each target runs in a process of its own, for the given time. New inputs that reach new code are
kept outside the repository, in `.tools/fuzz/TARGET`, and are where the next run begins. An input
that finds a bug is written to `.tools/fuzz/crash-…`, printed, and fails the run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_FOUND = ROOT / ".tools" / "fuzz"
_LONGEST_INPUT = 1 << 14


def main() -> int:
    """Run the targets that the command line names, or all; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all of them")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: 60)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _fuzz(arguments.targets[0], arguments.seconds)
        return 0
    from fuzz.targets import TARGETS

    unknown = set(arguments.targets) - TARGETS.keys()
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    failed = []
    for name in arguments.targets or TARGETS:
        print(f"fuzzing {name} for {arguments.seconds} s", flush=True)
        command = [sys.executable, "-m", "fuzz", name, "--child", f"--seconds={arguments.seconds}"]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "no target failed")
    return bool(failed)


def _fuzz(name: str, seconds: int) -> None:
    """Run one target in this process, which Atheris ends."""
    import atheris

    with atheris.instrument_imports(include=["shoal"]):
        from fuzz.targets import CORPUS, TARGETS
    found = _FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={_LONGEST_INPUT}",
        f"-artifact_prefix={_FOUND}/crash-{name}-",
        "-timeout=10",
        "-rss_limit_mb=4096",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    atheris.Setup([name, str(found), str(CORPUS / name), *options], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
