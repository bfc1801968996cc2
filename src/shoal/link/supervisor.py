"""Keeps one child process running: restarts it with back-off, and says which process to use.

    running --process gone--> starting --ready--> running
                                  └─failed or short-lived─> resting --back-off over--> starting

A process is restarted at once, or with increasing back-off if it keeps ending. Meanwhile a stand-in
does its work; without one, callers wait while it starts or rests briefly, and are refused during
longer rests.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from shoal.errors import Internal, ShoalError

logger = logging.getLogger(__name__)

_FIRST_REST_SECS = 0.5
_LONGEST_REST_SECS = 30.0
_LONGEST_WAIT_SECS = 2.0  # callers wait for rests up to this
_LONG_LIFE_SECS = 60.0  # a process that lived this long is restarted at once


class ProcessState(enum.Enum):
    """Where the process is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    RESTING = "resting"
    CLOSED = "closed"


# A module constant, because on Python 3.11 access to an enum member runs Python code.
_RUNNING = ProcessState.RUNNING


class Supervised(Protocol):
    """A process that can be used."""

    @property
    def gone(self) -> bool:
        """Whether the process has ended. True before `Supervisor.ended` is called."""

    @property
    def ending(self) -> str:
        """How the process ended, after its end."""


Process = TypeVar("Process", bound=Supervised)


class Supervisor(Generic[Process]):
    """One process, and those that replace it."""

    def __init__(self, name: str, start: Callable[[], Process]) -> None:
        """Nothing is started yet. `name` is for messages.

        `start` returns a process that can be used, or raises a ShoalError. When a process ends by
        itself, `ended` must be called.
        """
        self._name = name
        self._start_process = start
        self.stand_in: Callable[[], Process | None] = lambda: None  # another process to use
        self._changed = threading.Condition()  # guards what follows
        self._state = ProcessState.STARTING
        self._process: Process | None = None
        self._started_at = 0.0
        self._rest_secs = 0.0
        self._last_ending = ""
        self.restarts = 0

    @property
    def state(self) -> ProcessState:
        """Where the process is in its life."""
        return self._state

    @property
    def process(self) -> Process | None:
        """The process, while it runs."""
        process = self._process
        if process is None or self._state is not _RUNNING or process.gone:
            return None
        return process

    @property
    def last_ending(self) -> str:
        """How the last process ended; "" if none has."""
        return self._last_ending

    def running(self) -> Process | None:
        """The process or, while there is none, a stand-in. If there is none, this waits while it
        starts or rests briefly; None if it is resting for longer, or closed."""
        process = self.process or self.stand_in()
        if process is not None:
            return process
        with self._changed:
            while self._will_run():
                self._changed.wait()
            return self.process

    def _will_run(self) -> bool:
        """Whether there is no process now, but soon."""
        if self._state is ProcessState.RUNNING:  # `ended` is about to be called
            return self._process is not None and self._process.gone
        return self._state is ProcessState.STARTING or (
            self._state is ProcessState.RESTING and self._rest_secs <= _LONGEST_WAIT_SECS
        )

    def start(self) -> None:
        """Start a process and wait until it can be used. Raises what `start` raises."""
        process = self._start_process()
        with self._changed:
            if process.gone:  # its end was reported before any caller was affected
                raise Internal(f"the process ended after it was started: {process.ending}")
            self._process = process
            self._started_at = time.monotonic()
            if self._state is not ProcessState.CLOSED:
                self._state = ProcessState.RUNNING
            self._changed.notify_all()

    def ended(self, process: Process, ending: str) -> None:
        """A process has ended by itself. Called by the thread that read from it."""
        with self._changed:
            if self._state is ProcessState.CLOSED or self._process is not process:
                return
            if time.monotonic() - self._started_at > _LONG_LIFE_SECS:
                self._rest_secs = 0.0
            self._process = None
            self.restarts += 1
            self._last_ending = ending
            self._state = ProcessState.RESTING if self._rest_secs else ProcessState.STARTING
            self._changed.notify_all()
        logger.error(
            "the process of %s has ended: %s; it is restarted%s",
            self._name,
            ending,
            f" in {self._rest_secs:g} s" if self._rest_secs else "",
        )
        threading.Thread(target=self._restart, name="shoal-restart", daemon=True).start()

    def _restart(self) -> None:
        """Restart it until it runs."""
        while True:
            with self._changed:
                deadline = time.monotonic() + self._rest_secs
                while self._state is not ProcessState.CLOSED and time.monotonic() < deadline:
                    self._changed.wait(deadline - time.monotonic())
                if self._state is ProcessState.CLOSED:
                    return
                self._state = ProcessState.STARTING
                self._rest_secs = min(
                    max(_FIRST_REST_SECS, 2 * self._rest_secs), _LONGEST_REST_SECS
                )
            try:
                self.start()
            except Exception as error:
                with self._changed:
                    if self._state is not ProcessState.CLOSED:
                        self._state = ProcessState.RESTING
                    self._changed.notify_all()
                logger.error(  # noqa: TRY400 - a traceback only for what is not expected
                    "the process of %s does not start: %s; next try in %g s",
                    self._name,
                    error,
                    self._rest_secs,
                    exc_info=None if isinstance(error, ShoalError) else error,
                )
            else:
                return

    def close(self) -> Process | None:
        """Restart it no more; returns the process, which the caller ends. Waits for a start."""
        with self._changed:
            while self._state is ProcessState.STARTING:
                self._changed.wait()
            self._state = ProcessState.CLOSED
            self._changed.notify_all()
            return self._process
