"""Time to ready, memory, time of `--help`, and size of the installation.

    python -m benchmarks.startup [--runs 5] [--json FILE]

Medians over several runs; the first run of each kind is discarded, since it fills the page cache
and writes bytecode. Limits are printed with the figures, not asserted: machines differ.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import time
from importlib import metadata, util
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.serving import command, serve

LIMITS = {
    "ready_secs": 1.5,
    "resident_mb": 120.0,
    "help_cpu_ms": 150.0,
    "installed_mb": 250.0,
}


def measure_serving(runs: int) -> dict[str, float]:
    """Seconds from `shoal serve --demo` to ready, and resident memory then."""
    ready, resident = [], []
    for _ in range(runs + 1):
        with serve("--demo") as server:
            ready.append(server.ready_secs)
            resident.append(server.resident_bytes() / 1e6)
    return {
        "ready_secs": round(statistics.median(ready[1:]), 3),
        "resident_mb": round(statistics.median(resident[1:]), 1),
    }


def measure_help(runs: int) -> dict[str, float]:
    """Processor and wall-clock time of `shoal --help`."""
    cpu, wall = [], []
    for _ in range(runs + 1):
        before, begun = os.times(), time.perf_counter()
        subprocess.run([command(), "--help"], check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        wall.append(time.perf_counter() - begun)
        children = after.children_user + after.children_system
        cpu.append(children - before.children_user - before.children_system)
    return {
        "help_cpu_ms": round(statistics.median(cpu[1:]) * 1e3, 1),
        "help_wall_ms": round(statistics.median(wall[1:]) * 1e3, 1),
    }


def installed_sizes() -> dict[str, float]:
    """Megabytes on disk of shoal and of everything it requires without extras, largest first."""
    sizes: dict[str, float] = {}
    waiting = ["shoal"]
    while waiting:
        name = _normal(waiting.pop())
        if name in sizes:
            continue
        distribution = metadata.distribution(name)
        sizes[name] = round(_size_bytes(name, distribution) / 1e6, 1)
        waiting += _requirements(distribution)
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _requirements(distribution: metadata.Distribution) -> list[str]:
    """Names it needs on this platform; without those of extras."""
    from packaging.requirements import Requirement

    needed = [Requirement(line) for line in distribution.requires or []]
    return [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]


def _size_bytes(name: str, distribution: metadata.Distribution) -> int:
    if name == "shoal":  # an editable installation lists no files of its own
        spec = util.find_spec("shoal")
        assert spec is not None
        assert spec.origin is not None
        files = [path for path in Path(spec.origin).parent.rglob("*") if path.is_file()]
    else:
        files = [Path(str(distribution.locate_file(file))) for file in distribution.files or []]
    return sum(file.stat().st_size for file in files if file.exists())


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Measure everything and print a table, then the same as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="how often each figure is taken")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()

    where = describe()
    figures = measure_serving(arguments.runs) | measure_help(arguments.runs)
    sizes = installed_sizes()
    figures["installed_mb"] = round(sum(sizes.values()), 1)

    print(f"{'figure':<16}{'median':>10}{'limit':>10}")
    for name, value in figures.items():
        limit = LIMITS.get(name)
        verdict = "" if limit is None else f"{limit:>10}{'' if value < limit else '  OVER'}"
        print(f"{name:<16}{value:>10}{verdict}")
    print("\ninstalled, in MB (byte code included where it was written)")
    for name, size in sizes.items():
        print(f"  {name:<14}{size:>8}")
    report = {"machine": where, "runs": arguments.runs, **figures, "installed": sizes}
    text = json.dumps(report, indent=2)
    print(f"\n{text}")
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
