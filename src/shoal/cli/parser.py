"""The argparse base of all commands: error messages, value types and `--help`."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from shoal.config.options import OptionError


class CommandParser(argparse.ArgumentParser):
    """Raises OptionError for a wrong option instead of exiting the process."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog=prog, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """See argparse."""
        raise OptionError(f"{message}; {self.prog} --help lists all options")


def help_requested(words: Sequence[str]) -> bool:
    """Whether the command line has -h or --help."""
    return not {"-h", "--help"}.isdisjoint(words)


def integer(low: int, high: int | None = None) -> Callable[[str], int]:
    """An argparse type: a whole number from `low` to `high`."""

    def convert(text: str) -> int:
        if re.fullmatch(r"[0-9]{1,9}", text) and low <= int(text) <= (high or int(text)):
            return int(text)
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise argparse.ArgumentTypeError(f"expected a whole number {bounds}, found '{text}'")

    return convert


def integers(low: int, high: int | None = None) -> Callable[[str], tuple[int, ...]]:
    """An argparse type: whole numbers separated by commas; repeated ones count once."""
    one = integer(low, high)
    return lambda text: tuple(dict.fromkeys(one(part.strip()) for part in text.split(",")))


port = integer(1, 65535)


def seconds(text: str) -> float:
    """An argparse type: a time in seconds above 0."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?|\.[0-9]+", text) or not float(text):
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, found '{text}'")
    return float(text)


# As `shoal image` prints them; other commands have narrower columns.
TLS_HELP = """\
      --ca FILE                 for https:// and grpcs://: the certificates to trust (PEM)
                                [default: those of the system]
      --cert FILE               the client's own certificate (PEM)
      --key FILE                its private key [default: in --cert]
      --insecure                do not check the server's certificate
"""


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """The options of `TLS_HELP`."""
    for name in ("--ca", "--cert", "--key"):
        parser.add_argument(name)
    parser.add_argument("--insecure", action="store_true")


def tls_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of a client for these options."""
    return {
        "ca": options.ca,
        "cert": options.cert,
        "key": options.key,
        "verify": not options.insecure,
    }


def api_key(parser: argparse.ArgumentParser) -> None:
    """Add --api-key, whose default is an environment variable: other users can see options."""
    parser.add_argument("--api-key", default=os.environ.get("SHOAL_API_KEY", ""))


def check_html(path: str) -> None:
    """Raises OptionError for a --report that is not a .html file."""
    if path and not path.endswith((".html", ".htm")):
        raise OptionError(f"--report writes an HTML page: name a .html file, found '{path}'")


def print_line(line: str) -> None:
    """Print a line and flush it."""
    print(line, flush=True)
