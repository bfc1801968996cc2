"""`shoal stress`: a table of latencies by sessions and clients, without and with batching."""

from __future__ import annotations

import argparse
import io
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.parser import (
    CommandParser,
    api_key,
    check_html,
    help_requested,
    integer,
    integers,
    port,
    print_line,
    seconds,
)
from shoal.config.options import OptionError

if TYPE_CHECKING:  # imported after the options are checked
    from shoal.stress.plan import StressPlan, StressResult
    from shoal.stress.servers import ServersUnderTest

HELP = """\
usage: shoal stress [OPTION ...]

Measure the latency of questions by sessions (instances of the model) and concurrent clients,
without and with dynamic batching. A server is started for each row of the table and stopped after
it. Files are written only on request.

Examples:
  shoal stress                                       the model of the demo
  shoal stress --sessions 1,2 --clients 1,10,100     another table
  shoal stress --model-repository models -m faq      your own model
  shoal stress --host gpu-box                        a running server, over TCP: one row
  shoal stress --url gpu-box:8000 -m faq             the same over HTTP
  shoal stress --csv table.csv --report table.html   for a spreadsheet, and as a page

Table:
      --clients N[,N...]         concurrent clients [default: 1,5,20,50]
      --sessions N[,N...]        instances of the model [default: 1,2,4]
      --batching both|off|on     which rows to measure [default: both]
      --requests N               questions per client that count [default: 10, and 40 per cell]
      --warmup N                 questions per client before them [default: 1, and 30 per cell]
      --protocol tcp|http        the protocol [default: tcp]
      --timeout SECS             a later answer counts as failed [default: 60]

Model:
      --model-repository PATH    the repository, or the model's folder [default: the demo]
  -m, --model MODEL              its name [default: the only one for questions]

A running server:
      --host HOST                measure this server over TCP
      --port PORT                its port for questions over TCP [default: 9999]
      --url URL                  measure this server over HTTP
      --api-key KEY              a key for it [default: the variable SHOAL_API_KEY]

Questions:
      --questions FILE           one question per line, about --text-file; or lines of JSON with
                                 "text" and "question" [default: twelve questions]
      --text-file FILE           the text
      --seed N                   the order in which clients ask [default: 0]

Results:
      --csv FILE                 one line per cell
      --json FILE                the same with percentiles, failures and settings
      --report FILE.html         a page with charts

Ctrl-C prints the results so far. The exit code is 0; 2 if questions failed; 130 after Ctrl-C; 1 for
other errors.
"""
FAILED, INTERRUPTED = 2, 130
_MOST = 100_000
_WIDEST = 100
_LOCAL_ONLY = ("sessions", "batching", "model_repository", "protocol")


def run(words: Sequence[str]) -> int:
    """Run `shoal stress`; returns the exit code. Raises OptionError and other ShoalErrors."""
    if help_requested(words):
        print(HELP, end="")
        return 0
    options = _parse(words)

    from shoal.perf.progress import ProgressLine
    from shoal.stress import material
    from shoal.stress.plan import (
        CLIENTS,
        LEAST_REQUESTS,
        LEAST_WARMUP,
        REQUESTS,
        WARMUP,
        StressPlan,
    )
    from shoal.stress.progress import ProgressPrinter
    from shoal.stress.run import run as measure
    from shoal.tune.run import check_writable

    for flag, path in _files(options):
        check_writable(Path(path), flag, overwrite=True)
    running = bool(options.host or options.url)
    plan = StressPlan(
        questions=material.read(options.text_file, options.questions),
        clients=options.clients or CLIENTS,
        requests=REQUESTS if options.requests is None else options.requests,
        warmup=WARMUP if options.warmup is None else options.warmup,
        least_requests=LEAST_REQUESTS if options.requests is None else 0,
        least_warmup=LEAST_WARMUP if options.warmup is None else 0,
        protocol="http" if options.url else options.protocol or "tcp",
        timeout_secs=options.timeout,
        seed=options.seed,
    )
    servers = _running(options, plan) if running else _local(options, plan)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the terminal may not support ±
    progress = ProgressLine(sys.stderr)
    try:
        outcome = measure(plan, servers, ProgressPrinter(print_line, progress))
    finally:
        progress.clear()
    return _conclude(outcome, options)


def _conclude(outcome: StressResult, options: argparse.Namespace) -> int:
    from shoal.stress import files
    from shoal.stress.findings import verdict
    from shoal.stress.report import page
    from shoal.tune.run import write

    makers = {"--csv": files.csv_text, "--json": files.json_text, "--report": page}
    if not outcome.cells:
        print("interrupted before anything was measured", file=sys.stderr)
        return INTERRUPTED
    width = min(shutil.get_terminal_size().columns - 1, _WIDEST)
    print()
    for sentence in verdict(outcome):
        indent = re.match(" *", sentence)
        print(textwrap.fill(sentence, width, subsequent_indent=indent[0] if indent else ""))
    for flag, path in _files(options):
        write(Path(path), makers[flag](outcome), flag)
        print(f"wrote {path}", file=sys.stderr)
    if outcome.interrupted:
        return INTERRUPTED
    return FAILED if outcome.failed else 0


def _files(options: argparse.Namespace) -> list[tuple[str, str]]:
    files = (("--csv", options.csv), ("--json", options.json), ("--report", options.report))
    return [(flag, path) for flag, path in files if path]


def _local(options: argparse.Namespace, plan: StressPlan) -> ServersUnderTest:
    from shoal.cli.check import preparation_settings
    from shoal.cli.demo import repository
    from shoal.config.options import Options
    from shoal.stress.cell import ServerSetup
    from shoal.stress.model import find_model
    from shoal.stress.plan import SESSIONS
    from shoal.stress.servers import StartedServers

    serving = Options()
    model = find_model(
        options.model_repository or repository(), options.model, preparation_settings(serving)
    )
    batching = {"off": (False,), "on": (True,)}.get(options.batching, (False, True))
    setups = [
        ServerSetup(sessions, batched)
        for sessions in options.sessions or SESSIONS
        for batched in batching
    ]
    return StartedServers(model, setups, plan, serving)


def _running(options: argparse.Namespace, plan: StressPlan) -> ServersUnderTest:
    from shoal.ask.question import TCP_PORT
    from shoal.client.address import parse
    from shoal.stress.load import QuestionTarget
    from shoal.stress.servers import ExistingServer

    if options.host:
        target = QuestionTarget(
            "tcp", options.host, options.port or TCP_PORT, options.model, api_key=options.api_key
        )
        return ExistingServer(target, plan)
    address = parse(options.url)
    if address.protocol != "http" or address.encrypted or address.socket:
        raise OptionError(
            f"--url takes a plain HTTP address, such as localhost:8000, found '{options.url}'"
        )
    target = QuestionTarget(
        "http",
        address.host,
        address.port,
        options.model,
        address.prefix,
        options.api_key,
    )
    return ExistingServer(target, plan)


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser("shoal stress")
    parser.add_argument("--clients", type=integers(1, _MOST))
    parser.add_argument("--sessions", type=integers(1, _MOST))
    parser.add_argument("--batching", choices=["both", "off", "on"])
    parser.add_argument("--requests", type=integer(1, _MOST))
    parser.add_argument("--warmup", type=integer(0))
    parser.add_argument("--protocol", type=str.lower, choices=["tcp", "http"])
    parser.add_argument("--timeout", type=seconds, default=60.0)
    parser.add_argument("--model-repository", "--repository", default="")
    parser.add_argument("-m", "--model", default="")
    parser.add_argument("--host", default="")
    parser.add_argument("--port", type=port)
    parser.add_argument("--url", default="")
    api_key(parser)
    parser.add_argument("--questions", default="")
    parser.add_argument("--text-file", default="")
    parser.add_argument("--seed", type=integer(0), default=0)
    parser.add_argument("--csv", default="")
    parser.add_argument("--json", default="")
    parser.add_argument("--report", default="")
    options = parser.parse_args(list(words))
    _check(options)
    return options


def _check(options: argparse.Namespace) -> None:
    if options.host and options.url:
        raise OptionError("--host is for TCP and --url for HTTP; choose one of them")
    if options.port and not options.host:
        raise OptionError("--port needs --host; without it, stress starts its own servers")
    if options.host or options.url:
        for name in _LOCAL_ONLY:
            if getattr(options, name):
                raise OptionError(
                    f"--{name.replace('_', '-')} is for servers that stress starts; a "
                    f"running server is measured as it is"
                )
    check_html(options.report)
