"""The life of one model: which versions are in which state, and how they change.

    (none) --> LOADING --> READY --> UNLOADING --> UNAVAILABLE "unloaded"
                  └──> UNAVAILABLE <why>

New versions are loaded beside the old ones. When all of them are ready the switch is one
assignment; requests in flight finish on the old ones. When one fails, none of the new ones is
kept, the old ones go on serving, and the index says why.
"""

from __future__ import annotations

import ctypes
import enum
import gc
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from shoal.errors import Internal, InvalidArgument, ShoalError
from shoal.models.ensemble import ServedModel, load_version
from shoal.models.spec import ModelSpec

logger = logging.getLogger(__name__)

UNLOADED = "unloaded"
_UNLOAD_WAIT_SECS = 2.0


class State(enum.Enum):
    """A version's state, by the names the index gives."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Status:
    """A version's state and, where there is something to say, why."""

    state: State
    reason: str = ""

    @property
    def failed(self) -> bool:
        """Whether it should serve and cannot."""
        return self.state is State.UNAVAILABLE and not self.on_purpose

    @property
    def on_purpose(self) -> bool:
        """Whether somebody unloaded it, or a model that it cannot be without."""
        return self.reason.startswith(UNLOADED)


class LoadFailed(InvalidArgument):
    """A load that failed; the text lists every version with its reason."""


class Unreadable(InvalidArgument):
    """Versions were chosen, but their model could not be read. The cause says why."""

    def __init__(self, versions: Sequence[int]) -> None:
        super().__init__("the model could not be read")
        self.versions = versions


class ModelLife:
    """One model name. Looking at it takes no lock; changes to it are made one after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.serving: Mapping[int, ServedModel] = MappingProxyType({})
        self.newest: ServedModel | None = None
        self.statuses: Mapping[int, Status] = MappingProxyType({})
        self.problem = ""  # why there is not even a version, e.g. a broken config
        self.last_load_failed = False
        self.given_up = False  # unloaded on purpose since it was last loaded
        self.leaving = False  # the server ends: memory is given back for all models at once
        self._changing = threading.Lock()  # serialises load and unload
        self._noting = threading.Lock()  # guards the replacement of `statuses`
        self._closing: list[threading.Thread] = []

    def load(self, make_spec: Callable[[], ModelSpec]) -> None:
        """Bring the model to what `make_spec` says. Blocks; raises LoadFailed when it cannot be.

        Versions that did not change stay as they are; where only instance groups changed the
        instances are changed in place.
        """
        with self._changing:
            self.last_load_failed = True  # until the last line says otherwise
            self.given_up = False
            try:
                spec = make_spec()
            except Unreadable as failure:
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
                self._set({v: Status(State.READY, _kept(reason)) for v in resize})
                raise LoadFailed(_summary(dict.fromkeys(resize, reason))) from failure
            self._switch({v: self.serving[v] for v in [*keep, *resize]} | made)
            self.last_load_failed = False

    def _plan(self, spec: ModelSpec) -> tuple[list[int], list[int], list[int]]:
        """Which versions stay, which only change their instances, and which must be loaded."""
        keep: list[int] = []
        resize: list[int] = []
        make: list[int] = []
        for version in spec.version_folders:
            old = self.serving.get(version)
            if old is None or not spec.serves_like(old.spec, version):
                make.append(version)
            elif old.config.instance_group != spec.config.instance_group:
                resize.append(version)
            else:
                keep.append(version)
        return keep, resize, make

    def _make(self, spec: ModelSpec, make: list[int]) -> dict[int, ServedModel]:
        """Load versions beside what serves; all of them or none."""
        fresh = [version for version in make if version not in self.serving]
        self._set(dict.fromkeys(fresh, Status(State.LOADING)))
        made: dict[int, ServedModel] = {}
        reasons: dict[int, str] = {}
        for version in make:
            try:
                made[version] = load_version(spec, version)
            except Exception as failure:  # noqa: BLE001 - whatever it is, it becomes the reason
                reasons[version] = self._reason(failure)
        if not reasons:
            return made
        for model in made.values():
            model.close()
        raise self._failed(make, reasons)

    def _reason(self, failure: BaseException) -> str:
        """Why a version is not served, as clients read it. A surprise is in the log as well."""
        if not isinstance(failure, ShoalError):
            logger.error("loading '%s' failed", self.name, exc_info=failure)
        return _text(failure)

    def _failed(self, tried: Sequence[int], reasons: Mapping[int, str]) -> LoadFailed:
        """Note that none of `tried` is served; the error that says so."""
        changes: dict[int, Status] = {}
        for version in tried:
            why = reasons.get(version, "not loaded because another version failed")
            if version in self.serving:
                changes[version] = Status(State.READY, _kept(why))
            else:
                changes[version] = Status(State.UNAVAILABLE, why)
        self._set(changes)
        return LoadFailed(_summary(reasons))

    def _switch(self, serving: dict[int, ServedModel], reason: str = UNLOADED) -> None:
        """From here on requests see `serving`; what it replaces drains and closes."""
        before = self.serving
        gone = {v: Status(State.UNLOADING) for v in before if v not in serving}
        self.newest = serving[max(serving)] if serving else None
        self.serving = MappingProxyType(serving)
        self._set({**gone, **{v: Status(State.READY) for v in serving}}, drop_failed=True)
        retired = [model for v, model in before.items() if serving.get(v) is not model]
        if retired:
            self._close_soon(retired, dict.fromkeys(gone, Status(State.UNAVAILABLE, reason)))

    def unload(self) -> None:
        """Stop serving at once; queued requests are still answered.

        Waits a moment for the memory to be given back, so that usually it is on return.
        """
        with self._changing:
            self.problem = ""
            self.given_up = True
            stale = [v for v in self.statuses if v not in self.serving]
            self._switch({})
            self._set(dict.fromkeys(stale, Status(State.UNAVAILABLE, UNLOADED)))
        self._wait_a_moment()

    def withdraw(self, reason: str) -> None:
        """Stop serving because a model that this one is made of is gone; else as `unload`.

        The next load may bring it back.
        """
        with self._changing:
            self.last_load_failed = True
            self._switch({}, reason)
        self._wait_a_moment()

    def _wait_a_moment(self) -> None:
        for thread in list(self._closing):
            thread.join(_UNLOAD_WAIT_SECS)

    def _close_soon(self, models: list[ServedModel], done: Mapping[int, Status]) -> None:
        """Close `models` on a thread of their own; afterwards the versions in `done` are that."""

        def close() -> None:
            for model in models:
                model.close()
            models.clear()
            still = {v: s for v, s in done.items() if v not in self.serving}
            self._set(still)
            if not self.leaving:
                give_memory_back()
            logger.info("model '%s': closed %s", self.name, list(done) or "what was replaced")

        thread = threading.Thread(target=close, name=f"shoal-close-{self.name}", daemon=True)
        thread.start()  # first: whoever waits for those in the list may do so at any moment
        self._closing = [t for t in self._closing if t.is_alive()] + [thread]

    def wait_closed(self) -> None:
        """Wait until everything that was retired has been closed."""
        for thread in list(self._closing):
            thread.join()

    def refuse(self, reason: str) -> None:
        """Note a load that failed before it began."""
        with self._changing:
            self.last_load_failed = True
            self.given_up = False
            self._note_failure(reason)

    def _note_failure(self, reason: str) -> None:
        """A load failed before any version could be tried."""
        if self.serving:
            self._set({v: Status(State.READY, _kept(reason)) for v in self.serving})
        else:
            self.problem = reason

    def _set(self, changes: Mapping[int, Status], *, drop_failed: bool = False) -> None:
        """Change statuses. With `drop_failed` earlier failures go: a load that succeeded without
        these versions has settled that nobody wants them."""
        with self._noting:
            kept = dict(self.statuses)
            if drop_failed:
                kept = {v: status for v, status in kept.items() if not status.failed}
            self.statuses = MappingProxyType({**kept, **changes})


def give_memory_back() -> None:
    """Return freed memory to the system: drop cycles, then trim the C heap where glibc can."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # not glibc: its allocator decides for itself
        return


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
