"""`shoal check`: reports problems of models without serving them."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from shoal.cli import arguments
from shoal.cli.parser import help_requested
from shoal.cli.serve import with_repositories
from shoal.config.options import Options

if TYPE_CHECKING:  # imported after the options are checked
    from shoal.repository.inspection import ModelReport
    from shoal.repository.preparation import PreparationSettings

HELP = """\
usage: shoal check PATH [PATH ...] [--load] [--json] [OPTION ...]

Report what is wrong with models, without serving them: for each problem the file, the field and
what to write. PATH is a repository, the folder of one model, the address of either (s3://...), a
Python file with @shoal.model functions or a model file. The exit code is 0 if all of them can be
served, else 1.

Examples:
  shoal check models            every model of a repository
  shoal check models/resnet     one model
  shoal check models --load     also initialise Python models, and warm up all of them
  shoal check app.py --json     for programs

Options:
  --load                        initialise Python models and functions, and warm up every model;
                                without it, only model files are loaded and unloaded again
  --json                        print JSON: a list of models, each with its problems and warnings

All options of `shoal serve` are accepted, so that a whole command line can be checked; those that
affect how models are read (--backend-config, --backend-directory, --model-config-name,
--gpu-fallback, --disable-auto-complete-config) have an effect here.
"""
_INDENT = " " * 6
_NARROWEST, _WIDEST = 60, 100


def run(words: Sequence[str]) -> int:
    """Run `shoal check`; returns the exit code. Raises OptionError and NotFound."""
    if help_requested(words):
        print(HELP, end="")
        return 0
    load, as_json = "--load" in words, "--json" in words
    own = {"--load", "--json"}
    options = arguments.parse([word for word in words if word not in own])
    options = with_repositories(options, "shoal check")

    from shoal.cli.remote import local_repositories
    from shoal.repository.inspection import Inspection

    settings = preparation_settings(options)
    with local_repositories(options, settings) as local:
        inspection = Inspection(local.paths, settings)
        try:
            reports = [local.with_addresses(report) for report in inspection.reports(load=load)]
        finally:
            inspection.close()
    if as_json:
        print(json.dumps(_document(reports), indent=2))
    else:
        print("\n".join(_lines(reports)))
    return 0 if all(report.ok for report in reports) else 1


def preparation_settings(options: Options) -> PreparationSettings:
    """How models are read, from the options of `shoal serve`."""
    from shoal.backends.registry import BackendRegistry
    from shoal.repository.preparation import PreparationSettings

    return PreparationSettings(
        config_name=options.model_config_name,
        auto_complete=options.auto_complete_config,
        gpu_fallback_cpu=options.gpu_fallback == "cpu",
        backend_settings=options.backend_settings(),
        execution=options.execution,
        target_latency_ms=options.target_latency_ms,
        backends=BackendRegistry(directory=options.backend_directory),
    )


def described(report: ModelReport) -> Iterator[str]:
    """The problems and warnings of a model, one paragraph each."""
    width = max(_NARROWEST, min(shutil.get_terminal_size().columns, _WIDEST))
    for problem in report.problems:
        where = ": ".join(part for part in (problem.file, problem.field) if part)
        if where:
            yield f"{_INDENT}{where}"
        yield from _wrapped(problem.message, width)
        if problem.fix:
            yield from _wrapped(f"Fix: {problem.fix}", width)
    for warning in report.warnings:
        yield from _wrapped(f"warning: {warning}", width)


def _lines(reports: Sequence[ModelReport]) -> Iterator[str]:
    column = max((len(report.name) for report in reports), default=0) + 2
    for report in reports:
        word = "ok  " if report.ok else "FAIL"
        yield f"{word}  {report.name:<{column}}{_summary(report)}"
        yield from described(report)
    bad = sum(not report.ok for report in reports)
    models = f"{len(reports)} model{'' if len(reports) == 1 else 's'}"
    yield f"{models} checked, {f'{bad} with problems' if bad else 'no problems'}"


def _summary(report: ModelReport) -> str:
    if report.spec is None or not report.ok:
        return report.place
    config = report.spec.config
    versions = ", ".join(map(str, sorted(report.spec.version_folders)))
    plural = "s" if len(report.spec.version_folders) > 1 else ""
    loaded = ", loaded" if report.loaded else ""
    return f"{config.backend or config.platform}, version{plural} {versions}{loaded}"


def _wrapped(text: str, width: int) -> list[str]:
    lines: list[str] = []
    for line in text.splitlines() or [""]:
        lines += textwrap.wrap(
            line,
            width,
            initial_indent=f"{_INDENT}  ",
            subsequent_indent=f"{_INDENT}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def _document(reports: Sequence[ModelReport]) -> dict[str, Any]:
    return {
        "ok": all(report.ok for report in reports),
        "models": [
            {
                "name": report.name,
                "path": report.place,
                "ok": report.ok,
                "loaded": report.loaded,
                "backend": "" if report.spec is None else report.spec.config.backend,
                "versions": [] if report.spec is None else sorted(report.spec.version_folders),
                "problems": [
                    {
                        "file": problem.file,
                        "field": problem.field,
                        "message": problem.message,
                        "fix": problem.fix,
                    }
                    for problem in report.problems
                ],
                "warnings": report.warnings,
            }
            for report in reports
        ],
    }
