"""The models of one server: found in folders, loaded, watched, looked up.

Looking a model up takes no lock. Loads of different models run side by side; changes to one
model are serialised by its `ModelLife`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from shoal.errors import Internal, InvalidArgument, NotFound, ShoalError, Unavailable
from shoal.model import Model
from shoal.repository import layout
from shoal.repository.lifecycle import UNLOADED, LoadFailed, ModelLife, State
from shoal.repository.poller import Poller
from shoal.repository.preparation import Override, PreparationSettings, prepare

logger = logging.getLogger(__name__)

DUPLICATE = "model appears in two or more repositories"
CONTROL_REFUSED = "explicit model load / unload is not allowed if polling is enabled"


@dataclass(frozen=True, slots=True)
class RepositorySettings:
    """What is served and how it may change."""

    paths: Sequence[Path]
    control_mode: str = "none"  # none | poll | explicit
    poll_secs: float = 15
    load_models: Sequence[str] = ()  # explicit mode: what to load at start, or ("*",)
    load_threads: int = 4
    load_retries: int = 0
    preparation: PreparationSettings = field(default_factory=PreparationSettings)


class ModelRepository:
    """All models by name."""

    def __init__(self, settings: RepositorySettings) -> None:
        self._settings = settings
        self._lives: dict[str, ModelLife] = {}
        self._overrides: dict[str, Override] = {}
        self._growing = threading.Lock()  # guards additions to _lives and changes of _overrides
        self._poller: Poller | None = None

    # ---- start and stop

    def start(self) -> dict[str, str]:
        """Load what the control mode says; returns why each model that failed did. Blocks."""
        settings = self._settings
        found = layout.find_models(settings.paths)
        names = list(found)
        if settings.control_mode == "explicit":
            names = list(settings.load_models)
            if names == ["*"]:
                names = list(found)
        if settings.control_mode != "poll":
            return self._load_all(names)
        self._poller = Poller(self, settings.paths, settings.poll_secs)
        before = self._poller.look()
        failures = self._load_all(list(before))
        self._poller.start(before)
        return failures

    def _load_all(self, names: Sequence[str]) -> dict[str, str]:
        failures: dict[str, str] = {}
        if not names:
            return failures

        def attempt(name: str) -> None:
            try:
                self._load(name)
            except ShoalError as error:
                failures[name] = error.message
            except Exception as error:  # a backend's surprise must not stop the other models
                logger.exception("loading '%s' failed", name)
                failures[name] = f"{type(error).__name__}: {error}"

        with ThreadPoolExecutor(max(1, self._settings.load_threads), "shoal-load") as pool:
            list(pool.map(attempt, names))
        return failures

    def stop(self) -> None:
        """Unload everything; returns when queued requests are answered and memory is free."""
        if self._poller is not None:
            self._poller.stop()
        for life in list(self._lives.values()):
            life.unload()
        for life in list(self._lives.values()):
            life.wait_closed()
        for override in self._overrides.values():
            override.discard()

    # ---- lookup

    def find(self, name: str, version: int = -1) -> Model:
        """The model that serves `name`; the newest ready version unless one is named.

        Raises NotFound, or Unavailable for a named version that exists but is not ready.
        """
        life = self._lives.get(name)
        if life is None:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        if version == -1:
            newest = life.newest
            if newest is None:
                raise NotFound(f"Request for unknown model: '{name}' has no available versions")
            return newest
        model = life.serving.get(version)
        if model is not None:
            return model
        if version in life.statuses:
            raise Unavailable(
                f"Request for unknown model: '{name}' version {version} is not at ready state"
            )
        raise NotFound(f"Request for unknown model: '{name}' version {version} is not found")

    def serving(self, name: str, version: int = -1) -> Model | None:
        """The model that `find` would give, or None where it would raise."""
        life = self._lives.get(name)
        if life is None:
            return None
        return life.newest if version == -1 else life.serving.get(version)

    def ready_versions(self, name: str) -> list[int]:
        """The versions of a model that serve, ascending; empty where none does."""
        life = self._lives.get(name)
        return sorted(life.serving) if life is not None else []

    def models(self) -> Iterator[Model]:
        """Every version that serves, by name and version."""
        for name in sorted(self._lives):
            serving = self._lives[name].serving
            for version in sorted(serving):
                yield serving[version]

    def all_ready(self) -> bool:
        """The strict rule: every model ever attempted has all its versions ready.

        What was unloaded on purpose does not count; a model without any version does.
        """
        for life in list(self._lives.values()):
            if life.problem or not (life.statuses or life.given_up):
                return False
            for status in life.statuses.values():
                if status.state is not State.READY and status.reason != UNLOADED:
                    return False
        return True

    # ---- control

    def index(self, *, ready_only: bool = False) -> list[dict[str, str]]:
        """Every model in the repositories or in memory, a row per version, as clients see it."""
        found = layout.find_models(self._settings.paths)
        rows: list[dict[str, str]] = []
        for name in sorted({*found, *self._lives}):
            life = self._lives.get(name)
            statuses = {} if life is None else life.statuses
            if life is not None and life.problem:
                rows.append(
                    {"name": name, "state": State.UNAVAILABLE.value, "reason": life.problem}
                )
            elif len(found.get(name, ())) > 1 and not statuses:
                rows.append({"name": name, "state": State.UNAVAILABLE.value, "reason": DUPLICATE})
            elif not statuses:
                rows.append({"name": name})
            for version in sorted(statuses):
                status = statuses[version]
                row = {"name": name, "version": str(version), "state": status.state.value}
                if status.reason:
                    row["reason"] = status.reason
                rows.append(row)
        if ready_only:
            return [row for row in rows if row.get("state") == State.READY.value]
        return rows

    def load(self, name: str, config_json: str | None, files: Mapping[str, bytes]) -> None:
        """Load or reload on a client's wish, with its config and files in place of the folder's.

        Blocks. Raises Unavailable outside explicit mode, Internal for an unknown model,
        InvalidArgument when the load fails; what served before then still serves.
        """
        self._check_explicit()
        layout.check_name(name)
        if files and config_json is None:
            raise InvalidArgument(
                "override files need a 'config' parameter: send the model's whole config with them"
            )
        override = None
        if config_json is not None:
            override = Override(name, config_json, files)
        try:
            self._load(name, override)
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

    def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Stop serving a model on a client's wish. Unloading an unknown one changes nothing."""
        del unload_dependents  # nothing depends on another model yet
        self._check_explicit()
        self._unload(name)

    def _check_explicit(self) -> None:
        if self._settings.control_mode != "explicit":
            raise Unavailable(CONTROL_REFUSED)

    # ---- for the poller

    def follow(self, name: str) -> None:
        """Load or reload a model whose folder changed; failures are logged and in the index."""
        try:
            self._load(name)
        except ShoalError as error:
            logger.error("%s", error.message)  # noqa: TRY400 - a sentence, not a traceback
        except Exception:  # a backend's surprise must not end the polling
            logger.exception("loading '%s' failed", name)

    def has_failed(self, name: str) -> bool:
        """Whether the last load of `name` did not succeed, even if an older one still serves."""
        life = self._lives.get(name)
        return life is None or life.last_load_failed

    def forget(self, name: str) -> None:
        """Unload a model whose folder is gone."""
        self._unload(name)

    # ---- the work

    def _life(self, name: str) -> ModelLife:
        with self._growing:
            return self._lives.setdefault(name, ModelLife(name))

    def _load(self, name: str, override: Override | None = None) -> None:
        layout.check_name(name)
        folders = layout.find_models(self._settings.paths).get(name, [])
        brings_files = override is not None and override.folder(name) is not None
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
        preparation = self._settings.preparation
        for attempt in range(self._settings.load_retries + 1):
            try:
                life.load(lambda: prepare(name, folder, preparation, override))
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

    def _unload(self, name: str) -> None:
        life = self._lives.get(name)
        if life is not None:
            life.unload()
            logger.info("successfully unloaded '%s'", name)


def _not_read(name: str, why: str) -> Internal:
    """A model that could not even be read. Clients match on this text and on its code."""
    return Internal(f"failed to load '{name}', failed to poll from model repository{why}")
