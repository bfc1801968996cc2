"""The health of a model's instances: executions that took too long, and what became of them.

    HEALTHY --an execution takes too long--> REPLACING --has an executor again--> HEALTHY
                                                 └─too many hang, or it fails─> UNHEALTHY
    UNHEALTHY --a thread that hung returns--> REPLACING

A thread cannot be ended. One whose execution hangs is abandoned: it keeps its executor, and closes
it if it ever returns. So that a model that always hangs does not fill the memory, instances are
replaced only while few threads of the model hang.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable

from shoal.statistics.model import InstanceHealth

logger = logging.getLogger(__name__)

DEFAULT_REPLACEMENTS = 4

_abandoned: dict[object, str] = {}  # in this process, of all models
_abandoning = threading.Lock()  # guards _abandoned


def abandoned_instances() -> list[str]:
    """The instances in this process whose threads hang, one for each thread."""
    with _abandoning:
        return sorted(_abandoned.values())


class InstanceState(enum.Enum):
    """Whether an instance takes requests."""

    HEALTHY = "healthy"
    REPLACING = "being replaced"
    UNHEALTHY = "unhealthy"


class ModelHealth:
    """The instances of one model version that has a time limit for executions."""

    def __init__(self, model: str, limit_ms: int, replacements: int = DEFAULT_REPLACEMENTS) -> None:
        """`replacements` is how many threads may hang while instances are replaced."""
        self.model = model
        self.limit_ms = limit_ms
        self._replacements = replacements
        self._changed = threading.Condition()  # guards everything below
        self._changes = 0
        self._states: dict[str, InstanceState] = {}
        self._reasons: dict[str, str] = {}  # of those that are not healthy
        self._retries: dict[str, Callable[[], None]] = {}
        self._hanging: dict[object, str] = {}  # instances, by what identifies an execution
        self._timeouts = 0
        self._close: Callable[[], None] | None = None

    # ---- instances

    def join(self, instance: str, retry: Callable[[], None]) -> None:
        """An instance exists; `retry` is called when it is unhealthy and that may change."""
        with self._changed:
            self._states[instance] = InstanceState.HEALTHY
            self._retries[instance] = retry

    def leave(self, instance: str) -> None:
        """It exists no longer; its threads that hang still count."""
        with self._changed:
            self._states.pop(instance, None)
            self._reasons.pop(instance, None)
            self._retries.pop(instance, None)
        self.wake()

    def timed_out(self, instance: str, reason: str) -> None:
        """An execution of it has taken too long."""
        with self._changed:
            self._timeouts += 1
            self._move(instance, InstanceState.REPLACING, reason)

    def may_replace(self, instance: str) -> bool:
        """Whether an instance without an executor gets a new one: it is being replaced then."""
        with self._changed:
            if len(self._hanging) > self._replacements:
                return False
            self._move(instance, InstanceState.REPLACING)
            return True

    def healthy(self, instance: str) -> None:
        """It takes requests again."""
        with self._changed:
            self._move(instance, InstanceState.HEALTHY)
            self._reasons.pop(instance, None)

    def unhealthy(self, instance: str, reason: str) -> bool:
        """It takes no requests any more; returns whether others do, or soon will."""
        with self._changed:
            self._move(instance, InstanceState.UNHEALTHY, reason or self._too_many())
            return any(state is not InstanceState.UNHEALTHY for state in self._states.values())

    def _move(self, instance: str, state: InstanceState, reason: str = "") -> None:
        if instance in self._states:  # else it was removed meanwhile
            self._states[instance] = state
            if reason:
                self._reasons[instance] = reason

    def _too_many(self) -> str:
        return (
            f"threads that hang in executions of more than {self.limit_ms} ms "
            f"(execution_timeout_ms): {len(self._hanging)}; instances are replaced while there are "
            f"at most {self._replacements} (execution_timeout_replacements)"
        )

    # ---- threads that hang

    def abandon(self, instance: str, execution: object) -> None:
        """A thread of the instance is left alone with its execution."""
        with self._changed, _abandoning:
            self._hanging[execution] = _abandoned[execution] = instance

    def returned(self, execution: object) -> None:
        """The thread has returned, and its executor is closed."""
        with self._changed:
            with _abandoning:
                _abandoned.pop(execution, None)
            instance = self._hanging.pop(execution)
            retries = [
                self._retries[name]
                for name, state in self._states.items()
                if state is InstanceState.UNHEALTHY
            ]
            close = None
            if not self._hanging:
                close, self._close = self._close, None
        logger.warning("an execution of '%s' that had taken too long has returned", instance)
        self.wake()
        for retry in retries:
            retry()
        if close is not None:
            close()

    def close(self, close: Callable[[], None]) -> None:
        """Call `close` when no thread of the model hangs: now, later or never."""
        with self._changed:
            names = ", ".join(sorted(self._hanging.values()))
            if names:
                self._close = close
        if not names:
            close()
            return
        logger.warning(
            "model '%s' is unloaded, but keeps its memory: executions of %s have not returned",
            self.model,
            names,
        )

    # ---- waiting

    @property
    def changes(self) -> int:
        """A number that grows whenever an unhealthy instance should try again."""
        return self._changes

    def wait_for_change(self, seen: int) -> None:
        """Wait while `changes` is `seen`."""
        with self._changed:
            self._changed.wait_for(lambda: self._changes != seen)

    def wake(self) -> None:
        """End all waits."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    # ---- for readers

    def serves(self) -> bool:
        """Whether an instance is healthy."""
        states = list(self._states.values())
        return not states or InstanceState.HEALTHY in states

    def problems(self) -> list[str]:
        """For each instance that is not healthy, why."""
        with self._changed:
            return [
                f"instance '{name}' is {state.value}: {self._reasons.get(name, '')}"
                for name, state in self._states.items()
                if state is not InstanceState.HEALTHY
            ]

    def read(self) -> InstanceHealth:
        """The figures for metrics."""
        with self._changed:
            states = list(self._states.values())
            unhealthy = len(states) - states.count(InstanceState.HEALTHY)
            return InstanceHealth(self._timeouts, len(self._hanging), unhealthy)
