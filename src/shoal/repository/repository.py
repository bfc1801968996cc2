"""The models of one server: found in folders, loaded, watched, looked up.

Looking a model up takes no lock. What changes, the `ModelLoader` changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from shoal.core.model_loading import ModelLoading
from shoal.core.request import Request
from shoal.errors import InvalidArgument, NotFound, ShoalError, Unavailable
from shoal.models.ensemble import ServedModel
from shoal.repository import layout
from shoal.repository.ensembles import Models
from shoal.repository.lazy import LazyModels
from shoal.repository.lifecycle import ModelLife, State
from shoal.repository.loader import DUPLICATE, ModelLoader, RepositorySettings
from shoal.repository.namespaces import NamespaceView, plain_name, same_name
from shoal.repository.on_demand import NOT_LOADED
from shoal.repository.poller import Poller
from shoal.repository.preparation import Override
from shoal.scheduler.batcher import BatcherClosed

logger = logging.getLogger(__name__)

__all__ = ["ModelRepository", "RepositorySettings"]

CONTROL_REFUSED = "explicit model load / unload is not allowed if polling is enabled"


class ModelRepository:
    """All models by name."""

    def __init__(self, settings: RepositorySettings) -> None:
        self._settings = settings
        self._loader = ModelLoader(settings, self)
        self._lives: Mapping[str, ModelLife] = self._loader.lives
        self._poller: Poller | None = None
        self._lazy = LazyModels(settings, self._loader) if settings.control_mode == "lazy" else None

    # ---- start and stop

    def start(self) -> dict[str, str]:
        """Load what the control mode says; returns why each model that failed did. Blocks."""
        settings = self._settings
        names = list(self._loader.found())
        if self._lazy is not None:
            self._lazy.start(names)
        chosen = settings.control_mode in ("explicit", "lazy")
        if chosen and list(settings.load_models) != ["*"]:
            names = [key for name in settings.load_models for key in self._keys_to_load(name)]
        if settings.control_mode != "poll":
            return self._loader.load_all(names)
        self._poller = Poller(
            self,
            settings.paths,
            settings.poll_secs,
            namespaced=settings.namespacing,
            declared=settings.preparation.declared,
        )
        before = self._poller.look()
        failures = self._loader.load_all(list(before))
        self._poller.start(before)
        return failures

    def stop(self) -> None:
        """Unload everything; returns when queued requests are answered and memory is free."""
        if self._poller is not None:
            self._poller.stop()
        if self._lazy is not None:
            self._lazy.stop()
        self._loader.unload_all()
        self._settings.preparation.declared.close()

    # ---- lookup

    def find(self, name: str, version: int = -1) -> ServedModel:
        """The model that serves `name`; the newest ready version unless one is named.

        Raises NotFound, or Unavailable for a named version that exists but is not ready; in lazy
        mode ModelLoading for a model that is not loaded.
        """
        life = self._lives.get(name)
        if life is None:
            life = self._only(name)
        if version == -1:
            newest = life.newest
            if newest is None:
                if self._lazy is not None:
                    raise self._lazy.absent(life)
                raise NotFound(f"Request for unknown model: '{name}' has no available versions")
            return newest
        model = life.serving.get(version)
        if model is not None:
            return model
        if self._lazy is not None and life.newest is None:
            raise self._lazy.absent(life)
        if version in life.statuses:
            raise Unavailable(
                f"Request for unknown model: '{name}' version {version} is not at ready state"
            )
        raise NotFound(f"Request for unknown model: '{name}' version {version} is not found")

    def knows(self, name: str) -> bool:
        """Whether anybody has tried to load a model of that name, or in lazy mode could."""
        known = name in self._lives or bool(self._known(name))
        return known or (self._lazy is not None and self._lazy.has(name))

    def loads_on_demand(self, name: str) -> bool:
        """Whether the first request for a model of that name would load it."""
        return self._lazy is not None and self.knows(name)

    def serving(self, name: str, version: int = -1) -> ServedModel | None:
        """The model that `find` would give, or None where it would raise."""
        life = self._lives.get(name)
        if life is None:
            known = self._known(name)
            if len(known) != 1:
                return None
            life = known[0]
        return life.newest if version == -1 else life.serving.get(version)

    def ready_versions(self, name: str) -> list[int]:
        """The versions of a model that serve, ascending; empty where none does."""
        life = self._lives.get(name)
        lives = self._known(name) if life is None else [life]
        return sorted(lives[0].serving) if len(lives) == 1 else []

    def why_not(self, name: str) -> str:
        """Why a model does not serve; nothing to say where it does, or nobody wants it to."""
        life = self._lives.get(name)
        if life is None or life.serving:
            return ""
        reasons = [status.reason for status in life.statuses.values() if status.failed]
        return life.problem or "; ".join(reasons)

    def models(self) -> Iterator[ServedModel]:
        """Every version that serves, by name and version."""
        for name in sorted(self._lives):
            serving = self._lives[name].serving
            for version in sorted(serving):
                yield serving[version]

    def all_ready(self) -> bool:
        """The strict rule: every model ever attempted has all its versions ready.

        What was unloaded on purpose does not count; a model without any version does. Models that
        load on demand say nothing about the server.
        """
        if self._lazy is not None:
            return True
        for life in list(self._lives.values()):
            if life.problem or not (life.statuses or life.given_up):
                return False
            for status in life.statuses.values():
                if status.state is not State.READY and not status.on_purpose:
                    return False
        return True

    def is_decoupled(self, name: str, version: int = -1) -> bool:
        """Whether a model may answer any number of times. Raises as `find`."""
        return self.find(name, version).decoupled

    def asks_readiness(self, name: str, version: int = -1) -> bool:
        """Whether `model_ready` asks the model itself, so that it may take a while."""
        model = self.serving(name, version)
        if model is None:
            return self._lazy is not None  # files are looked at
        return model.asks_readiness

    def model_ready(self, name: str, version: int = -1) -> bool:
        """Whether a model can be asked now. Raises NotFound as `find`; blocks while it is asked."""
        try:
            return self.find(name, version).ready()
        except ModelLoading:
            assert self._lazy is not None
            return self._lazy.would_serve(self._lives.get(name) or self._only(name), version)
        except Unavailable:
            return False

    # ---- namespaces

    def _known(self, name: str) -> list[ModelLife]:
        """Models of any repository that clients call `name`, without those that were given up."""
        if not self._settings.namespacing:
            return []
        # A key may be in that table just before its life is.
        keys = self._loader.by_name.get(name, ())
        lives = [self._lives[key] for key in keys if key in self._lives]
        return [life for life in lives if not life.given_up] or lives[:1]

    def _only(self, name: str) -> ModelLife:
        """The one model called `name`, of whichever repository; raises as `find`."""
        known = self._known(name)
        if not known and self._lazy is not None and self._lazy.has(name):
            self._lazy.discover(name)
            known = self._known(name) or [self._lives[name]]
        if len(known) == 1:
            return known[0]
        if known:
            raise InvalidArgument(
                f"There are {len(known)} identifiers of model '{name}' in global map, model "
                f"namespace must be provided to resolve ambiguity. They are: "
                f"{', '.join(life.name for life in known)}"
            )
        text = f"Request for unknown model: '{name}' is not found"
        raise InvalidArgument(text) if self._settings.namespacing else NotFound(text)

    def serving_keys(self, name: str) -> list[str]:
        """The keys of all models called `name` that serve, or would at their first request."""
        lazy = self._lazy is not None
        return [life.name for life in self._known(name) if lazy or life.serving]

    def seen_from(self, namespace: str) -> Models:
        """The models as those of one repository see them; the same where names are unique."""
        return NamespaceView(self, namespace) if self._settings.namespacing else self

    def _keys_to_load(self, name: str) -> list[str]:
        """The models in the repositories that clients call `name`; the name itself if none is."""
        return same_name(name, self._loader.found()) or [name]

    # ---- inference

    def infer(self, request: Request, name: str = "") -> None:
        """Take the request over for the model it names; see `Engine.infer`.

        `name` is for those who know better which model is meant.
        """
        name = name or request.model_name
        inputs = request.inputs
        try:
            model = self.find(name, request.model_version)
            while True:
                try:
                    model.accept(request)
                except BatcherClosed:
                    # The model was replaced between looking it up and queueing: ask again.
                    request.inputs = inputs
                    newer = self.find(name, request.model_version)
                    if newer is model:
                        raise
                    model = newer
                else:
                    return
        except ModelLoading as pending:
            pending.hold(request, lambda: self.infer(request, name), inside=True)

    # ---- control

    def index(self, *, ready_only: bool = False) -> list[dict[str, str]]:
        """Every model in the repositories or in memory, a row per version, as clients see it."""
        found = self._loader.found()
        rows: list[dict[str, str]] = []
        for key in sorted({*found, *self._lives}, key=lambda key: (plain_name(key), key)):
            name, life = plain_name(key), self._lives.get(key)
            statuses = {} if life is None else life.statuses
            if life is not None and life.problem:
                rows.append(
                    {"name": name, "state": State.UNAVAILABLE.value, "reason": life.problem}
                )
            elif len(found.get(key, ())) > 1 and not statuses:
                rows.append({"name": name, "state": State.UNAVAILABLE.value, "reason": DUPLICATE})
            elif not statuses:
                rows.append({"name": name} if self._lazy is None else _loads_first(name))
            for version in sorted(statuses):
                status = statuses[version]
                row = {"name": name, "version": str(version), "state": status.state.value}
                reason = status.reason
                if self._lazy is not None and life is not None:
                    reason = self._lazy.told(life, version, status)
                if reason:
                    row["reason"] = reason
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
        self._loader.read_again(name)
        keys = self._keys_to_load(name)
        if config_json is not None and len(keys) > 1:
            raise InvalidArgument(
                f"there are several models '{name}' ({', '.join(keys)}): a config can be given "
                "with the load of one that has a name of its own"
            )
        override = None if config_json is None else Override(name, config_json, files)
        for key in keys:
            self._loader.load_asked(key, override)
            if self._lazy is not None:
                self._lazy.asked(key)

    def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Stop serving a model on a client's wish. Unloading an unknown one changes nothing.

        Ensembles that need it are not available without it, and come back with it. With
        `unload_dependents` they are unloaded for good, and so are models that were loaded only
        because this one needed them.
        """
        self._check_explicit()
        for key in self._loader.by_name.get(name, ()):
            if unload_dependents:
                self._loader.unload_tree(key)
            else:
                self._loader.unload(key)
            if self._lazy is not None:
                self._lazy.asked(key)

    def _check_explicit(self) -> None:
        if self._settings.control_mode not in ("explicit", "lazy"):
            raise Unavailable(CONTROL_REFUSED)

    # ---- for the poller

    def follow(self, name: str) -> None:
        """Load or reload a model whose folder changed; failures are logged and in the index."""
        try:
            self._loader.read_again(name)
            if name in self._lives and name not in self._loader.found():
                self.forget(name)  # the file is still there, but does not declare it any more
                return
            self._loader.load(name)
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
        self._loader.unload(name)


def _loads_first(name: str) -> dict[str, str]:
    """The row of the index for a model that nobody has asked for."""
    return {"name": name, "state": State.UNAVAILABLE.value, "reason": NOT_LOADED}
