"""`shoal perf`: measure a model on a running server, with perf_analyzer's flags."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from shoal.cli.arguments import suggest
from shoal.cli.help import fitted, option_lines
from shoal.cli.parser import help_requested, print_line
from shoal.config.options import OptionError
from shoal.config.options.values import accepted, convert
from shoal.errors import ShoalError
from shoal.perf.option_checks import ELSEWHERE
from shoal.perf.options import BY_FLAG, TABLE, PerfOptions

WRONG_OPTION, FAILED = 3, 99
_COLUMN = 36
_HEAD = """\
usage: shoal perf -m MODEL [OPTION ...]

Measure a model on a running server: throughput and latency by load, and where the time goes.
It takes the flags of perf_analyzer, prints the same text and writes the same tables. It works with
any server of the KServe v2 protocol.

Examples:
  shoal perf -m digits                                   one request at a time
  shoal perf -m digits --concurrency-range 1:16:5        a range
  shoal perf -m digits --concurrency-range 1:0 -l 10     until latency reaches 10 ms
  shoal perf -m digits --request-rate-range 100:1000:100 a request rate
  shoal perf -m digits -i grpc -u gpu-box:8001           gRPC, another machine
  shoal perf -m digits --report digits.html              a page with charts

The exit code is 0; 2 if measurements did not become stable; 3 for invalid options; 99 for other
errors.
"""


def run(words: Sequence[str]) -> int:
    """Run `shoal perf`; returns the exit code."""
    if not words or help_requested(words):
        print(help_text(), end="")
        return 0
    try:
        options = parse(words)
    except ShoalError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return WRONG_OPTION
    from shoal.perf.chart import curve
    from shoal.perf.progress import ProgressLine
    from shoal.perf.run import run as measure

    progress = ProgressLine(sys.stderr)
    try:
        outcome = measure(options, print_line, _warn, progress)
    except ShoalError as error:
        progress.clear()
        print(f"error: {error.message}", file=sys.stderr)
        return FAILED
    if sys.stdout.isatty() and len(outcome.profile.results) > 1:
        print()
        print("\n".join(curve(options, outcome.profile, shutil.get_terminal_size().columns)))
    for path in outcome.files:
        print(f"wrote {path}", file=sys.stderr)
    if outcome.profile.error:
        print(f"error: {outcome.profile.error}", file=sys.stderr)
        return FAILED
    return outcome.code


def parse(words: Sequence[str]) -> PerfOptions:
    """The options in `words`. Raises OptionError."""
    given: dict[str, list[Any]] = {}
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        flag, equals, value = word.partition("=")
        option = BY_FLAG.get(flag)
        if option is None and len(flag) > 2 and not flag.startswith("--"):
            option, value = BY_FLAG.get(word[:2]), word[2:]  # -t4
            flag, equals = word[:2], "="
        if option is None:
            raise OptionError(_unknown(word, flag))
        if not equals and not option.bare:
            if position >= len(words) and option.type != "bool":
                raise OptionError(f"{flag} needs a value: {accepted(option)}")
            if option.type == "bool" and not _follows(words, position):
                value = "true"
            else:
                value = words[position]
                position += 1
        given.setdefault(option.attribute, []).append(
            convert(option, flag, value or ("true" if option.bare else value))
        )
    repeatable = {option.attribute for option in TABLE if option.repeatable}
    values: dict[str, Any] = {
        name: tuple(found) if name in repeatable else found[-1] for name, found in given.items()
    }
    return PerfOptions(**values, given=frozenset(given))


def help_text(width: int | None = None) -> str:
    """The text of `shoal perf --help`."""
    width = fitted(width)
    lines = [_HEAD]
    for title, options in groupby(TABLE, key=lambda option: option.group):
        lines.append(f"{title}:")
        for option in options:
            lines += option_lines(option, ", ".join(option.flags), width, _COLUMN)
        lines.append("")
    return "\n".join(lines)


def _unknown(word: str, flag: str) -> str:
    if flag in ELSEWHERE:
        return f"{flag} is not offered: {ELSEWHERE[flag]}"
    if not word.startswith("-"):
        return f"unexpected argument '{word}'; the model is named with -m {word}"
    near = suggest(flag, BY_FLAG)
    return f"unknown option {flag}; " + (
        f"did you mean {near}?" if near else "shoal perf --help lists all of them"
    )


def _follows(words: Sequence[str], position: int) -> bool:
    """Whether the next word is a boolean's value."""
    return position < len(words) and words[position].lower() in {"true", "false", "0", "1", "2"}


def _warn(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
