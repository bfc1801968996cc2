"""The lifecycle of one model: which versions are in which state, and how they change.

    (none) --> LOADING --> READY --> UNLOADING --> UNAVAILABLE "unloaded"
                  └──> UNAVAILABLE <why>

New versions are loaded while the old ones serve. When all of them are ready, the switch is one
assignment; requests in flight finish on the old ones. When one fails, none of the new ones is
kept, the old ones continue to serve, and the index shows why.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from shoal.core.readiness import Problem
from shoal.errors import Internal, InvalidArgument, ShoalError
from shoal.models.ensemble import load_version
from shoal.models.served import ServedModel
from shoal.models.spec import ModelSpec
from shoal.repository import memory
from shoal.repository.namespaces import plain_name

logger = logging.getLogger(__name__)

UNLOADED = "unloaded"
_UNLOAD_WAIT_SECS = 2.0


class VersionState(enum.Enum):
    """A version's state, by its name in the index."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """A version's state and, if there is one, the reason."""

    state: VersionState
    reason: str = ""

    @property
    def failed(self) -> bool:
        """Whether it should serve and cannot."""
        return self.state is VersionState.UNAVAILABLE and not self.on_purpose

    @property
    def on_purpose(self) -> bool:
        """Whether it, or a model that it needs, was unloaded deliberately."""
        return self.reason.startswith(UNLOADED)


class LoadFailed(InvalidArgument):
    """A load that failed; the text lists every version with its reason."""


class UnreadableModel(InvalidArgument):
    """The versions are known, but the model could not be read. The cause is the reason."""

    def __init__(self, versions: Sequence[int]) -> None:
        super().__init__("the model could not be read")
        self.versions = versions


class ModelLifecycle:
    """One model name. Reading it takes no lock; changes to it are serialised."""

    def __init__(self, name: str, changed: Callable[[str], None] = lambda _name: None) -> None:
        """`changed` is called with the name when other versions serve, or in another way."""
        self.name = name
        self._changed = changed
        self.serving: Mapping[int, ServedModel] = MappingProxyType({})
        self.newest: ServedModel | None = None
        self.statuses: Mapping[int, VersionStatus] = MappingProxyType({})
        self.problem = ""  # why there is no version at all, e.g. an invalid config
        self.last_load_failed = False
        self.given_up = False  # unloaded on purpose since it was last loaded
        self.leaving = False  # the server exits: memory is released for all models at once
        self._changing = threading.Lock()  # serialises load and unload
        self.unload_count = 0
        self._noting = threading.Lock()  # guards the replacement of `statuses`
        self._closing: list[threading.Thread] = []

    def load(self, make_spec: Callable[[], ModelSpec]) -> None:
        """Load the model of `make_spec`. Blocks; raises LoadFailed.

        Versions that did not change stay as they are; where only instance groups changed, the
        instances are changed in place.
        """
        with self._changing:
            self.last_load_failed = True  # until the last line
            self.given_up = False
            try:
                spec = make_spec()
            except UnreadableModel as failure:
                self.problem = ""
                reason = self._reason(failure.__cause__ or failure)
                raise self._failed(failure.versions, dict.fromkeys(failure.versions, reason)) from (
                    failure.__cause__
                )
            except Exception as failure:
                self._note_failure(_text(failure))
                raise
            self.problem = ""
            keep, resize, make = self._plan(spec)
            made = self._make(spec, make)
            try:
                for version in resize:
                    self.serving[version].resize(spec)
            except Exception as failure:
                for model in made.values():
                    model.close()
                reason = _text(failure)
                self._set({v: VersionStatus(VersionState.READY, _kept(reason)) for v in resize})
                raise LoadFailed(_summary(dict.fromkeys(resize, reason))) from failure
            self._switch({v: self.serving[v] for v in [*keep, *resize]} | made)
            self.last_load_failed = False
            if made:
                memory.exclude_loaded()

    def problems(self, *, on_demand: bool = False) -> Sequence[Problem]:
        """Why the model is not ready, and what is wrong with it nevertheless. Takes no lock.

        With `on_demand` a model need not be loaded, and never keeps the server from being ready.
        """
        name, statuses, blocks = self.name, self.statuses, not on_demand
        found: list[Problem] = []
        if self.problem:
            found.append(_problem(name, f"is not loaded: {self.problem}", blocks=blocks))
        elif not (statuses or self.given_up or on_demand):
            found.append(_problem(name, "is not loaded yet"))
        for version, status in statuses.items():
            state, reason = status.state, status.reason
            if state is VersionState.READY:
                if reason:
                    found.append(_problem(name, f"version {version}: {reason}", blocks=False))
            elif status.failed:
                text = f"version {version} is not available: {reason}"
                found.append(_problem(name, text, blocks=blocks))
            elif not (status.on_purpose or on_demand):
                found.append(_problem(name, f"version {version} is {state.value.lower()}"))
        for model in self.serving.values():
            found += model.problems()
        return found

    def _plan(self, spec: ModelSpec) -> tuple[list[int], list[int], list[int]]:
        """Which versions stay, which only change their instances, and which must be loaded."""
        keep: list[int] = []
        resize: list[int] = []
        make: list[int] = []
        for version in spec.version_folders:
            old = self.serving.get(version)
            if old is None or not (old.is_healthy() and spec.serves_like(old.spec, version)):
                make.append(version)
            elif old.config.instance_group != spec.config.instance_group:
                resize.append(version)
            else:
                keep.append(version)
        return keep, resize, make

    def _make(self, spec: ModelSpec, make: list[int]) -> dict[int, ServedModel]:
        """Load versions while others serve; all of them or none."""
        fresh = [version for version in make if version not in self.serving]
        self._set(dict.fromkeys(fresh, VersionStatus(VersionState.LOADING)))
        made: dict[int, ServedModel] = {}
        reasons: dict[int, str] = {}
        for version in make:
            try:
                made[version] = load_version(spec, version)
            except Exception as failure:  # noqa: BLE001 - any error becomes the reason
                reasons[version] = self._reason(failure)
        if not reasons:
            return made
        for model in made.values():
            model.close()
        raise self._failed(make, reasons)

    def _reason(self, failure: BaseException) -> str:
        """Why a version is not served, for clients. Unexpected errors are logged as well."""
        if not isinstance(failure, ShoalError):
            logger.error("loading '%s' failed", self.name, exc_info=failure)
        return _text(failure)

    def _failed(self, tried: Sequence[int], reasons: Mapping[int, str]) -> LoadFailed:
        """Record that none of `tried` is served; returns the error."""
        changes: dict[int, VersionStatus] = {}
        for version in tried:
            why = reasons.get(version, "not loaded because another version failed")
            if version in self.serving:
                changes[version] = VersionStatus(VersionState.READY, _kept(why))
            else:
                changes[version] = VersionStatus(VersionState.UNAVAILABLE, why)
        self._set(changes)
        return LoadFailed(_summary(reasons))

    def _switch(self, serving: dict[int, ServedModel], reason: str = UNLOADED) -> None:
        """Requests use `serving` from now on; replaced versions drain and close."""
        before = self.serving
        gone = {v: VersionStatus(VersionState.UNLOADING) for v in before if v not in serving}
        self.newest = serving[max(serving)] if serving else None
        self.serving = MappingProxyType(serving)
        self._set(
            {**gone, **{v: VersionStatus(VersionState.READY) for v in serving}}, drop_failed=True
        )
        self._changed(self.name)
        retired = [model for v, model in before.items() if serving.get(v) is not model]
        del before  # a thread closes them: nothing else may keep them then
        if retired:
            self._close_soon(
                retired, dict.fromkeys(gone, VersionStatus(VersionState.UNAVAILABLE, reason))
            )

    def unload(self) -> None:
        """Stop serving at once; queued requests are still answered.

        Waits briefly, so that memory is usually released on return.
        """
        with self._changing:
            self.unload_count += 1
            self.problem = ""
            self.given_up = True
            stale = [v for v in self.statuses if v not in self.serving]
            self._switch({})
            self._set(dict.fromkeys(stale, VersionStatus(VersionState.UNAVAILABLE, UNLOADED)))
        self._wait_a_moment()

    def stop_serving(self, reason: str) -> None:
        """As `unload`, because a model that this one runs was unloaded, or to free memory.

        The next load may serve it again.
        """
        with self._changing:
            self.last_load_failed = True
            self._switch({}, reason)
        self._wait_a_moment()

    def _wait_a_moment(self) -> None:
        for thread in list(self._closing):
            thread.join(_UNLOAD_WAIT_SECS)

    def _close_soon(self, models: list[ServedModel], done: Mapping[int, VersionStatus]) -> None:
        """Close `models` on a thread of their own; versions get the statuses in `done` then."""

        def close() -> None:
            while models:
                models.pop().close()  # no variable may keep the last one
            still = {v: s for v, s in done.items() if v not in self.serving}
            self._set(still)
            if not self.leaving:
                memory.give_memory_back()
            logger.info("model '%s': closed %s", self.name, list(done) or "what was replaced")

        thread = threading.Thread(target=close, name=f"shoal-close-{self.name}", daemon=True)
        thread.start()  # before it is in the list, whose threads may be joined at any time
        self._closing = [t for t in self._closing if t.is_alive()] + [thread]

    def wait_closed(self, secs: float | None = None) -> bool:
        """Wait until all replaced versions have been closed; false if that takes longer."""
        deadline = None if secs is None else time.monotonic() + secs
        for thread in list(self._closing):
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                return False
        return True

    def refuse(self, reason: str) -> None:
        """Record a load that failed before it began."""
        with self._changing:
            self.last_load_failed = True
            self.given_up = False
            self._note_failure(reason)

    def note_missing(self, reason: str) -> None:
        """Record a load for which there was no folder. A model that was unloaded stays so."""
        with self._changing:
            self.last_load_failed = True
            if self.serving:
                self._note_failure(reason)

    def _note_failure(self, reason: str) -> None:
        """A load failed before any version could be tried."""
        if self.serving:
            self._set({v: VersionStatus(VersionState.READY, _kept(reason)) for v in self.serving})
        else:
            self.problem = reason

    def _set(self, changes: Mapping[int, VersionStatus], *, drop_failed: bool = False) -> None:
        """Change statuses. With `drop_failed` earlier failures are removed: a successful load
        without these versions shows that they are no longer to be served."""
        with self._noting:
            kept = dict(self.statuses)
            if drop_failed:
                kept = {v: status for v, status in kept.items() if not status.failed}
            self.statuses = MappingProxyType({**kept, **changes})


def _problem(key: str, text: str, *, blocks: bool = True) -> Problem:
    name = plain_name(key)
    return Problem(f"model '{name}' {' '.join(text.split())}", name, blocks)


def _kept(reason: str) -> str:
    return f"the last load failed and the previous one still serves: {reason}"


def _text(failure: BaseException) -> str:
    if isinstance(failure, ShoalError):
        return f"{failure.code.value}: {failure.message}"
    return f"{Internal.code.value}: {type(failure).__name__}: {failure}"


def _summary(reasons: Mapping[int, str]) -> str:
    return "".join(
        f"version {version} is at UNAVAILABLE state: {reason};"
        for version, reason in reasons.items()
    )
