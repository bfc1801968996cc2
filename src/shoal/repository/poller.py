"""Poll mode: watch the repositories and follow what changes, once it has stopped changing.

A folder that is still being copied looks different at every glance. A change is acted on when two
glances in a row agree; a load that failed is tried again, less and less often, because the copy
may have been slower than the glances.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shoal.repository.declared import DeclaredModels
from shoal.repository.layout import Fingerprint, find_models, fingerprint

logger = logging.getLogger(__name__)

_SETTLE_SECS = 1.0
_LONGEST_RETRY_SECS = 600.0


class Follower(Protocol):
    """Who is told about changes: the repository."""

    def follow(self, name: str) -> None:
        """The folder of `name` is new or has changed. Must not raise."""

    def forget(self, name: str) -> None:
        """The folder of `name` is gone. Must not raise."""

    def has_failed(self, name: str) -> bool:
        """Whether the last load of `name` did not succeed."""


Look = dict[str, tuple[tuple[Path, Fingerprint], ...]]


@dataclass(slots=True)
class _Retry:
    at_secs: float
    wait_secs: float


class Changes:
    """The decision, without a clock of its own: feed it looks, it says what to do."""

    def __init__(self, known: Look, poll_secs: float) -> None:
        self._known = dict(known)
        self._seen: Look = dict(known)
        self._poll_secs = poll_secs
        self._retries: dict[str, _Retry] = {}

    def unsettled(self, look: Look) -> bool:
        """Whether something differs from what is served, so that another look is due soon."""
        return look != self._known

    def settled(self, look: Look) -> tuple[list[str], list[str]]:
        """Names to load and names to unload: what changed and looks as it did last time."""
        changed = [
            name
            for name, prints in look.items()
            if self._known.get(name) != prints and self._seen.get(name) == prints
        ]
        gone = [name for name in self._known if name not in look and name not in self._seen]
        self._seen = dict(look)
        for name in changed:
            self._known[name] = look[name]
            self._retries.pop(name, None)
        for name in gone:
            del self._known[name]
            self._retries.pop(name, None)
        return changed, gone

    def failed(self, name: str, now_secs: float) -> None:
        """The load of `name` failed: try again later, twice as late each time."""
        last = self._retries.get(name)
        wait = self._poll_secs if last is None else min(last.wait_secs * 2, _LONGEST_RETRY_SECS)
        self._retries[name] = _Retry(now_secs + wait, wait)

    def loaded(self, name: str) -> None:
        """The load of `name` succeeded."""
        self._retries.pop(name, None)

    def due(self, now_secs: float) -> list[str]:
        """Names whose failed load should be tried again now."""
        return [name for name, retry in self._retries.items() if now_secs >= retry.at_secs]


class Poller:
    """A thread that looks every `poll_secs` and tells the follower."""

    def __init__(
        self,
        follower: Follower,
        paths: Sequence[Path],
        poll_secs: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        namespaced: bool = False,
        declared: DeclaredModels | None = None,
    ) -> None:
        self._follower = follower
        self._declared = declared or DeclaredModels()
        self._paths = paths
        self._namespaced = namespaced
        self._poll_secs = poll_secs
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._changes = Changes({}, poll_secs)

    def start(self, known: Look) -> None:
        """Begin, taking `known` as what has just been loaded or tried.

        It must be from before those loads, so that what changed meanwhile counts as a change.
        """
        self._changes = Changes(known, self._poll_secs)
        for name in known:
            if self._follower.has_failed(name):
                self._changes.failed(name, self._clock())
        self._thread = threading.Thread(target=self._run, name="shoal-poll", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, after the load at hand."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        settle_secs = min(_SETTLE_SECS, self._poll_secs / 2)
        wait_secs = self._poll_secs
        while not self._stop.wait(wait_secs):
            try:
                unsettled = self.poll_once()
            except OSError as error:  # a repository on a network may come back
                logger.warning("cannot look at the model repository: %s", error)
                unsettled = False
            wait_secs = settle_secs if unsettled else self._poll_secs

    def poll_once(self) -> bool:
        """Look once and act on what has settled; true if something is still changing."""
        look = self.look()
        changed, gone = self._changes.settled(look)
        for name in gone:
            self._follower.forget(name)
        retry = [name for name in self._changes.due(self._clock()) if name not in changed]
        for name in [*changed, *retry]:
            self._follower.follow(name)
            if self._follower.has_failed(name):
                self._changes.failed(name, self._clock())
            else:
                self._changes.loaded(name)
        return self._changes.unsettled(look)

    def look(self) -> Look:
        """What the repositories look like now."""
        look = {
            name: tuple((path, fingerprint(path)) for path in paths)
            for name, paths in find_models(self._paths, namespaced=self._namespaced).items()
        }
        for name, files in self._declared.look(namespaced=self._namespaced).items():
            look[name] = (*look.get(name, ()), *files)
        return look
