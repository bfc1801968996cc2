"""`shoal tune`: finds a good config for a model by measuring."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli import arguments
from shoal.cli.check import preparation_settings
from shoal.cli.parser import (
    CommandParser,
    check_html,
    help_requested,
    integer,
    integers,
    print_line,
)
from shoal.config.options import BY_FLAG, OptionError, Options

if TYPE_CHECKING:  # imported after the options are checked
    from shoal.tune.goal import Goal
    from shoal.tune.run import TunedModel, TuneResult

HELP = """\
usage: shoal tune MODEL [--repository PATH] [OPTION ...]

Find a good config for a model (max_batch_size, queue delay, instances, threads) by measuring it on
this machine. MODEL is the folder of a model, its address (s3://...), a model file, or with
--repository the name of a model in it. A server runs during the search. Files are written only on
request.

Examples:
  shoal tune models/resnet                                   the most throughput
  shoal tune resnet --repository models --latency-limit 20ms  the most with p99 within 20 ms
  shoal tune resnet50.onnx --objective latency --output config.pbtxt
  shoal tune models/resnet --write --report tune.html        change its config.pbtxt

Goal:
  --objective throughput|latency  what to optimise [default: throughput]
  --latency-limit TIME            the highest allowed latency: 20ms, 500us, 0.1s
  --percentile N                  the percentile of latency to use [default: 99]

Load:
  --concurrency N[,N...]          concurrent clients; with a limit several numbers, of which the
                                  best result within the limit is used
                                  [default: 32; 1,8,32 with a limit; 4 for latency]
  -b, --batch-size ROWS           rows per request [default: 1]
  -i, --protocol http|grpc        the protocol [default: http]
  --input-data zero|random|PATH   the data to send, as for shoal perf [default: random]
  --shape NAME:D1,D2,...          shape of an input with dynamic dims, without the batch; may be
                                  repeated
  --window TIME                   length of a window; a short measurement has three [default: 400ms]
  --request-count N               measure this number of requests instead
  --workers N                     sending processes; more than 1 for models that are faster than
                                  one process can send [default: 1]

Search:
  --max-batch N                   the largest max_batch_size to try [default: 64]
  --max-instances N               the most instances to try [default: 2 per core]

Results:
  --output FILE                   write the config to this file; replaces one only with --force
  --write                         write the model's own config.pbtxt
  --force                         let --output replace a file
  --report FILE.html              write a page with all measurements

Without --output and --write the config is printed. The exit code is 0; 2 if no config met the limit
(then no config is written); 1 for other errors. The options of `shoal serve` are accepted too;
--backend-config, --backend-directory and --gpu-fallback have an effect here.
"""
LIMIT_NOT_MET = 2
_TIMES = {"us": 1, "µs": 1, "ms": 1000, "s": 1_000_000}
_LARGEST = 1_000_000
_count = integer(1, _LARGEST)


def run(words: Sequence[str]) -> int:
    """Run `shoal tune`; returns the exit code. Raises OptionError and other ShoalErrors."""
    if not words or help_requested(words):
        print(HELP, end="")
        return 0
    chosen, rest = _parse(words)
    options = arguments.parse(rest)

    from shoal.cli import remote
    from shoal.storage.address import is_address

    words = options.model_repository
    path = chosen.repository or next(iter(words), "")
    if not is_address(path):
        return _tune(chosen, options)
    name = next(iter(words if chosen.repository else words[1:]), "")
    with remote.local_model(options, path, name, preparation_settings(options)) as local:
        (folder,) = map(str, local.paths)
        if chosen.repository:
            chosen.repository = folder
        else:
            options = replace(options, model_repository=(folder, *words[1:]))
        return _tune(chosen, options, lambda file: remote.put_config(options, path, name, file))


def _tune(
    chosen: argparse.Namespace,
    options: Options,
    written: Callable[[Path], str] | None = None,
) -> int:
    """Measure and conclude. `written` stores the model's config where it came from."""
    from shoal.tune import run as tuning
    from shoal.tune.configs import Bounds
    from shoal.tune.goal import Goal
    from shoal.tune.measuring import LoadPlan
    from shoal.tune.text import Table

    model = tuning.find(options.model_repository, chosen.repository, preparation_settings(options))
    target = _target(chosen, model)
    goal = Goal(chosen.objective, chosen.latency_limit, chosen.percentile)
    levels = tuple(sorted(chosen.concurrency)) or goal.levels()
    plan = LoadPlan(
        rows=chosen.batch_size,
        percentile=chosen.percentile,
        window_secs=chosen.window / 1e6,
        request_count=chosen.request_count,
        workers=chosen.workers,
        protocol=chosen.protocol,
        input_data=tuple(chosen.input_data),
        shape=tuple(chosen.shape),
    )
    bounds = Bounds(chosen.max_batch, chosen.max_instances, chosen.batch_size)
    for note in (*model.warnings, *model.subject.fixed):
        print(note, file=sys.stderr)
    terminal = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
    table = Table(goal, print_line, terminal)
    table.head()
    try:
        outcome = tuning.run(model, goal, plan, bounds, levels, options, table)
    finally:
        table.clear()
    return _conclude(outcome, goal, target, chosen.report, written)


def _conclude(
    outcome: TuneResult,
    goal: Goal,
    target: tuple[Path, str] | None,
    report: str,
    written: Callable[[Path], str] | None,
) -> int:
    from shoal.tune import run as tuning
    from shoal.tune.report import page
    from shoal.tune.text import change_lines, verdict

    print()
    for line in verdict(outcome.finding, goal, outcome.space):
        print(line)
    if report:
        tuning.write(Path(report), page(outcome), "--report")
        print(f"wrote {report}", file=sys.stderr)
    if not outcome.finding.met:
        return LIMIT_NOT_MET
    for line in change_lines(outcome.changes):
        print(line)
    if target is None:
        print()
        print(outcome.text, end="")
        return 0
    path, flag = target
    tuning.write(path, outcome.text, flag)
    where = written(path) if written is not None and flag == "--write" else path
    print(f"wrote {where}", file=sys.stderr)
    return 0


def _target(chosen: argparse.Namespace, model: TunedModel) -> tuple[Path, str] | None:
    """The file of the config and its flag, checked before measuring. Raises InvalidArgument."""
    from shoal.tune.run import check_writable

    if chosen.report:
        check_writable(Path(chosen.report), "--report", overwrite=True)
    if chosen.output:
        check_writable(Path(chosen.output), "--output", overwrite=chosen.force)
        return Path(chosen.output), "--output"
    if not chosen.write:
        return None
    path = model.config_file
    if path is None:
        raise OptionError(
            f"--write: '{model.repository}' is a file without a model folder, so it has no "
            f"config.pbtxt; name a file with --output"
        )
    check_writable(path, "--write", overwrite=True)
    return path, "--write"


def _parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options of `shoal tune`, and the other words: a model and options of `shoal serve`."""
    parser = CommandParser("shoal tune")
    parser.add_argument("--repository", "--model-repository", default="")
    parser.add_argument("--objective", choices=["throughput", "latency"], default="throughput")
    parser.add_argument("--latency-limit", type=_time, default=0.0)
    parser.add_argument("--percentile", type=integer(1, 99), default=99)
    parser.add_argument("--concurrency", type=integers(1, _LARGEST), default=())
    parser.add_argument("-b", "--batch-size", type=_count, default=1)
    parser.add_argument("-i", "--protocol", choices=["http", "grpc"], default="http")
    parser.add_argument("--input-data", action="append", default=[])
    parser.add_argument("--shape", action="append", default=[])
    parser.add_argument("--window", type=_time, default=400_000.0)
    parser.add_argument("--request-count", type=_count, default=0)
    parser.add_argument("--workers", type=_count, default=1)
    parser.add_argument("--max-batch", type=_count, default=64)
    parser.add_argument("--max-instances", type=_count, default=0)
    parser.add_argument("--output", default="")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--report", default="")
    chosen, rest = parser.parse_known_args(list(words))
    if chosen.output and chosen.write:
        raise OptionError("--output and --write are alternatives; choose one of them")
    if chosen.force and not chosen.output:
        raise OptionError("--force needs --output; --write always overwrites config.pbtxt")
    if len(chosen.concurrency) > 1 and (chosen.objective == "latency" or not chosen.latency_limit):
        raise OptionError(
            "--concurrency takes several numbers only with --latency-limit and --objective "
            "throughput; name one number"
        )
    check_html(chosen.report)
    own = re.findall(r"(?m)^  (?:-\w, )?(--[\w-]+)", HELP)
    for word in rest:
        flag = word.partition("=")[0]
        if flag.startswith("-") and flag not in BY_FLAG:
            near = arguments.suggest(flag, own)
            advice = f"did you mean {near}?" if near else "shoal tune --help lists all of them"
            raise OptionError(f"unknown option {flag}; {advice}")
    return chosen, rest


def _time(text: str) -> float:
    """A time in microseconds; a bare number is milliseconds."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(us|µs|ms|s)?", text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"expected a time such as 20ms, found '{text}'")
    return float(match[1]) * _TIMES[match[2] or "ms"]
