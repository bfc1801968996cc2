"""Which models need which: the order in which they load, and who is affected by a change.

    needs = {"ensemble": ("tokenizer", "encoder")}

Pure functions of `needs`: from each ensemble to the models it is made of. A model that has no
entry needs nothing. `Relations` keeps what is known of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

Needs = Mapping[str, Sequence[str]]


def closure(names: Iterable[str], look_up: Callable[[str], Sequence[str]]) -> dict[str, list[str]]:
    """The needs of `names` and of everything they need; `look_up` tells those of one model."""
    needs: dict[str, list[str]] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop(0)
        if name not in needs:
            needs[name] = list(dict.fromkeys(look_up(name)))
            waiting.extend(needs[name])
    return needs


def levels(needs: Needs) -> list[list[str]]:
    """All names of `needs`, so that each stands on a later level than what it needs.

    Names of one level may be loaded side by side. Those that need each other, and what needs them,
    are the last level.
    """
    left = list(needs)
    done: set[str] = set()
    result: list[list[str]] = []
    while left:
        level = [name for name in left if all(n in done or n not in needs for n in needs[name])]
        if not level:
            return [*result, left]
        result.append(level)
        done.update(level)
        left = [name for name in left if name not in done]
    return result


def circle(name: str, needs: Needs) -> list[str]:
    """The way from a model back to itself, the name at both ends; empty if there is none."""
    came_from: dict[str, str] = {}
    waiting = [name]
    while waiting:
        current = waiting.pop()
        for needed in needs.get(current, ()):
            if needed == name:
                path = [name, current]
                while path[-1] != name:
                    path.append(came_from[path[-1]])
                return path[::-1] if current != name else [name, name]
            if needed not in came_from:
                came_from[needed] = current
                waiting.append(needed)
    return []


def dependents(name: str, needs: Needs) -> list[str]:
    """Everything that needs `name`, directly or through others; what needs more comes later."""
    affected: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        for other, needed in needs.items():
            if current in needed and other not in affected and other != name:
                affected.add(other)
                waiting.append(other)
    return [other for level in levels(needs) for other in level if other in affected]


class Relations:
    """Who needs whom among the models that are to be served. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards everything below
        self._needs: dict[str, list[str]] = {}
        self._asked_for: set[str] = set()  # by name, not because something else needs them

    def ask_for(self, names: Iterable[str]) -> None:
        """Somebody wants these models for themselves."""
        with self._lock:
            self._asked_for.update(names)

    def note(self, needs: Needs) -> None:
        """These are to be served, and need these."""
        with self._lock:
            for name, needed in needs.items():
                if needed:
                    self._needs[name] = list(needed)
                else:
                    self._needs.pop(name, None)

    def also_needs(self, name: str, needed: Iterable[str]) -> None:
        """`name` needs these too: an older form of it still serves."""
        with self._lock:
            self._needs[name] = list(dict.fromkeys([*self._needs.get(name, ()), *needed]))

    def forget(self, name: str) -> list[str]:
        """`name` is not to be served any more. Gives what it needed and nobody else wants."""
        with self._lock:
            self._asked_for.discard(name)
            needed = self._needs.pop(name, [])
            wanted = self._asked_for.union(*self._needs.values())
            return [other for other in needed if other not in wanted]

    def direct_dependents(self, name: str) -> list[str]:
        """What needs `name` itself."""
        with self._lock:
            return [other for other, needed in self._needs.items() if name in needed]

    def dependents(self, name: str) -> list[str]:
        """As the function of that name."""
        return dependents(name, self.needs())

    def needs(self) -> dict[str, list[str]]:
        """All that is known, as it is now."""
        with self._lock:
            return dict(self._needs)
