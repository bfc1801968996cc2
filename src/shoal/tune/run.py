"""One run of `shoal tune`, from a model on disk to a measured config.

find --> Subject --> server, MeasurementSetup --> Search --> TuneResult: config and changes
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.config import pbtxt
from shoal.config.model import ModelConfig
from shoal.config.options import Options
from shoal.config.suggest import near_match
from shoal.errors import InvalidArgument, NotFound
from shoal.instance.device import available_cores
from shoal.repository.inspection import Inspection, ModelReport
from shoal.repository.layout import is_model_folder
from shoal.repository.preparation import PreparationSettings
from shoal.tune.configs import Bounds, Change, Subject
from shoal.tune.goal import Goal
from shoal.tune.measuring import LoadPlan, MeasurementSetup
from shoal.tune.search import Search, SearchListener, SearchResult
from shoal.tune.serving import ChildServer
from shoal.tune.space import Space

CONFIG = "config.pbtxt"
_PYTHON = ".py"


@dataclass(frozen=True, slots=True)
class TunedModel:
    """A model on disk."""

    name: str
    repository: Path  # what to serve: a repository, or the model's file
    folder: Path | None  # None for a bare file
    subject: Subject
    warnings: tuple[str, ...] = ()

    @property
    def config_file(self) -> Path | None:
        """The path of its config.pbtxt, whether or not it exists."""
        return None if self.folder is None else self.folder / CONFIG


@dataclass(slots=True)
class TuneResult:
    """The result of a run."""

    model: TunedModel
    goal: Goal
    space: Space
    finding: SearchResult
    config: ModelConfig  # to be written
    changes: list[Change] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The config.pbtxt."""
        return pbtxt.to_pbtxt(self.config)


# ---- the model


def find(words: Sequence[str], repository: str, settings: PreparationSettings) -> TunedModel:
    """The model that the command line names: by name in a repository, or by path.

    Raises NotFound, and InvalidArgument for models that cannot be tuned.
    """
    path, name = _named(words, repository)
    if path.suffix == _PYTHON and path.is_file():
        raise InvalidArgument(
            f"'{path}' is a Python file; its functions are configured where they are declared "
            f"(@shoal.model(max_batch_size=..., max_delay=...)), so there is no config to tune"
        )
    inspection = Inspection([path], settings)
    try:
        for broken in inspection.broken():
            raise InvalidArgument(f"{broken.place}: {broken.problems[0].message}")
        names = inspection.names()
        name = name or _only(names, path)
        if name not in names:
            raise NotFound(_unknown(name, names, path))
        report = inspection.report(name)
    finally:
        inspection.close()
    return _model(report, path)


def _named(words: Sequence[str], repository: str) -> tuple[Path, str]:
    if repository:
        if len(words) != 1:
            raise InvalidArgument("name one model: shoal tune MODEL --repository PATH")
        return Path(repository), words[0]
    if len(words) not in (1, 2):
        raise InvalidArgument(
            "name one model: shoal tune models/resnet, shoal tune resnet50.onnx or "
            "shoal tune resnet --repository models"
        )
    path = Path(words[0])
    if not path.exists():
        plain = os.sep not in words[0]
        advice = f"write shoal tune {words[0]} --repository PATH" if plain else "check the path"
        raise NotFound(f"there is no file or folder '{words[0]}'; for a model's name, {advice}")
    return path, words[1] if len(words) > 1 else ""


def _only(names: Sequence[str], path: Path) -> str:
    if len(names) != 1:
        raise InvalidArgument(
            f"there are {len(names)} models in '{path}' ({', '.join(names)}); name one of them: "
            f"shoal tune {names[0] if names else 'MODEL'} --repository {path}"
        )
    return names[0]


def _unknown(name: str, names: Sequence[str], path: Path) -> str:
    near = near_match(name, names)
    there = f"did you mean '{near}'?" if near else f"there is: {', '.join(names)}"
    return f"there is no model '{name}' in '{path}'; {there}"


def _model(report: ModelReport, path: Path) -> TunedModel:
    if report.spec is None:
        problem = report.problems[0]
        where = ": ".join(part for part in (problem.file, problem.field) if part)
        fix = f". {problem.fix}" if problem.fix else ""
        raise InvalidArgument(
            f"model '{report.name}' cannot be served: {where}: {problem.message}{fix}"
        )
    spec = report.spec
    folder = None if spec.bare_file is not None else Path(report.place)
    written = None
    if folder is not None and (folder / CONFIG).is_file():
        file = folder / CONFIG
        written = pbtxt.parse_pbtxt(file.read_text(encoding="utf-8"), str(file))
    repository = path
    if folder is not None and is_model_folder(path):
        repository = path.resolve().parent
    subject = Subject(spec.config, available_cores(), written, bare=folder is None)
    return TunedModel(report.name, repository, folder, subject, tuple(report.warnings))


# ---- the run


def run(
    model: TunedModel,
    goal: Goal,
    plan: LoadPlan,
    bounds: Bounds,
    levels: tuple[int, ...],
    options: Options,
    listener: SearchListener | None = None,
) -> TuneResult:
    """Measure and choose. Raises ShoalError when the model cannot be measured as it is."""
    subject = model.subject
    space = subject.space(bounds, levels, goal.limit_us)
    served = replace(options, model_repository=(str(model.repository),))
    with ChildServer(served) as server, MeasurementSetup(server, subject, plan) as measure:
        finding = Search(space, goal, measure, listener).run(subject.start(plan.rows))
    point = finding.chosen.point
    return TuneResult(
        model,
        goal,
        space,
        finding,
        subject.output(point, plan.rows),
        subject.changes(point, plan.rows),
    )


# ---- files


def check_writable(path: Path, flag: str, *, overwrite: bool) -> None:
    """Raises InvalidArgument when `path` cannot be written; called before measuring."""
    if path.is_dir():
        raise InvalidArgument(f"{flag}: '{path}' is a folder; name a file in it")
    if path.exists() and not overwrite:
        raise InvalidArgument(f"{flag}: '{path}' exists; add --force to write over it")
    parent = path.parent
    if not parent.is_dir():
        raise InvalidArgument(f"{flag}: there is no folder '{parent}' to write '{path.name}' into")
    paths = (parent, path) if path.exists() else (parent,)
    if not all(os.access(each, os.W_OK) for each in paths):
        raise InvalidArgument(f"{flag}: '{path}' cannot be written: permission denied")


def write(path: Path, text: str, flag: str) -> None:
    """Write a whole file, or nothing. Raises InvalidArgument."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # it may not exist
            beside.unlink()
        raise InvalidArgument(f"{flag}: '{path}' cannot be written: {error.strerror}") from None
