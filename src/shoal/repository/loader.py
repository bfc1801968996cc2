"""Loading and unloading models, each with those it needs and those that need it.

    load(ensemble) --> the models it is made of, then the ensemble
    load(model)    --> the model, then a look at the ensembles made of it

Loads of different models run side by side; changes to one model are serialised by its `ModelLife`.
An ensemble is loaded after the models it is made of and looked at again whenever one of them has
changed, so whatever order changes come in, in the end it fits the models there are, or is not
served.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import Internal, InvalidArgument, ShoalError
from shoal.repository import dependencies, ensembles, layout, namespaces
from shoal.repository.dependencies import Relations
from shoal.repository.ensembles import Models
from shoal.repository.lifecycle import UNLOADED, LoadFailed, ModelLife, give_memory_back
from shoal.repository.namespaces import namespace_of, plain_name
from shoal.repository.preparation import Override, PreparationSettings, composing_names, prepare

logger = logging.getLogger(__name__)

DUPLICATE = "model appears in two or more repositories"


@dataclass(frozen=True, slots=True)
class RepositorySettings:
    """What is served and how it may change."""

    paths: Sequence[Path]
    control_mode: str = "none"  # none | poll | explicit | lazy
    poll_secs: float = 15
    load_models: Sequence[str] = ()  # explicit and lazy: what to load at start, or ("*",)
    load_threads: int = 4
    load_retries: int = 0
    preparation: PreparationSettings = field(default_factory=PreparationSettings)
    namespacing: bool = False  # names need be unique within a repository only
    memory_budget_bytes: int = 0  # lazy mode: what models may hold together; 0 sets no limit


class ModelLoader:
    """Everything that changes what is served."""

    def __init__(self, settings: RepositorySettings, models: Models) -> None:
        """`models` is the whole repository, for the ensembles in it."""
        self.lives: dict[str, ModelLife] = {}  # by key (see namespaces); grows, never shrinks
        self.by_name: Mapping[str, Sequence[str]] = {}  # the keys of `lives` by plain name
        self._settings = settings
        self._models = models
        self._preparation = dataclasses.replace(settings.preparation, models=models)
        self._overrides: dict[str, Override] = {}
        self._relations = Relations()  # of ensembles to the models they are made of
        # Guards additions to lives and by_name, and changes of _overrides.
        self._growing = threading.Lock()

    def load_all(self, names: Sequence[str]) -> dict[str, str]:
        """Load models at start and all they need; returns why each that failed did. Blocks."""
        failures: dict[str, str] = {}
        if not names:
            return failures
        self._relations.ask_for(names)
        found = self.found()
        needs = dependencies.closure(names, lambda name: self._composing(name, found))
        self._relations.note(needs)

        def attempt(name: str) -> None:
            try:
                self._load_one(name)
            except ShoalError as error:
                failures[name] = error.message
            except Exception as error:  # a backend's surprise must not stop the other models
                logger.exception("loading '%s' failed", name)
                failures[name] = f"{type(error).__name__}: {error}"

        with ThreadPoolExecutor(max(1, self._settings.load_threads), "shoal-load") as pool:
            for level in dependencies.levels(needs):
                list(pool.map(attempt, level))
        return failures

    def load_asked(self, name: str, override: Override | None) -> None:
        """Load what somebody asked for by name, with what the request brought along.

        Takes `override` over: it stays in force until the next load, or is discarded if this one
        fails. Raises as `load`.
        """
        self._relations.ask_for([name])
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
        """Load a model as it was loaded last, with what that load brought along. As `load`."""
        self._relations.ask_for([name])
        self.load(name, self._overrides.get(name))

    def load(self, name: str, override: Override | None = None) -> None:
        """Load a model, before it those it is made of; then look at those made of it.

        Blocks. Raises Internal for a model that cannot be read, InvalidArgument when its load
        fails; what served before then still serves, unless it does not fit its models any more.
        """
        layout.check_name(plain_name(name))
        found = self.found()

        def composing(other: str) -> list[str]:
            own = override if other == name else self._overrides.get(other)
            return self._composing(other, found, own)

        needs = dependencies.closure([name], composing)
        self._relations.note(needs)
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
        """Unload a model, after the ensembles that cannot be without it."""
        self._relations.forget(name)
        for other in reversed(self._relations.dependents(name)):
            dependent = self.lives.get(other)
            if dependent is not None and dependent.serving:
                dependent.withdraw(f"{UNLOADED}: '{name}', which it is made of, was unloaded")
        life = self.lives.get(name)
        if life is not None:
            life.unload()
            logger.info("successfully unloaded '%s'", name)
        self._settle_names(name)

    def evict(self, name: str, reason: str) -> None:
        """Unload a model that nothing needs now; it may be asked for again at any time."""
        self._relations.forget(name)
        self.lives[name].withdraw(reason)
        logger.info("'%s': %s", name, reason)

    def unload_tree(self, name: str) -> None:
        """Unload a model, what is made of it, and what only it needed."""
        for other in reversed(self._relations.dependents(name)):
            self.unload(other)
        orphans = self._relations.forget(name)
        self.unload(name)
        for orphan in orphans:
            self.unload_tree(orphan)

    def unload_all(self) -> None:
        """Unload everything; returns when queued requests are answered and memory is free."""
        needs = dict.fromkeys(self.lives, ()) | self._relations.needs()
        for level in reversed(dependencies.levels(needs)):  # ensembles first
            for name in level:
                if name in self.lives:
                    self.lives[name].leaving = True
                    self.lives[name].unload()
        for life in list(self.lives.values()):
            life.wait_closed()
        give_memory_back()
        for override in self._overrides.values():
            override.discard()

    def know(self, name: str) -> None:
        """There is such a model, whether or not anybody ever loads it."""
        self._life(name)

    def dependents(self, name: str) -> list[str]:
        """What is made of a model, directly or through others."""
        return self._relations.dependents(name)

    def found(self) -> dict[str, list[Path]]:
        """The folders of models in the repositories, or the files that declare them, by key."""
        namespaced = self._settings.namespacing
        found = layout.find_models(self._settings.paths, namespaced=namespaced)
        for key, files in self._preparation.declared.found(namespaced=namespaced).items():
            found.setdefault(key, []).extend(files)
        return found

    def read_again(self, name: str) -> None:
        """If a model is declared in a Python file that has changed: import the file again.

        Raises ConfigError, which the index then tells too; what served before still serves.
        """
        try:
            self._preparation.declared.refresh(plain_name(name))
        except ShoalError as error:
            life = self.lives.get(name)
            if life is not None:
                life.refuse(error.message)
            raise

    # ---- one model

    def _load_one(self, name: str, override: Override | None = None) -> None:
        plain = plain_name(name)
        layout.check_name(plain)
        folders = self.found().get(name, [])
        brings_files = override is not None and override.folder(plain) is not None
        if not folders and not brings_files:
            raise _not_read(name, f": there is no folder '{name}' in it")
        life = self._life(name)
        if len(folders) > 1 and not brings_files:
            paths = ", ".join(str(folder) for folder in folders)
            life.refuse(DUPLICATE)
            raise InvalidArgument(
                f"failed to load '{name}': {DUPLICATE} ({paths}). Rename one of them"
            )
        folder = folders[0] if folders else Path(name)
        preparation = dataclasses.replace(self._preparation, namespace=namespace_of(name))
        self._check_circle(life, folder)
        for attempt in range(self._settings.load_retries + 1):
            try:
                life.load(lambda: prepare(plain, folder, preparation, override))
            except ShoalError as error:
                if attempt < self._settings.load_retries:
                    continue
                if isinstance(error, LoadFailed):
                    text = f"load failed for model '{name}': {error.message}"
                    raise InvalidArgument(text) from error
                raise _not_read(name, f": {error.code.value}: {error.message}") from error
            else:
                break
        ready = ", ".join(str(version) for version in sorted(life.serving))
        logger.info("successfully loaded '%s' version %s", name, ready)

    def _life(self, name: str) -> ModelLife:
        with self._growing:
            life = self.lives.get(name)
            if life is None:
                plain = plain_name(name)
                self.by_name = {**self.by_name, plain: (*self.by_name.get(plain, ()), name)}
                life = self.lives[name] = ModelLife(name)
            return life

    def _check_circle(self, life: ModelLife, folder: Path) -> None:
        path = dependencies.circle(life.name, self._relations.needs())
        if path:
            file = layout.config_file(folder, self._preparation.config_name)
            error = ensembles.circular(path, file=str(file))
            life.refuse(error.message)
            raise InvalidArgument(f"load failed for model '{life.name}': {error.message}")

    # ---- ensembles

    def _composing(
        self, name: str, found: Mapping[str, Sequence[Path]], override: Override | None = None
    ) -> list[str]:
        """The models one is made of, from its config."""
        plain = plain_name(name)
        folder = override.folder(plain) if override is not None else None
        if folder is None and found.get(name):
            folder = found[name][0]
        names = composing_names(plain, folder, self._preparation, override) if folder else []
        return self._keys(name, names, found)

    def _keys(self, name: str, others: list[str], found: Mapping[str, Sequence[Path]]) -> list[str]:
        """The keys of the models that the config of `name` calls `others`."""
        if not self._settings.namespacing:
            return others
        return [namespaces.resolve(other, namespace_of(name), found) for other in others]

    def _settle_names(self, changed: str) -> None:
        """With namespaces: a name may mean another model now that one of it has come or gone."""
        if not self._settings.namespacing:
            return
        found = self.found()
        for ensemble, needed in self._relations.needs().items():
            if not namespaces.same_name(plain_name(changed), needed):
                continue
            if self._composing(ensemble, found, self._overrides.get(ensemble)) != needed:
                try:
                    self.load(ensemble, self._overrides.get(ensemble))
                except ShoalError as error:
                    logger.error("%s", error.message)  # noqa: TRY400 - a sentence, not a traceback

    def _load_for(self, name: str, ensemble: str) -> None:
        """Load a model that an ensemble needs. What goes wrong, the ensemble's load will tell."""
        if self._settings.control_mode in ("poll", "lazy") and self._serves(name):
            return  # the poller follows its changes, and what is lazy stays as it is
        try:
            self._load_one(name, self._overrides.get(name))
        except ShoalError as error:
            logger.error("%s", error.message)  # noqa: TRY400 - a sentence, not a traceback
        self._renew_dependents(name, but=(ensemble,))

    def _renew_dependents(self, name: str, but: Collection[str] = ()) -> None:
        """Bring the ensembles made of a model in line with what it is now."""
        for ensemble in self._relations.direct_dependents(name):
            life = self.lives.get(ensemble)
            if life is None or ensemble in but:
                continue
            if life.newest is None and self._settings.control_mode == "lazy":
                continue  # somebody will ask for it
            before = dict(life.serving)
            try:
                self._renew(life)
            except ShoalError as error:
                logger.error("%s", error.message)  # noqa: TRY400 - a sentence, not a traceback
                if before:
                    _withdraw(life, error)
            if dict(life.serving) != before:
                self._renew_dependents(ensemble)

    def _renew(self, life: ModelLife) -> None:
        if life.newest is None:  # it has waited for this
            self._load_one(life.name, self._overrides.get(life.name))
            return
        spec = life.newest.spec
        models = self._models.seen_from(spec.namespace)
        life.load(lambda: ensembles.renewed(spec, models))

    def _serves(self, name: str) -> bool:
        life = self.lives.get(name)
        return life is not None and bool(life.serving)

    def _check_fits(self, name: str) -> None:
        """After a load that failed: what serves as before must fit the models as they are now."""
        life = self.lives.get(name)
        if life is None or life.newest is None or life.newest.spec.ensemble is None:
            return
        spec = life.newest.spec
        names = ensembles.composing_names(spec.config)
        self._relations.also_needs(name, self._keys(name, names, self.found()))
        try:
            ensembles.renewed(spec, self._models.seen_from(spec.namespace))
        except ShoalError as error:
            _withdraw(life, error)
            self._renew_dependents(name)


def _withdraw(life: ModelLife, error: ShoalError) -> None:
    """Stop an ensemble that does not fit its models any more."""
    cause = error.__cause__
    life.withdraw(cause.message if isinstance(cause, ShoalError) else error.message)


def _not_read(name: str, why: str) -> Internal:
    """A model that could not even be read. Clients match on this text and on its code."""
    return Internal(f"failed to load '{name}', failed to poll from model repository{why}")
