"""The memory that models may hold together (`--model-memory-budget`).

    a load --> what all models hold --> too much? --> the least recently used idle one goes

The budget is what the server comes back to, not a wall: a request is never refused for it, and a
model that serves, is needed by one that does, or has just been loaded and not been used yet, stays.
So there may be more than that for a while. The model that was used last stays, too, so that one
larger than the budget is served alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

logger = logging.getLogger(__name__)

_LOOK_AGAIN_SECS = 0.5  # while there is too much and nothing that could go


@dataclass(frozen=True, slots=True)
class Resident:
    """A model that is loaded."""

    key: str
    memory_bytes: int
    last_used_ns: int
    busy: bool = False  # it has something to do, or has just been loaded for it
    needed: bool = False  # a model made of it is loaded


def used_last(residents: Iterable[Resident]) -> str:
    """The model that was used last; of an ensemble and its models, the ensemble."""
    last = max(residents, key=lambda model: (model.last_used_ns, not model.needed), default=None)
    return "" if last is None else last.key


def next_to_go(residents: Iterable[Resident], spared: str) -> Resident | None:
    """The model to unload first; None where all have to stay. `spared` stays in any case."""
    may_go = [
        model for model in residents if not model.busy and not model.needed and model.key != spared
    ]
    return min(may_go, key=lambda model: model.last_used_ns, default=None)


class MemoryBudget:
    """Keeps what models hold below a limit. Any thread may call any method."""

    def __init__(
        self,
        limit_bytes: int,
        residents: Callable[[], Sequence[Resident]],
        evict: Callable[[str], None],
    ) -> None:
        """`residents` tells what is loaded now, `evict` unloads one of them and blocks."""
        self.limit_bytes = limit_bytes
        self.evictions = 0
        self._residents = residents
        self._evict = evict
        self._fitting = threading.Lock()  # one at a time decides who goes
        self._changed = threading.Event()
        self._stopped = False
        self._warned: set[str] = set()
        self._thread = threading.Thread(target=self._watch, name="shoal-budget", daemon=True)

    def start(self) -> None:
        """Begin to look after it."""
        self._thread.start()

    def stop(self) -> None:
        """End, after the eviction at hand."""
        self._stopped = True
        self._changed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def make_room(self, key: str, needed_bytes: int) -> None:
        """Unload what can go for `key`, which is about to load and will need so much. Blocks."""
        self._fit(needed_bytes, key)

    def loads_changed(self) -> None:
        """Something has been loaded: look whether it is too much."""
        self._changed.set()

    def _watch(self) -> None:
        settled = True
        while True:
            self._changed.wait(None if settled else _LOOK_AGAIN_SECS)
            if self._stopped:
                return
            self._changed.clear()
            try:
                settled = self._fit()
            except Exception:  # one model's surprise must not end the watch
                logger.exception("could not bring models within the memory budget")
                settled = False

    def _fit(self, needed_bytes: int = 0, newcomer: str = "") -> bool:
        """Unload until it fits; false where there is too much that may go later."""
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
                    "models hold %s of %s: unloading '%s' (%s), which was not used for longest",
                    spoken(held + needed_bytes),
                    spoken(self.limit_bytes),
                    victim.key,
                    spoken(victim.memory_bytes),
                )
                self._evict(victim.key)
                self.evictions += 1
            return True

    def _warn(self, residents: Sequence[Resident]) -> None:
        """Say once of each model that it will never fit."""
        large = {model.key for model in residents if model.memory_bytes > self.limit_bytes}
        for key in large - self._warned:
            logger.warning(
                "model '%s' by itself holds more than --model-memory-budget (%s): it is served, "
                "and others go as soon as they are not in use",
                key,
                spoken(self.limit_bytes),
            )
        self._warned |= large


def spoken(count: int) -> str:
    """Bytes for people."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
