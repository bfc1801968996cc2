"""Loading and unloading models, each with those it needs and those that need it.

    load(ensemble) --> the models that it runs, then the ensemble
    load(model)    --> the model, then the ensembles that run it are checked

Loads of different models run in parallel; a `ModelLifecycle` serialises changes to one model.
An ensemble is loaded after the models that it runs and checked again whenever one of them has
changed, so that in any order of changes it fits its models in the end, or is not served.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import Internal, InvalidArgument, ShoalError
from shoal.repository import dependencies, ensembles, layout, namespaces
from shoal.repository.dependencies import DependencyRegistry
from shoal.repository.downloads import ModelDownloads
from shoal.repository.ensembles import RepositoryModels
from shoal.repository.folders import RepositoryFolders
from shoal.repository.lifecycle import UNLOADED, LoadFailed, ModelLifecycle
from shoal.repository.memory import give_memory_back
from shoal.repository.namespaces import namespace_of, plain_name
from shoal.repository.preparation import Override, PreparationSettings, composing_names, prepare
from shoal.repository.remote import RemoteSource
from shoal.storage.mirrors import Mirrors

logger = logging.getLogger(__name__)

DUPLICATE = "model appears in two or more repositories"


@dataclass(frozen=True, slots=True)
class RepositorySettings:
    """What is served, and how it may change."""

    paths: Sequence[Path]
    remote: Sequence[RemoteSource] = ()
    mirrors: Mirrors | None = None  # that of the remote ones, to be closed at the end
    control_mode: str = "none"  # none | poll | explicit | lazy
    poll_secs: float = 15
    load_models: Sequence[str] = ()  # explicit and lazy: loaded at the start, or ("*",)
    load_threads: int = 4
    load_retries: int = 0
    preparation: PreparationSettings = field(default_factory=PreparationSettings)
    namespacing: bool = False  # names need to be unique within a repository only
    strict: bool = False  # the server is not ready while a repository cannot be read
    memory_budget_bytes: int = 0  # lazy mode: for all models together; 0: no limit


class ModelLoader:
    """Loads and unloads models."""

    def __init__(self, settings: RepositorySettings, models: RepositoryModels) -> None:
        """`models` is the whole repository, for the ensembles in it."""
        # By key (see namespaces). Only those of repositories that are unregistered are removed.
        self.lifecycles: dict[str, ModelLifecycle] = {}
        self.by_name: Mapping[str, Sequence[str]] = {}  # the keys of `lifecycles` by plain name
        self._settings = settings
        self._models = models
        self.folders = RepositoryFolders(
            settings.paths,
            remote=settings.remote,
            namespaced=settings.namespacing,
            strict=settings.strict,
        )
        self._preparation = dataclasses.replace(settings.preparation, models=models)
        self._downloads = ModelDownloads(self.folders, self._preparation)
        self._overrides: dict[str, Override] = {}
        self._dependencies = DependencyRegistry()  # of ensembles on models
        # Called with the name of a model when other versions of it serve.
        self.changed: Callable[[str], None] = lambda _name: None
        self.changes = 0  # how often other versions of a model began to serve
        # Guards changes of lifecycles, by_name and _overrides.
        self._growing = threading.Lock()

    def load_all(self, names: Sequence[str]) -> dict[str, str]:
        """Load models and all they need; returns the reason of each failure. Blocks."""
        failures: dict[str, str] = {}
        if not names:
            return failures
        self._dependencies.ask_for(names)
        found = self.found()
        self._downloads.fetch_configs(names, found)
        needs = dependencies.closure(names, lambda name: self._composing(name, found))
        self._dependencies.note(needs)

        def attempt(name: str) -> None:
            try:
                self._load_one(name)
            except ShoalError as error:
                failures[name] = error.message
            except Exception as error:  # an error of one backend must not stop other models
                logger.exception("loading '%s' failed", name)
                failures[name] = f"{type(error).__name__}: {error}"

        downloads = self._downloads.start(needs, found)
        with ThreadPoolExecutor(max(1, self._settings.load_threads), "shoal-load") as pool:
            for level in dependencies.levels(needs):
                wait([pool.submit(attempt, name) for name in downloads.as_complete(level)])
        return failures

    def as_fetched(self, names: Sequence[str], secs: float) -> Iterator[str]:
        """The names, each when the files of its model are on this machine; local ones at once.

        Without those that take longer than `secs`, whose downloads continue.
        """
        return self._downloads.start(names, self.found()).as_complete(names, secs)

    def load_requested(self, name: str, override: Override | None) -> None:
        """Load what a client requested by name, with the config and files of its request.

        Owns `override`: it stays in force until the next load, or is discarded if this one fails.
        Raises as `load`.
        """
        self._dependencies.ask_for([name])
        try:
            self.load(name, override)
        except BaseException:
            if override is not None:
                override.discard()
            raise
        with self._growing:
            previous = self._overrides.pop(name, None)
            if override is not None:
                self._overrides[name] = override
        if previous is not None:
            previous.discard()

    def load_again(self, name: str) -> None:
        """Load a model as it was loaded last, with the same override. As `load`."""
        self._dependencies.ask_for([name])
        self.load(name, self._overrides.get(name))

    def load(self, name: str, override: Override | None = None) -> None:
        """Load a model after those it runs; then check the ensembles that run it.

        Blocks. Raises Internal for a model that cannot be read, InvalidArgument when its load
        fails; earlier versions serve on then, unless they do not fit their models any more.
        """
        layout.check_name(plain_name(name))
        found = self.found()

        def composing(other: str) -> list[str]:
            own = override if other == name else self._overrides.get(other)
            return self._composing(other, found, own)

        needs = dependencies.closure([name], composing)
        self._dependencies.note(needs)
        for other in (other for level in dependencies.levels(needs) for other in level):
            if other != name:
                self._load_for(other, name)
        try:
            self._load_one(name, override)
        except ShoalError:
            self._check_fits(name)
            raise
        self._renew_dependents(name)
        self._settle_names(name)

    def unload(self, name: str) -> None:
        """Unload a model, after the ensembles that need it; files of clients are deleted."""
        self._dependencies.remove(name)
        for other in reversed(self._dependencies.dependents(name)):
            dependent = self.lifecycles.get(other)
            if dependent is not None and dependent.serving:
                dependent.stop_serving(f"{UNLOADED}: '{name}', which it runs, was unloaded")
        lifecycle = self.lifecycles.get(name)
        if lifecycle is not None:
            lifecycle.unload()
            logger.info("successfully unloaded '%s'", name)
        with self._growing:
            override = self._overrides.get(name)
            if override is not None and override.has_files:
                del self._overrides[name]
        if override is not None and override.has_files:
            override.discard()
        self._settle_names(name)

    def evict(self, name: str, reason: str) -> None:
        """Unload a model that nothing needs now; it may be loaded again at any time."""
        self._dependencies.remove(name)
        self.lifecycles[name].stop_serving(reason)
        logger.info("'%s': %s", name, reason)

    def unload_tree(self, name: str) -> None:
        """Unload a model, the ensembles that run it, and models that only it needed."""
        for other in reversed(self._dependencies.dependents(name)):
            self.unload(other)
        orphans = self._dependencies.remove(name)
        self.unload(name)
        for orphan in orphans:
            self.unload_tree(orphan)

    def unload_all(self) -> None:
        """Unload everything; returns when queued requests are answered and memory is released."""
        needs = dict.fromkeys(self.lifecycles, ()) | self._dependencies.needs()
        for level in reversed(dependencies.levels(needs)):  # ensembles first
            for name in level:
                if name in self.lifecycles:
                    self.lifecycles[name].leaving = True
                    self.lifecycles[name].unload()
        for lifecycle in list(self.lifecycles.values()):
            lifecycle.wait_closed()
        give_memory_back()
        for override in self._overrides.values():
            override.discard()

    def remove_unloaded(self, keys: Collection[str]) -> list[ModelLifecycle]:
        """Remove what is known of models that serve no more and have no folder; returns them."""
        found = self.found()
        removed: list[ModelLifecycle] = []
        with self._growing:
            for key in keys:
                lifecycle = self.lifecycles.get(key)
                if lifecycle is None or lifecycle.serving or key in found:
                    continue
                plain = plain_name(key)
                others = tuple(other for other in self.by_name[plain] if other != key)
                names = {name: kept for name, kept in self.by_name.items() if name != plain}
                self.by_name = {**names, plain: others} if others else names
                del self.lifecycles[key]
                removed.append(lifecycle)
        return removed

    def know(self, name: str) -> None:
        """Register a model, whether or not it is ever loaded."""
        self._lifecycle(name)

    def dependents(self, name: str) -> list[str]:
        """The ensembles that run a model, directly or through others."""
        return self._dependencies.dependents(name)

    def found(self) -> dict[str, list[Path]]:
        """The folders of models in the repositories, or the files that declare them, by key."""
        found = self.folders.find()
        namespaced = self._settings.namespacing
        for key, files in self._preparation.declared.found(namespaced=namespaced).items():
            found.setdefault(key, []).extend(files)
        return found

    def read_again(self, name: str) -> None:
        """If a model is declared in a Python file that has changed, import the file again.

        Raises ConfigError, which the index shows, too; earlier models serve on.
        """
        try:
            self._preparation.declared.refresh(plain_name(name))
        except ShoalError as error:
            lifecycle = self.lifecycles.get(name)
            if lifecycle is not None:
                lifecycle.refuse(error.message)
            raise

    # ---- one model

    def _load_one(self, name: str, override: Override | None = None) -> None:
        plain = plain_name(name)
        layout.check_name(plain)
        folders = self.found().get(name, [])
        brings_files = override is not None and override.folder(plain) is not None
        if not folders and not brings_files:
            reason = self.folders.why_missing(name) or f"there is no folder '{name}' in it"
            if name in self.lifecycles:
                self.lifecycles[name].note_missing(reason)
            raise _not_read(name, f": {reason}")
        lifecycle = self._lifecycle(name)
        if len(folders) > 1 and not brings_files:
            paths = ", ".join(str(folder) for folder in folders)
            lifecycle.refuse(DUPLICATE)
            raise InvalidArgument(
                f"failed to load '{name}': {DUPLICATE} ({paths}). Rename one of them"
            )
        folder = folders[0] if folders else Path(name)
        preparation = dataclasses.replace(self._preparation, namespace=namespace_of(name))
        self._check_circle(lifecycle, folder)
        if not brings_files:
            self._fetch(lifecycle, folder, override)
        for attempt in range(self._settings.load_retries + 1):
            try:
                lifecycle.load(lambda: prepare(plain, folder, preparation, override))
            except ShoalError as error:
                if attempt < self._settings.load_retries:
                    continue
                if isinstance(error, LoadFailed):
                    text = f"load failed for model '{name}': {error.message}"
                    raise InvalidArgument(text) from error
                raise _not_read(name, f": {error.code.value}: {error.message}") from error
            else:
                break
        ready = ", ".join(str(version) for version in sorted(lifecycle.serving))
        logger.info("successfully loaded '%s' version %s", name, ready)

    def _fetch(self, lifecycle: ModelLifecycle, folder: Path, override: Override | None) -> None:
        """Have the files of a model of a remote repository on this machine. Earlier versions serve
        meanwhile, and can be unloaded: then the load has no effect."""
        unload_count = lifecycle.unload_count
        try:
            self._downloads.fetch(lifecycle.name, folder, override)
        except ShoalError as error:
            lifecycle.refuse(error.message)
            raise _not_read(lifecycle.name, f": {error.code.value}: {error.message}") from error
        if lifecycle.unload_count != unload_count:
            raise InvalidArgument(
                f"load failed for model '{lifecycle.name}': it was unloaded while its files were "
                "downloaded"
            )

    def tell(self, name: str) -> None:
        """Other versions of a model serve now; "" where several names may be meant."""
        self.changes += 1  # a lost race loses no change: the other one is seen
        self.changed(name)

    def _lifecycle(self, name: str) -> ModelLifecycle:
        with self._growing:
            lifecycle = self.lifecycles.get(name)
            if lifecycle is None:
                plain = plain_name(name)
                self.by_name = {**self.by_name, plain: (*self.by_name.get(plain, ()), name)}
                lifecycle = self.lifecycles[name] = ModelLifecycle(name, self.tell)
            return lifecycle

    def _check_circle(self, lifecycle: ModelLifecycle, folder: Path) -> None:
        path = dependencies.circle(lifecycle.name, self._dependencies.needs())
        if path:
            file = layout.config_file(folder, self._preparation.config_name)
            error = ensembles.circular(path, file=str(file))
            lifecycle.refuse(error.message)
            raise InvalidArgument(f"load failed for model '{lifecycle.name}': {error.message}")

    # ---- ensembles

    def _composing(
        self, name: str, found: Mapping[str, Sequence[Path]], override: Override | None = None
    ) -> list[str]:
        """The models that one runs, from its config."""
        plain = plain_name(name)
        folder = override.folder(plain) if override is not None else None
        if folder is None and found.get(name):
            folder = self._downloads.config_folder(found[name][0])
        names = composing_names(plain, folder, self._preparation, override) if folder else []
        return self._keys(name, names, found)

    def _keys(self, name: str, others: list[str], found: Mapping[str, Sequence[Path]]) -> list[str]:
        """The keys of the models that are called `others` in the config of `name`."""
        if not self._settings.namespacing:
            return others
        return [namespaces.resolve(other, namespace_of(name), found) for other in others]

    def _settle_names(self, changed: str) -> None:
        """With namespaces: a name may stand for another model after a load or unload."""
        if not self._settings.namespacing:
            return
        found = self.found()
        for ensemble, needed in self._dependencies.needs().items():
            if not namespaces.same_name(plain_name(changed), needed):
                continue
            if self._composing(ensemble, found, self._overrides.get(ensemble)) != needed:
                try:
                    self.load(ensemble, self._overrides.get(ensemble))
                except ShoalError as error:
                    logger.error("%s", error.message)  # noqa: TRY400 - a sentence, not a traceback

    def _load_for(self, name: str, ensemble: str) -> None:
        """Load a model that an ensemble needs. The ensemble's load will report errors."""
        if self._settings.control_mode in ("poll", "lazy") and self._serves(name):
            return  # the poller handles its changes, and a lazy one stays as it is
        try:
            self._load_one(name, self._overrides.get(name))
        except ShoalError as error:
            logger.error("%s", error.message)  # noqa: TRY400 - a sentence, not a traceback
        self._renew_dependents(name, but=(ensemble,))

    def _renew_dependents(self, name: str, but: Collection[str] = ()) -> None:
        """Reload the ensembles that run a model which has changed."""
        for ensemble in self._dependencies.direct_dependents(name):
            lifecycle = self.lifecycles.get(ensemble)
            if lifecycle is None or ensemble in but:
                continue
            if lifecycle.newest is None and self._settings.control_mode == "lazy":
                continue  # its next request will load it
            before = dict(lifecycle.serving)
            try:
                self._renew(lifecycle)
            except ShoalError as error:
                logger.error("%s", error.message)  # noqa: TRY400 - a sentence, not a traceback
                if before:
                    _stop_serving(lifecycle, error)
            if dict(lifecycle.serving) != before:
                self._renew_dependents(ensemble)

    def _renew(self, lifecycle: ModelLifecycle) -> None:
        if lifecycle.newest is None:  # it has waited for this
            self._load_one(lifecycle.name, self._overrides.get(lifecycle.name))
            return
        spec = lifecycle.newest.spec
        models = self._models.seen_from(spec.context.namespace)
        lifecycle.load(lambda: ensembles.renewed(spec, models))

    def _serves(self, name: str) -> bool:
        lifecycle = self.lifecycles.get(name)
        return lifecycle is not None and bool(lifecycle.serving)

    def _check_fits(self, name: str) -> None:
        """After a failed load: the version that still serves must fit the current models."""
        lifecycle = self.lifecycles.get(name)
        if lifecycle is None or lifecycle.newest is None or lifecycle.newest.spec.ensemble is None:
            return
        spec = lifecycle.newest.spec
        names = ensembles.composing_names(spec.config)
        self._dependencies.also_needs(name, self._keys(name, names, self.found()))
        try:
            ensembles.renewed(spec, self._models.seen_from(spec.context.namespace))
        except ShoalError as error:
            _stop_serving(lifecycle, error)
            self._renew_dependents(name)


def _stop_serving(lifecycle: ModelLifecycle, error: ShoalError) -> None:
    """Stop an ensemble that does not fit its models any more."""
    cause = error.__cause__
    lifecycle.stop_serving(cause.message if isinstance(cause, ShoalError) else error.message)


def _not_read(name: str, why: str) -> Internal:
    """The error of a model that could not be read. Clients match on this text and its code."""
    return Internal(f"failed to load '{name}', failed to poll from model repository{why}")
