"""`shoal key`: makes, lists and removes the keys of clients, in the file of --api-keys."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.cli.parser import CommandParser, help_requested, integer
from shoal.config.options import OptionError

FILE = "api-keys.jsonl"
HELP = f"""\
usage: shoal key new NAME [OPTION ...]
       shoal key list [--file FILE]
       shoal key remove NAME [--file FILE]

Keys of clients, for 'shoal serve --api-keys FILE'. A new key is printed once; the file has only its
SHA-256, and what it permits. A running server reads the file again when it changes.

Examples:
  shoal key new team-a                                inference with all models
  shoal key new app --models 'resnet*,bert' --requests-per-second 100
  shoal key new admin --apis '*' --upload             everything
  shoal key new prometheus --apis metrics             scraping only
  shoal key list
  shoal key remove team-a

Options:
      --file FILE                the key file [default: {FILE}]

Options of a new key:
      --apis KIND[,KIND...]      kinds of requests that it permits, '*' for all
                                 [default: health,metadata,model-config,inference]
      --models NAME[,NAME...]    models that it permits; '*' and '?' match any text and any
                                 character [default: all]
      --upload                   it permits to load models from files that the client sends,
                                 which the server then runs
      --requests-per-second N    quota of requests
      --burst N                  how many of them may come at once [default: those of a second]
      --bytes-per-second N       quota of bytes in requests and responses
      --requests-in-flight N     quota of requests without a response
      --expires DATE             when it ends: 2027-01-31, 2027-01-31T18:00:00Z
      --no-key                   an entry for tokens (JWT) that name it, without a key

The kinds are those of restricted APIs, and metrics: health, metadata, inference, shared-memory,
model-config, model-repository, statistics, trace, logging, metrics.
"""


def run(words: Sequence[str]) -> int:
    """Run `shoal key`; returns the exit code. Raises OptionError and other ShoalErrors."""
    if not words or help_requested(words):
        print(HELP, end="")
        return 0
    actions: dict[str, Callable[[Sequence[str]], int]] = {
        "new": _new,
        "list": _list,
        "remove": _remove,
    }
    action = actions.get(words[0])
    if action is None:
        raise OptionError(f"unknown action '{words[0]}'; write shoal key new, list or remove")
    return action(words[1:])


def _new(words: Sequence[str]) -> int:
    parser = _parser("new")
    parser.add_argument("name")
    parser.add_argument("--apis", type=_texts)
    parser.add_argument("--models", type=_texts)
    parser.add_argument("--upload", action="store_true", default=None)
    parser.add_argument("--requests-per-second", type=_number)
    parser.add_argument("--burst", type=_number)
    parser.add_argument("--bytes-per-second", type=_number)
    parser.add_argument("--requests-in-flight", type=integer(1))
    parser.add_argument("--expires")
    parser.add_argument("--no-key", action="store_true")
    given = vars(parser.parse_args(list(words)))
    path, without_key = Path(given.pop("file")), given.pop("no_key")

    from shoal.access.entry import KeyEntry, digest_of, new_key
    from shoal.access.key_file import add_key

    key = new_key()
    fields = {field: value for field, value in given.items() if value is not None}
    if not without_key:
        fields["sha256"] = digest_of(key.encode()).hex()
    entry = KeyEntry.checked(fields)
    if entry.expires_at is not None and entry.expires_at <= time.time():
        raise OptionError(f"--expires={entry.expires} is in the past")
    add_key(path, entry)
    if without_key:
        print(f"added '{entry.name}' to {path}, for tokens that name it", file=sys.stderr)
        return 0
    print(
        f"added '{entry.name}' to {path}; this is its key, which is stored nowhere:",
        file=sys.stderr,
    )
    print(key)
    return 0


def _list(words: Sequence[str]) -> int:
    options = _parser("list").parse_args(list(words))

    from shoal.access.key_file import read_keys

    rows = [("NAME", "APIS", "MODELS", "QUOTAS", "EXPIRES")]
    for entry in read_keys(Path(options.file)):
        quotas = [
            f"{value:g} {unit}"
            for value, unit in (
                (entry.requests_per_second, "requests/s"),
                (entry.bytes_per_second, "bytes/s"),
                (entry.requests_in_flight, "in flight"),
            )
            if value is not None
        ]
        name = entry.name if entry.sha256 else f"{entry.name} (for tokens)"
        apis = ",".join((*entry.apis, *(("upload",) if entry.upload else ())))
        expired = entry.expires_at is not None and entry.expires_at <= time.time()
        ends = f"{entry.expires or 'never'}{' (expired)' if expired else ''}"
        rows.append((name, apis, ",".join(entry.models), ", ".join(quotas) or "none", ends))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())
    return 0


def _remove(words: Sequence[str]) -> int:
    parser = _parser("remove")
    parser.add_argument("name")
    options = parser.parse_args(list(words))

    from shoal.access.key_file import remove_key

    remove_key(Path(options.file), options.name)
    print(f"removed '{options.name}' from {options.file}", file=sys.stderr)
    return 0


def _parser(action: str) -> CommandParser:
    parser = CommandParser(f"shoal key {action}")
    parser.add_argument("--file", default=FILE)
    return parser


def _texts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _number(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,9})?", text) or not float(text):
        raise argparse.ArgumentTypeError(f"expected a number above 0, found '{text}'")
    return float(text)
