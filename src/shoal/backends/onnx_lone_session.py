"""A second ONNX Runtime session with all cores, for executions that run alone.

    alone, long --> opened in the background --> used while it is quicker, or closed for good

Instances of a model share a session with cores / instances threads: a session's number of threads
cannot change, and more of them than cores would slow each other down. An execution that runs alone
would leave the other cores idle. Only models with long executions get a second session, because it
has its own copy of the weights: one, however many instances there are.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from shoal.core.concurrency import ExpectedConcurrency
from shoal.errors import ShoalError

logger = logging.getLogger(__name__)

LONG_NS = 4_000_000  # shorter executions gain too little from more threads
_LONG_RUNS = 2  # before the session is opened
_COMPARED_RUNS = 8  # before it is compared with the other
_ENOUGH_GAIN = 0.85  # of the time without it


class LoneSession:
    """The second session of one model, if it has one. Any thread may use it."""

    def __init__(
        self, open_session: Callable[[], Any], concurrency: ExpectedConcurrency, model_name: str
    ) -> None:
        """`open_session` is called at most once, on a thread of its own."""
        self.session: Any = None  # while it is open
        self._open_session = open_session
        self._concurrency = concurrency
        self._model_name = model_name
        self._lock = threading.Lock()  # guards everything below, and changes of `session`
        self._wanted = True  # while it is not known to gain nothing
        self._opening: threading.Thread | None = None
        self._long_runs = 0
        self._runs = 0  # with the second session
        self._best: dict[bool, float] = {}  # least ns per element, without and with it

    @property
    def is_alone(self) -> bool:
        """Whether the execution that begins now runs alone, and may use this session."""
        return self._wanted and self._concurrency.executions == 1

    @property
    def is_long(self) -> bool:
        """Whether executions take so long that this session may be used."""
        return self._wanted and self._long_runs > 0

    def observe(self, session: Any, elements: int, took_ns: int, cpu_ns: int) -> None:
        """An execution alone took so long, with this session or (None) without. `cpu_ns` is the CPU
        time of its thread: one that only waited for a core was not long."""
        is_long = cpu_ns >= LONG_NS
        if not is_long and not self._long_runs:
            return
        each_ns = took_ns / max(1, elements)
        with self._lock:
            second = session is not None
            self._best[second] = min(each_ns, self._best.get(second, each_ns))
            if second:
                self._runs += 1
                if self._runs == _COMPARED_RUNS:
                    self._compare()
                return
            self._long_runs += is_long
            if is_long and self._long_runs == _LONG_RUNS and self._wanted:
                name = f"shoal-open-{self._model_name}"
                self._opening = threading.Thread(target=self._open, name=name, daemon=True)
                self._opening.start()

    def _open(self) -> None:
        try:
            session = self._open_session()
        except ShoalError as error:  # there may be no memory for it
            logger.warning(
                "model '%s' runs without a second session for all cores: %s",
                self._model_name,
                error.message,
            )
            session = None
        with self._lock:
            self._wanted = self._wanted and session is not None
            self.session = session if self._wanted else None

    def _compare(self) -> None:
        """Close it if it gains nothing: the model has its own threads, or uses one only."""
        if self._best[True] > _ENOUGH_GAIN * self._best[False]:
            self._wanted = False
            self.session = None

    def close(self) -> None:
        """Release it; waits until it has been opened."""
        with self._lock:
            self._wanted = False
            self.session = None
            opening = self._opening
        if opening is not None:
            opening.join()
