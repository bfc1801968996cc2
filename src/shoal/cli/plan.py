"""`shoal plan`: how many replicas a load needs, from a report of `shoal perf`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence

from shoal.cli.parser import CommandParser, help_requested, integer
from shoal.config.options import OptionError

HELP = """\
usage: shoal plan REPORT --rate N --p99-ms N [OPTION ...]

How many replicas of a server a load needs, and their memory and cost. REPORT is a measurement of
one replica at several loads: the table of `shoal perf -f FILE.csv` or of perf_analyzer, or what
--profile-export-file wrote. The plan prints what it assumes.

Examples:
  shoal perf -m resnet --request-rate-range 50:500:50 --request-distribution poisson -f resnet.csv
  shoal plan resnet.csv --rate 5000 --p99-ms 50
  shoal plan resnet.csv --rate 5000 --p99-ms 50 --price-per-hour 0.40 --memory-mb 1200
  shoal plan resnet.csv --rate 2000 --peak-factor 3 --p99-ms 50 --failures 2 --json

Load:
  --rate N               inferences per second for all replicas together, as the report counts them
  --p99-ms MS            the highest allowed p99 latency, in milliseconds
  --peak-factor N        the highest rate divided by --rate [default: 1]

Reserve:
  --headroom SHARE       share of a replica's capacity to leave unused, from 0 to 0.95
                         [default: 0.3]
  --failures N           replicas that may be missing at a time: failed, or being updated
                         [default: 1]

Resources of one replica:
  --memory-mb MB         its memory
  --metrics URL          read its memory from a running server, http://localhost:8002/metrics, or
                         from a file with these metrics
  --price-per-hour N     what its machine costs, in any currency

Results:
  --json                 print the plan as JSON

The exit code is 0; 2 if one replica misses the target even at the lowest measured load; 1 for other
errors.
"""
TARGET_MISSED = 2


def run(words: Sequence[str]) -> int:
    """Run `shoal plan`; returns the exit code. Raises OptionError and InvalidArgument."""
    if not words or help_requested(words):
        print(HELP, end="")
        return 0
    chosen = _parse(words)

    from shoal.plan import text
    from shoal.plan.capacity import Demand, TargetMissed, plan
    from shoal.plan.memory import read_memory_mb
    from shoal.plan.report import read_report

    report = read_report(chosen.report)
    memory_mb, gpu_memory_mb = chosen.memory_mb, report.gpu_memory_mb
    if chosen.metrics:
        memory_mb, on_gpus = read_memory_mb(chosen.metrics)
        gpu_memory_mb = gpu_memory_mb or on_gpus
    resources = text.Resources(
        memory_mb, gpu_memory_mb, chosen.price_per_hour, memory_is_measured=bool(chosen.metrics)
    )
    demand = Demand(
        chosen.rate, chosen.p99_ms, chosen.peak_factor, chosen.headroom, chosen.failures
    )
    try:
        made = plan(report.levels, demand)
    except TargetMissed as error:
        print(f"error: {error.message}", file=sys.stderr)
        return TARGET_MISSED
    if chosen.json:
        print(json.dumps(text.document(made, report, resources), indent=2))
    else:
        print("\n".join(text.lines(made, report, resources)))
    return 0


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser("shoal plan")
    above_zero = _number(0)
    parser.add_argument("report", metavar="REPORT")
    parser.add_argument("--rate", type=above_zero, required=True)
    parser.add_argument("--p99-ms", type=above_zero, required=True)
    parser.add_argument("--peak-factor", type=_number(1, including=True), default=1.0)
    parser.add_argument("--headroom", type=_number(0, 0.95, including=True), default=0.3)
    parser.add_argument("--failures", type=integer(0, 1000), default=1)
    parser.add_argument("--memory-mb", type=above_zero)
    parser.add_argument("--metrics", default="")
    parser.add_argument("--price-per-hour", type=_number(0, including=True))
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(list(words))
    if chosen.memory_mb is not None and chosen.metrics:
        raise OptionError("--memory-mb and --metrics are alternatives; choose one of them")
    return chosen


def _number(low: float, high: float = 1e12, *, including: bool = False) -> Callable[[str], float]:
    """An argparse type: a number above `low`, or with `including` from it on, up to `high`."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if (low <= value if including else low < value) and value <= high:
            return value
        start = f"from {low:g}" if including else f"above {low:g}"
        bounds = start if high == 1e12 else f"{start} to {high:g}"
        raise argparse.ArgumentTypeError(f"expected a number {bounds}, found '{text}'")

    return convert
