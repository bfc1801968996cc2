"""The memory budget of all models together (`--model-memory-budget`).

    a load --> memory of all models --> above the budget? --> evict the least recently used idle one

The budget is a target, not a hard limit: a request is never refused for it, and a model that is
busy, is needed by a busy one, or has just been loaded and not been used yet, stays. So models may
use more for a while. The most recently used model stays, too, so that one larger than the budget is
served alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

logger = logging.getLogger(__name__)

_RETRY_SECS = 0.5  # while models exceed the budget and none can be evicted


@dataclass(frozen=True, slots=True)
class ResidentModel:
    """A model that is loaded."""

    key: str
    memory_bytes: int
    last_used_ns: int
    busy: bool = False  # it has requests, or has just been loaded for some
    needed: bool = False  # an ensemble that runs it is loaded


def used_last(residents: Iterable[ResidentModel]) -> str:
    """The most recently used model; of an ensemble and its models, the ensemble."""
    last = max(residents, key=lambda model: (model.last_used_ns, not model.needed), default=None)
    return "" if last is None else last.key


def next_to_go(residents: Iterable[ResidentModel], spared: str) -> ResidentModel | None:
    """The model to evict first; None if all have to stay. `spared` stays in any case."""
    may_go = [
        model for model in residents if not model.busy and not model.needed and model.key != spared
    ]
    return min(may_go, key=lambda model: model.last_used_ns, default=None)


class MemoryBudget:
    """Keeps the memory of models below a limit. Any thread may call any method."""

    def __init__(
        self,
        limit_bytes: int,
        residents: Callable[[], Sequence[ResidentModel]],
        evict: Callable[[str], None],
    ) -> None:
        """`residents` returns the loaded models, `evict` unloads one of them and blocks."""
        self.limit_bytes = limit_bytes
        self.evictions = 0
        self._residents = residents
        self._evict = evict
        self._fitting = threading.Lock()  # one thread at a time evicts
        self._changed = threading.Event()
        self._stopped = False
        self._warned: set[str] = set()
        self._thread = threading.Thread(target=self._watch, name="shoal-budget", daemon=True)

    def start(self) -> None:
        """Start to enforce the budget."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, after an eviction in progress."""
        self._stopped = True
        self._changed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def make_room(self, key: str, needed_bytes: int) -> None:
        """Evict models for `key`, which is about to load and needs `needed_bytes`. Blocks."""
        self._fit(needed_bytes, key)

    def loads_changed(self) -> None:
        """A model has been loaded: check the budget."""
        self._changed.set()

    def _watch(self) -> None:
        settled = True
        while True:
            self._changed.wait(None if settled else _RETRY_SECS)
            if self._stopped:
                return
            self._changed.clear()
            try:
                settled = self._fit()
            except Exception:  # an error of one model must not end this thread
                logger.exception("models could not be evicted to meet the memory budget")
                settled = False

    def _fit(self, needed_bytes: int = 0, newcomer: str = "") -> bool:
        """Evict until models fit; false if busy models may have to be evicted later."""
        with self._fitting:
            while not self._stopped:
                residents = self._residents()
                held = sum(model.memory_bytes for model in residents)
                if held + needed_bytes <= self.limit_bytes:
                    return True
                spared = newcomer or used_last(residents)
                victim = next_to_go(residents, spared)
                if victim is None:
                    self._warn(residents)
                    return not any(model.busy for model in residents if model.key != spared)
                logger.info(
                    "models use %s of %s: unloading '%s' (%s), the least recently used",
                    format_bytes(held + needed_bytes),
                    format_bytes(self.limit_bytes),
                    victim.key,
                    format_bytes(victim.memory_bytes),
                )
                self._evict(victim.key)
                self.evictions += 1
            return True

    def _warn(self, residents: Sequence[ResidentModel]) -> None:
        """Warn once about each model that can never fit."""
        large = {model.key for model in residents if model.memory_bytes > self.limit_bytes}
        for key in large - self._warned:
            logger.warning(
                "model '%s' alone uses more than --model-memory-budget (%s): it is served, and "
                "others are unloaded as soon as they are idle",
                key,
                format_bytes(self.limit_bytes),
            )
        self._warned |= large


def format_bytes(count: int) -> str:
    """A number of bytes with its unit."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
