"""What the server reads again while it runs: on SIGHUP, and when files change.

    reloads.add("the TLS certificate", tls.reload, files=[cert, key])

    SIGHUP --request--> every action          a file has changed --poll--> its action

Actions run one after the other on a thread of their own, so they may read files. One that fails is
logged; it must have left what was in use before.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from shoal.errors import ShoalError

logger = logging.getLogger(__name__)

POLL_SECS = 1.0

Fingerprint = tuple[tuple[int, int, int] | None, ...]


@dataclass(slots=True)
class _Action:
    """One action, and its files as they were when it last ran and at the last poll."""

    name: str
    run: Callable[[], None]
    files: tuple[str, ...]
    used: Fingerprint = field(init=False)
    seen: Fingerprint = field(init=False)

    def __post_init__(self) -> None:
        self.used = self.seen = _fingerprint(self.files)

    def settled_change(self) -> bool:
        """Whether the files have changed, and not since the last poll: certificate and key may be
        written one after the other."""
        now = _fingerprint(self.files)
        settled, self.seen = now == self.seen, now
        return settled and now != self.used


class Reloads:
    """The actions of one server. All methods are thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards everything below
        self._actions: list[_Action] = []
        self._requested = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, name: str, action: Callable[[], None], files: Iterable[str] = ()) -> None:
        """Run `action` on every `request`, and when one of `files` has changed.

        `name` is what is read, for the log. Add it after the files were first read.
        """
        with self._changed:
            self._actions.append(_Action(name, action, tuple(files)))
            self._wake()

    def request(self) -> None:
        """Run all actions soon; does not wait for them."""
        with self._changed:
            self._requested = True
            self._wake()

    def close(self) -> None:
        """Run no more actions; one that runs now is not waited for."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wake(self) -> None:
        """Tell the thread; it is started when there is something to do for the first time."""
        needed = self._requested or any(action.files for action in self._actions)
        if self._thread is None and needed and not self._closed:
            self._thread = threading.Thread(target=self._run, name="shoal-reloads", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                watched = any(action.files for action in self._actions)
                self._changed.wait_for(
                    lambda: self._requested or self._closed, POLL_SECS if watched else None
                )
                if self._closed:
                    return
                requested, self._requested = self._requested, False
                actions = list(self._actions)
            for action in actions:
                if requested or action.settled_change():
                    _perform(action)


def _perform(action: _Action) -> None:
    action.used = action.seen = _fingerprint(action.files)
    try:
        action.run()
    except ShoalError as error:
        logger.error(  # noqa: TRY400 - a sentence, not a traceback
            "%s was not reloaded, and stays as it was: %s", action.name, error.message
        )
    except Exception:
        logger.exception("%s was not reloaded", action.name)
    else:
        logger.info("reloaded %s", action.name)


def _fingerprint(files: Iterable[str]) -> Fingerprint:
    """What changes when a file is written, or replaced by another; None for a missing one."""
    found: list[tuple[int, int, int] | None] = []
    for path in files:
        try:
            status = os.stat(path)  # noqa: PTH116 - of the file that a link names
        except OSError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)
