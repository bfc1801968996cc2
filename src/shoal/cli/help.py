"""The text of `--help`: examples, then every option by group, wrapped for the terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from shoal.config.options import TABLE, Option

_NARROWEST = 60
_WIDEST = 100
_HELP_COLUMN = 34
_UNBROKEN = "\N{NO-BREAK SPACE}"  # keeps "[default: 8000]" on one line; printed as a space

_EXAMPLES = (
    ("{program} --demo", "try it with some small models"),
    ("{program} {repository}", "serve the folder 'models'"),
    ("{program} {repository} --http-port=9000", "the same on another port"),
    ("{program} {functions}", "serve the functions in a file"),
    ("{program} {repository} --model-control-mode=poll", "follow changes in the folder"),
    ("{program} {address}", "download models and serve them"),
)


def serve_help(program: str, *, paths: bool = True, width: int | None = None) -> str:
    """The help of `shoal serve`; `paths` says whether it takes bare paths."""
    width = fitted(width)
    flag = "" if paths else "--model-repository="
    places = {"repository": "models", "functions": "app.py", "address": "s3://bucket/models"}
    shown = {name: f"{flag}{place}" for name, place in places.items()}
    examples = [
        (command.format(program=program, **shown), meaning) for command, meaning in _EXAMPLES
    ]
    words = "[PATH ...] [OPTION ...]" if paths else "[OPTION ...]"
    introduction = (
        "Serve the models of one or more repositories. A repository is a folder with one folder "
        "per model, laid out as for Triton; models without a config.pbtxt are served too. A Python "
        "file with @shoal.model functions, a single model file, or an address such as "
        "s3://bucket/models works too."
    )
    usage = (
        "Write --name=value or --name value. A boolean takes true or false; without a value it "
        "means true. Options followed by dots may be repeated."
    )
    lines = [
        f"usage: {program} {words}",
        "",
        *textwrap.wrap(introduction, width),
        "",
        *_examples(examples, width),
        "",
        *textwrap.wrap(usage, width),
    ]
    for title, options in groupby(TABLE, key=lambda option: option.group):
        lines += ["", *_group(title, list(options), width)]
    return "\n".join(lines) + "\n"


def _examples(examples: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    yield "Examples:"
    column = max(len(command) for command, _ in examples) + 3
    for command, meaning in examples:
        line = f"  {command:<{column}}{meaning}"
        yield line if len(line) <= width else f"  {command}\n      {meaning}"


def _group(title: str, options: Sequence[Option], width: int) -> Iterator[str]:
    """One group. A reason that all of its options share for having no effect follows the title."""
    reasons = {option.no_effect for option in options}
    shared = reasons.pop() if len(reasons) == 1 else ""
    yield from textwrap.wrap(f"{title} (no effect: {shared}):" if shared else f"{title}:", width)
    for option in options:
        aliases = f"Also called {', '.join(option.aliases)}." if option.aliases else ""
        yield from option_lines(option, option.flag, width, _HELP_COLUMN, aliases, shared)


def option_lines(
    option: Option, names: str, width: int, column: int, aliases: str = "", shared: str = ""
) -> Iterator[str]:
    """One option: its names and value on the left, its description from `column` on."""
    head = f"  {names} {_placeholder(option)}{' ...' if option.repeatable else ''}".rstrip()
    description = _description(option, aliases, shared)
    body = textwrap.wrap(description, width - column, break_on_hyphens=False)
    if len(head) < column:
        head = f"{head:<{column}}{body.pop(0)}"
    for line in (head, *(" " * column + line for line in body)):
        yield line.replace(_UNBROKEN, " ")


def fitted(width: int | None) -> int:
    """The width of a help text: the terminal's, within limits."""
    return max(_NARROWEST, min(width or shutil.get_terminal_size().columns, _WIDEST))


def _placeholder(option: Option) -> str:
    if option.bare:
        return ""
    kinds = {"bool": "true|false", "int": "<n>", "float": "<x>"}
    return "|".join(option.choices) or option.form or kinds.get(option.type, "<text>")


def _description(option: Option, aliases: str, shared: str) -> str:
    parts = [option.help]
    if option.instead:
        parts.append(f"Write {option.instead} instead.")
    if aliases:
        parts.append(aliases)
    if option.no_effect != shared:
        parts.append(f"No effect: {option.no_effect}.")
    if option.default not in ("", ()) and not option.bare:
        parts.append(f"[default:{_UNBROKEN}{_shown(option.default)}]")
    return " ".join(parts)


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "true" if default else "false"
    return f"{default:.10g}" if isinstance(default, float) else str(default)
