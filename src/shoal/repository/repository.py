"""The models of one server: found in folders, loaded, watched, looked up.

Looking a model up takes no lock. The `ModelLoader` makes all changes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from shoal.backends.initialisation import released
from shoal.core.interface import FunctionRoute
from shoal.core.model_loading import LoadOnDemand, ModelLoading
from shoal.core.pauses import Pauses
from shoal.core.readiness import Problem
from shoal.core.request import Request
from shoal.errors import InvalidArgument, NotFound, ShoalError, Unavailable, Unsupported
from shoal.models.served import ServedModel
from shoal.repository import layout
from shoal.repository.ensembles import RepositoryModels
from shoal.repository.lazy import LazyModels
from shoal.repository.lifecycle import ModelLifecycle, VersionState
from shoal.repository.loader import DUPLICATE, ModelLoader, RepositorySettings
from shoal.repository.namespaces import NamespaceView, plain_name, same_name
from shoal.repository.on_demand import NOT_LOADED
from shoal.repository.poller import RepositoryPoller
from shoal.repository.preparation import Override
from shoal.scheduler.base import BatcherClosed
from shoal.storage.progress import Progress, megabytes

logger = logging.getLogger(__name__)

__all__ = ["ModelRepository", "RepositorySettings"]

CONTROL_REFUSED = "explicit model load / unload is not allowed if polling is enabled"


class ModelRepository:
    """All models by name."""

    def __init__(self, settings: RepositorySettings) -> None:
        self._settings = settings
        self._loader = ModelLoader(settings, self)
        self._lifecycles: Mapping[str, ModelLifecycle] = self._loader.lifecycles
        self._poller: RepositoryPoller | None = None
        self._lazy = LazyModels(settings, self._loader) if settings.control_mode == "lazy" else None
        self._routes: tuple[int, tuple[FunctionRoute, ...]] = (-1, ())  # as of which change

    def on_change(self, changed: Callable[[str], None]) -> None:
        """Have `changed` called, from any thread, with the name of each model of which other
        versions serve from then on; with "" where several names may be meant."""
        namespaced = self._settings.namespacing
        self._loader.changed = (lambda _key: changed("")) if namespaced else changed

    # ---- start and stop

    def start(self) -> dict[str, str]:
        """Load models by the control mode; returns the reason of each failure. Blocks."""
        settings = self._settings
        unusable = self._loader.folders.open()
        names = list(self._loader.found())
        if self._lazy is not None:
            self._lazy.start(names)
            self._loader.tell("")  # routes of functions that are not loaded are known now
        chosen = settings.control_mode in ("explicit", "lazy")
        if chosen and list(settings.load_models) != ["*"]:
            names = [key for name in settings.load_models for key in self._keys_to_load(name)]
        poller = RepositoryPoller(
            self,
            self._loader.folders,
            settings.poll_secs,
            namespaced=settings.namespacing,
            declared=settings.preparation.declared,
        )
        if settings.control_mode != "poll":
            failures = self._loader.load_all(names)
            if settings.strict:
                self._poller = poller
                poller.watch()
            return failures | unusable
        self._poller = poller
        before = poller.snapshot()
        failures = self._loader.load_all(list(before))
        poller.start(before)
        return failures | unusable

    def stop(self) -> None:
        """Unload everything; returns when queued requests are answered and memory is released."""
        if self._settings.mirrors is not None:
            self._settings.mirrors.stop_downloads()
        if self._poller is not None:
            self._poller.stop()
        if self._lazy is not None:
            self._lazy.stop()
        self._loader.unload_all()
        self._settings.preparation.declared.close()
        if self._settings.mirrors is not None:
            self._settings.mirrors.close()

    # ---- lookup

    def find(self, name: str, version: int = -1) -> ServedModel:
        """The model that serves `name`; the newest ready version unless one is named.

        Raises NotFound, or Unavailable for a named version that exists but is not ready; in lazy
        mode ModelLoading for a model that is not loaded.
        """
        lifecycle = self._lifecycles.get(name)
        if lifecycle is None:
            lifecycle = self._only(name)
        if version == -1:
            newest = lifecycle.newest
            if newest is None:
                if self._lazy is not None:
                    raise self._lazy.absent(lifecycle)
                raise NotFound(f"Request for unknown model: '{name}' has no available versions")
            return newest
        model = lifecycle.serving.get(version)
        if model is not None:
            return model
        if self._lazy is not None and lifecycle.newest is None:
            raise self._lazy.absent(lifecycle)
        if version in lifecycle.statuses:
            raise Unavailable(
                f"Request for unknown model: '{name}' version {version} is not at ready state"
            )
        raise NotFound(f"Request for unknown model: '{name}' version {version} is not found")

    def routes(self) -> tuple[FunctionRoute, ...]:
        """The routes of functions that serve or, in lazy mode, that their first request loads."""
        changes = self._loader.changes
        if self._routes[0] == changes:
            return self._routes[1]
        interfaces = {model.name: model.interface for model in self.models()}
        if self._lazy is not None:
            interfaces = {**self._settings.preparation.declared.interfaces(), **interfaces}
        found = tuple(
            FunctionRoute(name, interface.method, interface.path)
            for name, interface in sorted(interfaces.items())
            if interface is not None and (interface.path or interface.is_application)
        )
        self._routes = (changes, found)
        return found

    def knows(self, name: str) -> bool:
        """Whether a load of that name was ever tried or, in lazy mode, is possible."""
        known = name in self._lifecycles or bool(self._known(name))
        return known or (self._lazy is not None and self._lazy.has(name))

    def loads_on_demand(self, name: str) -> bool:
        """Whether the first request for a model of that name would load it."""
        return self._lazy is not None and self.knows(name)

    def serving(self, name: str, version: int = -1) -> ServedModel | None:
        """The model that `find` would return, or None where it would raise."""
        lifecycle = self._lifecycles.get(name)
        if lifecycle is None:
            known = self._known(name)
            if len(known) != 1:
                return None
            lifecycle = known[0]
        return lifecycle.newest if version == -1 else lifecycle.serving.get(version)

    def ready_versions(self, name: str) -> list[int]:
        """The versions of a model that serve, ascending; empty where none does."""
        lifecycle = self._lifecycles.get(name)
        lifecycles = self._known(name) if lifecycle is None else [lifecycle]
        return sorted(lifecycles[0].serving) if len(lifecycles) == 1 else []

    def why_not(self, name: str) -> str:
        """Why a model does not serve; empty if it does, or is not to be served."""
        lifecycle = self._lifecycles.get(name)
        if lifecycle is None or lifecycle.serving:
            return ""
        reasons = [status.reason for status in lifecycle.statuses.values() if status.failed]
        return lifecycle.problem or "; ".join(reasons)

    def models(self) -> Iterator[ServedModel]:
        """Every version that serves, by name and version."""
        for name in sorted(self._lifecycles):
            lifecycle = self._lifecycles.get(name)
            serving = {} if lifecycle is None else lifecycle.serving  # None: removed just now
            for version in sorted(serving):
                yield serving[version]

    def problems(self) -> Iterator[Problem]:
        """What is wrong with models, or why they are not ready yet, and which files cannot be read.
        Does not block.

        The strict rule: every model ever attempted has all its versions ready. Deliberately
        unloaded models do not count; a model without any version does. A model that loads on
        demand never keeps the server from being ready.
        """
        for lifecycle in list(self._lifecycles.values()):
            yield from lifecycle.problems(on_demand=self._lazy is not None)
        for found in self.unreadable().values():
            yield from found

    def unreadable(self) -> Mapping[str, Sequence[Problem]]:
        """For each repository, why it or models in it cannot be read. Does not block."""
        return self._loader.folders.problems()

    def waiting_for_loads(self) -> Iterable[tuple[Mapping[str, str], int]]:
        """In lazy mode: how many requests wait for models, after the labels of their metrics."""
        return () if self._lazy is None else self._lazy.waiting()

    def is_decoupled(self, name: str, version: int = -1) -> bool:
        """Whether a model may send any number of responses. Raises as `find`."""
        return self.find(name, version).decoupled

    def asks_readiness(self, name: str, version: int = -1) -> bool:
        """Whether `model_ready` calls the model itself, which may block."""
        model = self.serving(name, version)
        if model is None:
            return self._lazy is not None  # it reads files
        return model.asks_readiness

    def model_ready(self, name: str, version: int = -1) -> bool:
        """Whether a model is ready. Raises NotFound as `find`; may block: see `asks_readiness`."""
        try:
            return self.find(name, version).ready()
        except ModelLoading:
            assert self._lazy is not None
            return self._lazy.would_serve(self._lifecycles.get(name) or self._only(name), version)
        except Unavailable:
            return False

    # ---- namespaces

    def _known(self, name: str) -> list[ModelLifecycle]:
        """Models of any repository whose plain name is `name`, without unloaded ones."""
        if not self._settings.namespacing:
            return []
        # A key may be in that table just before its lifecycle is.
        found = map(self._lifecycles.get, self._loader.by_name.get(name, ()))
        lifecycles = [lifecycle for lifecycle in found if lifecycle is not None]
        return [lifecycle for lifecycle in lifecycles if not lifecycle.given_up] or lifecycles[:1]

    def _only(self, name: str) -> ModelLifecycle:
        """The only model called `name`, of any repository; raises as `find`."""
        known = self._known(name)
        if not known and self._lazy is not None and self._lazy.has(name):
            self._lazy.discover(name)
            known = self._known(name) or [self._lifecycles[name]]
        if len(known) == 1:
            return known[0]
        if known:
            raise InvalidArgument(
                f"There are {len(known)} identifiers of model '{name}' in global map, model "
                f"namespace must be provided to resolve ambiguity. They are: "
                f"{', '.join(lifecycle.name for lifecycle in known)}"
            )
        text = f"Request for unknown model: '{name}' is not found"
        raise InvalidArgument(text) if self._settings.namespacing else NotFound(text)

    def serving_keys(self, name: str) -> list[str]:
        """The keys of all models called `name` that serve, or would at their first request."""
        lazy = self._lazy is not None
        return [lifecycle.name for lifecycle in self._known(name) if lazy or lifecycle.serving]

    def seen_from(self, namespace: str) -> RepositoryModels:
        """The models as those of one namespace see them; the same without namespaces."""
        return NamespaceView(self, namespace) if self._settings.namespacing else self

    def _keys_to_load(self, name: str) -> list[str]:
        """The keys of models in the repositories called `name`; the name itself if none."""
        return same_name(name, self._loader.found()) or [name]

    # ---- inference

    def infer(self, request: Request, name: str = "") -> None:
        """Take the request over for the model it names; see `Engine.infer`.

        `name` is the key of the model, if the caller knows it.
        """
        name = name or request.model_name
        inputs = request.inputs
        try:
            model = self.find(name, request.model_version)
            while True:
                try:
                    model.accept(request)
                except BatcherClosed:
                    # The model was replaced between looking it up and queueing: retry.
                    request.inputs = inputs
                    newer = self.find(name, request.model_version)
                    if newer is model:
                        raise
                    model = newer
                else:
                    return
        except LoadOnDemand as pending:
            pending.hold(request, lambda: self.infer(request, name), inside=True)

    # ---- control

    def index(self, *, ready_only: bool = False) -> list[dict[str, str]]:
        """Every model in the repositories or in memory, a row per version, as clients see it."""
        self._loader.folders.refresh_later(self._settings.poll_secs)
        found, downloads = self._loader.found(), self._loader.folders.downloads()
        pause = Pauses()
        rows: list[dict[str, str]] = []
        for key in sorted({*found, *self._lifecycles}, key=lambda key: (plain_name(key), key)):
            pause()
            name, lifecycle = plain_name(key), self._lifecycles.get(key)
            statuses = {} if lifecycle is None else lifecycle.statuses
            if lifecycle is not None and lifecycle.problem:
                rows.append(
                    {
                        "name": name,
                        "state": VersionState.UNAVAILABLE.value,
                        "reason": lifecycle.problem,
                    }
                )
            elif len(found.get(key, ())) > 1 and not statuses:
                rows.append(
                    {"name": name, "state": VersionState.UNAVAILABLE.value, "reason": DUPLICATE}
                )
            elif not statuses and key not in downloads:
                rows.append({"name": name} if self._lazy is None else _loads_first(name))
            if key in downloads:
                rows.append(_downloading(name, downloads[key]))
            for version in sorted(statuses):
                status = statuses[version]
                row = {"name": name, "version": str(version), "state": status.state.value}
                reason = status.reason
                if self._lazy is not None and lifecycle is not None:
                    reason = self._lazy.reason(lifecycle, version, status)
                reason = self._why_kept(lifecycle, version) or reason
                if reason:
                    row["reason"] = reason
                rows.append(row)
        if ready_only:
            return [row for row in rows if row.get("state") == VersionState.READY.value]
        return rows

    def _why_kept(self, lifecycle: ModelLifecycle | None, version: int) -> str:
        """Why a version serves on whatever happens to its folder; empty if that can be read."""
        model = None if lifecycle is None else lifecycle.serving.get(version)
        if lifecycle is None or model is None:
            return ""
        return self._loader.folders.why_kept(lifecycle.name, model.spec.folder)

    @released()  # for a backend that loads a model of its own
    def load(self, name: str, config_json: str | None, files: Mapping[str, bytes]) -> None:
        """Load or reload for a client, with its config and files in place of the folder's.

        Blocks. Raises Unavailable outside explicit mode, Internal for an unknown model,
        InvalidArgument when the load fails; earlier versions serve on then.
        """
        self._check_explicit()
        layout.check_name(name)
        if files and config_json is None:
            raise InvalidArgument(
                "override files need a 'config' parameter: send the model's whole config with them"
            )
        self._loader.read_again(name)
        self._loader.folders.refresh()
        given = self._loader.folders.registered_as(name)
        keys = self._keys_to_load(name) if given is None else [given]
        if config_json is not None and len(keys) > 1:
            raise InvalidArgument(
                f"there are several models '{name}' ({', '.join(keys)}): a config can be given "
                "with the load of one that has a name of its own"
            )
        override = None if config_json is None else Override(name, config_json, files)
        for key in keys:
            self._loader.load_requested(key, override)
            if self._lazy is not None:
                self._lazy.loaded_by_name(key)

    @released()
    def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Stop serving a model for a client. Unloading an unknown one changes nothing.

        Ensembles that need it are unavailable until it is loaded again. With `unload_dependents`
        they are unloaded, and so are models that were loaded only because this one needed them.
        """
        self._check_explicit()
        layout.check_name(name)
        for key in self._loader.by_name.get(name, ()):
            if unload_dependents:
                self._loader.unload_tree(key)
            else:
                self._loader.unload(key)
            if self._lazy is not None:
                self._lazy.loaded_by_name(key)

    def register(self, path: Path, names: Mapping[str, str]) -> None:
        """Add a repository; nothing in it is loaded. `names` are the names of models that are not
        called as their folders, by folder. Blocks.

        Raises Unsupported outside explicit mode, InvalidArgument if there is no such folder,
        AlreadyExists for a repository or a name that is registered.
        """
        self._check_registering("registration")
        if not path.is_dir():
            raise InvalidArgument(f"failed to register '{path}', repository not found")
        self._loader.folders.register(path, names)
        logger.info("registered the model repository '%s'", path)

    def unregister(self, path: Path, *, wait_secs: float = 0.0) -> bool:
        """Remove a repository. Models of it that are loaded continue to serve.

        Waits for the memory of those that were unloaded; false if that takes longer than
        `wait_secs`. Raises Unsupported outside explicit mode, InvalidArgument for a path that is
        not registered.
        """
        self._check_registering("unregistration")
        keys = self._loader.folders.unregister(path)
        logger.info("unregistered the model repository '%s'", path)
        deadline = time.monotonic() + wait_secs
        waited = [
            lifecycle.wait_closed(max(0.0, deadline - time.monotonic()))
            for lifecycle in self._loader.remove_unloaded(keys)
        ]
        return all(waited)

    def _check_registering(self, what: str) -> None:
        if self._settings.control_mode != "explicit":
            raise Unsupported(
                f"repository {what} is not allowed if model control mode is not EXPLICIT"
            )

    def poll(self) -> None:
        """Load and unload what has changed in the folders, now. Unavailable outside poll mode."""
        if self._settings.control_mode != "poll" or self._poller is None:
            raise Unavailable("polling is disabled")
        self._poller.poll_now()

    def _check_explicit(self) -> None:
        if self._settings.control_mode not in ("explicit", "lazy"):
            raise Unavailable(CONTROL_REFUSED)

    # ---- for the poller

    def folder_changed(self, name: str) -> None:
        """Load or reload a model; failures are logged and in the index."""
        try:
            self._loader.read_again(name)
            if not self._loader.folders.had(name) and name not in self._loader.found():
                self.folder_removed(name)  # the file exists, but no longer declares the model
                return
            self._loader.load(name)
        except ShoalError as error:
            logger.error("%s", error.message)  # noqa: TRY400 - a sentence, not a traceback
        except Exception:  # an error of a backend must not end the polling
            logger.exception("loading '%s' failed", name)

    def as_fetched(self, names: Sequence[str], secs: float) -> Iterator[str]:
        """The names, each when the files of its model are on this machine; see `ModelLoader`."""
        return self._loader.as_fetched(names, secs)

    def has_failed(self, name: str) -> bool:
        """Whether the last load of `name` did not succeed, even if an older one still serves."""
        lifecycle = self._lifecycles.get(name)
        return lifecycle is None or lifecycle.last_load_failed

    def folder_removed(self, name: str) -> None:
        """Unload a model whose folder does not exist any more."""
        self._loader.unload(name)


def _downloading(name: str, progress: Progress) -> dict[str, str]:
    """The row of the index for a model whose files are being downloaded."""
    return {
        "name": name,
        "state": VersionState.LOADING.value,
        "reason": f"downloading: {progress.percent} % of {megabytes(progress.total_bytes)}",
    }


def _loads_first(name: str) -> dict[str, str]:
    """The row of the index for a model that has not been requested yet."""
    return {"name": name, "state": VersionState.UNAVAILABLE.value, "reason": NOT_LOADED}
