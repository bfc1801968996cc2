"""Checking models without serving them: every problem, where it is and how to fix it.

    folders and files --> Inspection --> a ModelReport per model: problems, warnings, full config

Each model is prepared as for a load; model files are loaded, too, and on request code. Ensembles
are checked against the configurations of their models.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from shoal.backends.file_backend import FileBackend
from shoal.config import rules
from shoal.config.model import ModelConfig
from shoal.core.request import Request
from shoal.core.signature import Signature
from shoal.errors import ConfigError, InvalidArgument, NotFound, ShoalError, Unavailable
from shoal.models.ensemble import load_version
from shoal.models.served import ServedModel
from shoal.models.spec import ModelSpec, build_signature
from shoal.repository import dependencies, ensembles, layout
from shoal.repository.declared import DeclaredModels, is_model_file
from shoal.repository.lifecycle import UnreadableModel
from shoal.repository.loader import DUPLICATE
from shoal.repository.preparation import PreparationSettings, composing_names, prepare
from shoal.tasks.endpoint import check_task
from shoal.tasks.workers import Workers

_CONFIG = "config.pbtxt"


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a model cannot be served."""

    message: str
    file: str = ""
    field: str = ""
    fix: str = ""


@dataclass(slots=True)
class ModelReport:
    """The result for one model."""

    name: str
    place: str
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    spec: ModelSpec | None = None
    loaded: bool = False

    @property
    def ok(self) -> bool:
        """Whether it can be served, as far as was checked."""
        return not self.problems

    @property
    def config(self) -> ModelConfig | None:
        """The full configuration, if the model could be prepared."""
        return None if self.spec is None else self.spec.config


class Inspection:
    """Checks the models of some folders and files."""

    def __init__(self, paths: Sequence[Path], settings: PreparationSettings) -> None:
        """Find the models of `paths`: repositories, folders of a model, Python and model files.

        Raises NotFound for a path that does not exist.
        """
        self._found: dict[str, list[Path]] = {}
        self._beside: dict[str, list[Path]] = {}  # models that a single ensemble may run
        self._broken: list[ModelReport] = []  # paths whose models are not known
        self._reports: dict[str, ModelReport] = {}
        self._declared = [DeclaredModels([path]) for path in paths if is_model_file(path)]
        for path in paths:
            if not is_model_file(path):
                self._add_folder(path)
        for source in self._declared:
            self._add_file(source)
        self._workers = Workers(1)  # for tasks of models that are loaded
        self._settings = dataclasses.replace(
            settings, models=_Prepared(self), task_workers=lambda: self._workers
        )
        self._needs = dependencies.closure(
            self._found,
            lambda name: [
                needed
                for place in self._places(name)[:1]
                for needed in composing_names(name, place, settings, None)
            ],
        )

    def reports(self, *, load: bool = False) -> Iterator[ModelReport]:
        """Every model, by name. Model files are loaded and closed again: only that shows whether
        they can be served. Models that are code are loaded, and all are warmed up, with `load`."""
        yield from self._broken
        for name in sorted(self._found):
            report = self.report(name)
            if report.ok:
                self._load(report, all_of_it=load)
            yield report

    def report(self, name: str) -> ModelReport:
        """One model. NotFound for an unknown name."""
        places = self._places(name)
        if not places:
            there = ", ".join(sorted(self._found)) or "none"
            raise NotFound(f"there is no model '{name}'; models found: {there}")
        if name not in self._reports:
            report = self._reports[name] = ModelReport(name, str(places[0]))
            self._prepare(report)
        return self._reports[name]

    def names(self) -> list[str]:
        """The names of all models."""
        return sorted(self._found)

    def broken(self) -> Sequence[ModelReport]:
        """Paths that could not be read at all."""
        return self._broken

    def close(self) -> None:
        """Release the modules of Python files, and threads."""
        self._workers.close()
        for source in self._declared:
            source.close()

    # ---- all models

    def _places(self, name: str) -> list[Path]:
        return self._found.get(name) or self._beside.get(name) or []

    def _add_folder(self, path: Path) -> None:
        if not path.is_dir():
            kind = "is not a model file of a known kind" if path.exists() else "does not exist"
            raise NotFound(f"'{path}' {kind}; name a folder of models, or of one model")
        if layout.is_model_folder(path):
            self._found.setdefault(path.resolve().name, []).append(path)
            self._beside |= layout.find_models([path.resolve().parent])
            return
        models = layout.find_models([path])
        if not models:
            fix = "Put each model into a folder of its own, as in models/resnet/1/model.onnx"
            problem = Problem("this folder has no models", str(path), fix=fix)
            self._broken.append(ModelReport(path.name or str(path), str(path), [problem]))
        for name, folders in models.items():
            self._found.setdefault(name, []).extend(folders)

    def _add_file(self, source: DeclaredModels) -> None:
        try:
            found = source.found()
        except ShoalError as error:
            problem = problems_of(error, "")[0]
            self._broken.append(ModelReport(problem.file, problem.file, [problem]))
            return
        for name, places in found.items():
            self._found.setdefault(name, []).extend(places)

    # ---- one model

    def _prepare(self, report: ModelReport) -> None:
        name, places = report.name, self._places(report.name)
        with _warnings(report.warnings):
            try:
                layout.check_name(name)
                if len(places) > 1:
                    paths = ", ".join(map(str, places))
                    raise InvalidArgument(f"{DUPLICATE} ({paths}). Rename one of them")
                path = dependencies.circle(name, self._needs)
                if path:
                    raise ensembles.circular(path, file=str(places[0] / _CONFIG))
                spec = prepare(name, places[0], self._settings_for(places[0], name), None)
                signature = build_signature(spec.config, spec.folder)  # reads the labels
                check_task(spec.config, signature, spec.folder)
                report.spec = spec
            except Exception as error:  # noqa: BLE001 - any error of a backend is a problem, too
                report.problems += problems_of(error, report.place)

    def _settings_for(self, place: Path, name: str) -> PreparationSettings:
        for source in self._declared:
            if source.find(place, name) is not None:
                return dataclasses.replace(self._settings, declared=source)
        return self._settings

    def _load(self, report: ModelReport, *, all_of_it: bool) -> None:
        """Load each version and close it again. An ensemble has nothing to load."""
        spec = report.spec
        assert spec is not None
        if spec.ensemble is not None:
            return
        if not all_of_it:
            if not isinstance(spec.backend, FileBackend):
                return
            bare = dataclasses.replace(spec.config, model_warmup=())
            spec = dataclasses.replace(spec, config=bare)
        with _warnings(report.warnings):
            for version in spec.version_folders:
                try:
                    load_version(spec, version).close()
                    report.loaded = all_of_it
                except Exception as error:  # noqa: BLE001 - as above
                    place = str(spec.version_folders[version])
                    report.problems += problems_of(error, place)


class _Prepared:
    """The models of an inspection, for ensembles and models that call others."""

    def __init__(self, inspection: Inspection) -> None:
        self._inspection = inspection

    def serving(self, name: str, version: int = -1) -> ServedModel | None:
        """An outline of the model with its tensors; None if it could not be served."""
        spec = self._spec(name)
        if spec is None or (version != -1 and version not in spec.version_folders):
            return None
        policy = spec.config.model_transaction_policy
        if spec.ensemble is not None:
            decoupled = spec.ensemble.decoupled
        else:
            decoupled = policy is not None and policy.decoupled
        outline = _ModelOutline(build_signature(spec.config, spec.folder), decoupled)
        return cast("ServedModel", outline)

    def _spec(self, name: str) -> ModelSpec | None:
        try:
            return self._inspection.report(name).spec
        except NotFound:
            return None

    def ready_versions(self, name: str) -> list[int]:
        """The versions that would be served."""
        spec = self._spec(name)
        return [] if spec is None else sorted(spec.version_folders)

    def why_not(self, name: str) -> str:
        """The first problem of a model."""
        try:
            problems = self._inspection.report(name).problems
        except NotFound:
            return ""
        return problems[0].message if problems else ""

    def seen_from(self, namespace: str) -> _Prepared:
        """The same: names are unique here."""
        del namespace
        return self

    def is_decoupled(self, name: str, version: int = -1) -> bool:
        """Whether a model may send any number of responses."""
        found = self.serving(name, version)
        if found is None:
            raise NotFound(f"there is no model '{name}'")
        return found.decoupled

    def model_ready(self, name: str, version: int = -1) -> bool:
        """No model is served."""
        del name, version
        return False

    def infer(self, request: Request) -> None:
        """No model is served."""
        del request
        raise Unavailable("models are only checked, none is served")

    def load(self, name: str, config_json: str | None, files: Mapping[str, bytes]) -> None:
        """No model is served."""
        del name, config_json, files
        raise Unavailable("models are only checked, none is loaded for another")

    def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """No model is served."""
        del name, unload_dependents


@dataclass(frozen=True, slots=True)
class _ModelOutline:
    """What an ensemble's graph needs to know of a model."""

    signature: Signature
    decoupled: bool
    takes_device_tensors: bool = False  # this and the next matter only at inference
    limits_latency: bool = False


def problems_of(error: BaseException, place: str) -> list[Problem]:
    """An exception as problems; `place` is the file if the exception names none."""
    if isinstance(error, UnreadableModel) and error.__cause__ is not None:
        return problems_of(error.__cause__, place)
    if isinstance(error, rules.InvalidConfig):
        return [Problem(f.message, error.file, f.field, f.fix) for f in error.faults()]
    if isinstance(error, ConfigError):
        where = ": ".join(part for part in (error.file, error.field) if part)
        text = error.message.removeprefix(f"{where}: ") if where else error.message
        text = text.removesuffix(f". {error.fix}") if error.fix else text
        return [Problem(text, error.file or place, error.field, error.fix)]
    if isinstance(error, ShoalError):
        return [Problem(error.message, place)]
    return [Problem(f"{type(error).__name__}: {error}", place)]


@contextlib.contextmanager
def _warnings(into: list[str]) -> Iterator[None]:
    """Collect warnings of the log meanwhile, and show nothing of it."""
    logger = logging.getLogger("shoal")
    collector = _WarningCollector(into)
    passed_on, logger.propagate = logger.propagate, False
    logger.addHandler(collector)
    try:
        yield
    finally:
        logger.removeHandler(collector)
        logger.propagate = passed_on


class _WarningCollector(logging.Handler):
    def __init__(self, into: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:  # errors are raised anyway
            self._into.append(record.getMessage())
