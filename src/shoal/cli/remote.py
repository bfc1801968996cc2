"""Models at addresses, for commands that need them as folders of this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.config.options import Options
from shoal.errors import InvalidArgument, NotFound, ShoalError
from shoal.repository import layout
from shoal.repository.inspection import ModelReport
from shoal.repository.preparation import PreparationSettings, composing_names, version_policy
from shoal.storage import listing
from shoal.storage.address import is_address, parse
from shoal.storage.errors import StorageError
from shoal.storage.mirror import Mirror
from shoal.storage.mirrors import Mirrors
from shoal.storage.retries import RetryPolicy, with_retries
from shoal.storage.source import RemoteFile, Source


@contextlib.contextmanager
def opened(
    options: Options, arrived: Callable[[int], None] = lambda _size: None
) -> Iterator[Mirrors]:
    """The remote repositories that a command reads, with the options of `shoal serve`.

    `arrived` is called by any thread with the sizes of what was downloaded.
    """
    from shoal import settings

    with settings.mirrors(options, arrived=arrived) as mirrors:
        yield mirrors


@dataclass(frozen=True, slots=True)
class LocalPaths:
    """Paths of this machine, and the addresses whose models are in them."""

    paths: Sequence[Path]
    addresses: Mapping[str, str]  # by path

    def with_addresses(self, report: ModelReport) -> ModelReport:
        """A report that names addresses in place of folders of the cache."""
        return dataclasses.replace(
            report,
            place=self._shown(report.place),
            problems=[
                dataclasses.replace(
                    problem,
                    file=self._shown(problem.file),
                    message=self._shown(problem.message),
                    fix=self._shown(problem.fix),
                )
                for problem in report.problems
            ],
            warnings=[self._shown(warning) for warning in report.warnings],
        )

    def _shown(self, text: str) -> str:
        for path, address in self.addresses.items():
            text = text.replace(path, address)
        return text


@contextlib.contextmanager
def local_repositories(
    options: Options,
    preparation: PreparationSettings,
    name: str = "",
    *,
    one_model: bool = False,
) -> Iterator[LocalPaths]:
    """The paths of the options; for addresses folders with all their models, or the one model that
    they are the address of. With `name` only that model is downloaded, and models that it runs.

    Raises StorageError if they cannot be read, and InvalidArgument for an address with several
    models if there must be `one_model` and it has no name.
    """
    if not any(is_address(path) for path in options.model_repository):
        yield LocalPaths([Path(path) for path in options.model_repository], {})
        return
    with opened(options) as mirrors:
        paths = [
            _local(mirrors, path, name, preparation, one_model=one_model)
            if is_address(path)
            else Path(path)
            for path in options.model_repository
        ]
        shown = {
            str(path): str(parse(text))
            for path, text in zip(paths, options.model_repository, strict=True)
            if is_address(text)
        }
        yield LocalPaths(paths, shown)


def local_model(
    options: Options, path: str, name: str, preparation: PreparationSettings
) -> contextlib.AbstractContextManager[LocalPaths]:
    """One path that may be an address, and the model called `name` in it, or its only one."""
    only = dataclasses.replace(options, model_repository=(path,))
    return local_repositories(only, preparation, name, one_model=True)


def parent_and_name(text: str) -> tuple[str, str]:
    """The address of a repository and the name of a model, from the address of the model.

    Raises InvalidArgument if it has no part that can be the name.
    """
    address = parse(text)
    parent, slash, name = address.rest.rpartition("/")
    if not slash or not parent or address.scheme in ("http", "https", "hf"):
        raise InvalidArgument(
            f"'{address}' is not the address of a model in an object store; write "
            "s3://bucket/models/name"
        )
    layout.check_name(name)
    return f"{address.scheme}://{parent}", name


def listed(source: Source) -> Sequence[RemoteFile]:
    """The files of a repository, however often that must be tried. Raises StorageError."""
    return with_retries(source.list, RetryPolicy(), threading.Event())


def put_config(options: Options, text: str, name: str, file: Path) -> str:
    """Store a config.pbtxt for the model called `name` at an address, or for the model that the
    address is of; returns its address. Raises StorageError."""
    if not name:
        text, name = parent_and_name(text)
    with opened(options) as mirrors:
        source = mirrors.open(text).source
        with_retries(
            lambda: source.put(f"{name}/config.pbtxt", file), RetryPolicy(), threading.Event()
        )
    return f"{source.address}/{name}/config.pbtxt"


def fetch(mirror: Mirror, name: str, preparation: PreparationSettings) -> Path:
    """The folder of a model, with the versions that a server would load, and those of the models
    that it runs. Raises StorageError, and NotFound if there is no such model."""
    pending, done = [name], set[str]()
    while pending:
        current = pending.pop()
        if current in done or (done and current not in mirror.models):
            continue
        done.add(current)
        if current not in mirror.models:
            there = ", ".join(sorted(mirror.models)) or "none"
            raise NotFound(f"there is no model '{name}' in '{mirror.address}'; models: {there}")
        folder = mirror.fetch(current, served_versions(mirror, current, preparation))
        pending += composing_names(current, folder, preparation, None)
    return mirror.folder / name


def served_versions(
    mirror: Mirror, name: str, preparation: PreparationSettings
) -> Callable[[Collection[int]], Collection[int]]:
    """Which of the versions of a model its version policy selects; all if it cannot be read."""

    def choose(available: Collection[int]) -> Collection[int]:
        try:
            policy = version_policy(name, mirror.config_folder(name), preparation, None)
        except StorageError:
            raise
        except ShoalError:
            return available
        return layout.select_versions(policy, available, name, quiet=True)

    return choose


def _local(
    mirrors: Mirrors, text: str, name: str, preparation: PreparationSettings, *, one_model: bool
) -> Path:
    mirror = mirrors.open(text)
    if not name and listing.is_one_model(listed(mirror.source)):
        text, one = parent_and_name(text)
        mirror = mirrors.open(text)
        mirror.refresh()
        return fetch(mirror, one, preparation)
    mirror.refresh()
    if one_model and not name and len(mirror.models) > 1:
        names = sorted(mirror.models)
        raise InvalidArgument(
            f"there are {len(names)} models in '{mirror.address}' ({', '.join(names)}); name one "
            "of them"
        )
    if not name:
        return mirrors.local(text)
    fetch(mirror, name, preparation)
    return mirror.folder
