"""`shoal config`: prints the complete configuration of a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from shoal.cli import arguments
from shoal.cli.check import described, preparation_settings
from shoal.cli.parser import help_requested
from shoal.config.options import OptionError

HELP = """\
usage: shoal config MODEL [NAME] [--format pbtxt|json] [OPTION ...]

Print the complete configuration of a model as the server would run it on this machine: its
config.pbtxt, completed from the model file, and every default. MODEL is the folder of a model, a
model file, a Python file with @shoal.model functions, a repository, or the address of a model or
repository (s3://...); NAME selects one of several.

Examples:
  shoal config models/resnet                         a model of a repository
  shoal config resnet50.onnx > config.pbtxt          a single model file
  shoal config app.py double                         a function
  shoal config s3://bucket/models resnet             a model of a remote repository
  shoal config models/resnet --format json           as returned by GET /v2/models/resnet/config

Options:
  --format pbtxt|json           protobuf text, as in config.pbtxt, or JSON [default: pbtxt]

The options of `shoal serve` are accepted too; --backend-config, --backend-directory,
--model-config-name, --gpu-fallback and --disable-auto-complete-config have an effect here.
"""
_FORMATS = ("pbtxt", "json")


def run(words: Sequence[str]) -> int:
    """Print a configuration; returns the exit code. Raises OptionError and NotFound."""
    if help_requested(words):
        print(HELP, end="")
        return 0
    form, rest = _format(list(words))
    options = arguments.parse(rest)
    if len(options.model_repository) not in (1, 2):
        raise OptionError("name one model: shoal config MODEL, or shoal config PATH NAME")
    path, *names = options.model_repository

    from shoal.cli.remote import local_model
    from shoal.repository.inspection import Inspection

    settings = preparation_settings(options)
    with local_model(options, path, names[0] if names else "", settings) as local:
        inspection = Inspection(local.paths, settings)
        try:
            for broken in inspection.broken():
                print("\n".join(described(local.with_addresses(broken))), file=sys.stderr)
                return 1
            report = inspection.report(names[0] if names else _only(inspection.names(), path))
            report = local.with_addresses(report)
        finally:
            inspection.close()
    lines = list(described(report))
    if lines:
        print("\n".join(lines), file=sys.stderr)
    if report.config is None:
        return 1

    from shoal.config import codec, pbtxt

    if form == "json":
        print(json.dumps(codec.to_dict(report.config), indent=2))
    else:
        print(pbtxt.to_pbtxt(report.config), end="")
    return 0


def _format(words: list[str]) -> tuple[str, list[str]]:
    """The value of `--format`, and the other words."""
    rest: list[str] = []
    form = _FORMATS[0]
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        flag, equals, text = word.partition("=")
        if flag != "--format":
            rest.append(word)
            continue
        if not equals:
            text = words[position] if position < len(words) else ""
            position += 1
        if text not in _FORMATS:
            found = f"found '{text}'" if text else "found nothing"
            raise OptionError(f"--format takes {' or '.join(_FORMATS)}; {found}")
        form = text
    return form, rest


def _only(names: Sequence[str], path: str) -> str:
    if len(names) != 1:
        listed = ", ".join(names)
        raise OptionError(
            f"there are {len(names)} models in '{path}' ({listed}); name one of them: "
            f"shoal config {path} {names[0]}"
        )
    return names[0]
