"""Dependencies between models: the order in which they load, and which a change affects.

    needs = {"ensemble": ("tokenizer", "encoder")}

Pure functions of `needs`: from each ensemble to the models that it runs. A model without an entry
needs none. `DependencyRegistry` stores them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

Needs = Mapping[str, Sequence[str]]


def closure(names: Iterable[str], look_up: Callable[[str], Sequence[str]]) -> dict[str, list[str]]:
    """The needs of `names` and of all they need; `look_up` returns those of one model."""
    needs: dict[str, list[str]] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop(0)
        if name not in needs:
            needs[name] = list(dict.fromkeys(look_up(name)))
            waiting.extend(needs[name])
    return needs


def levels(needs: Needs) -> list[list[str]]:
    """All names of `needs` in levels: each name is on a later level than those it needs.

    Names of one level may be loaded in parallel. Cycles, and names that need them, are the last
    level.
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
    """The cycle from a model back to itself, with the name at both ends; empty if none."""
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
    """All that need `name`, directly or through others, each after those it needs."""
    affected: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        for other, needed in needs.items():
            if current in needed and other not in affected and other != name:
                affected.add(other)
                waiting.append(other)
    return [other for level in levels(needs) for other in level if other in affected]


class DependencyRegistry:
    """The dependencies of the models to be served. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards everything below
        self._needs: dict[str, list[str]] = {}
        self._asked_for: set[str] = set()  # by name, not because something else needs them

    def ask_for(self, names: Iterable[str]) -> None:
        """These models were requested by name."""
        with self._lock:
            self._asked_for.update(names)

    def note(self, needs: Needs) -> None:
        """These are to be served, with these needs."""
        with self._lock:
            for name, needed in needs.items():
                if needed:
                    self._needs[name] = list(needed)
                else:
                    self._needs.pop(name, None)

    def also_needs(self, name: str, needed: Iterable[str]) -> None:
        """`name` needs these, too: an older version of its config still serves."""
        with self._lock:
            self._needs[name] = list(dict.fromkeys([*self._needs.get(name, ()), *needed]))

    def remove(self, name: str) -> list[str]:
        """`name` is no longer to be served. Returns what only it needed."""
        with self._lock:
            self._asked_for.discard(name)
            needed = self._needs.pop(name, [])
            wanted = self._asked_for.union(*self._needs.values())
            return [other for other in needed if other not in wanted]

    def direct_dependents(self, name: str) -> list[str]:
        """What needs `name` directly."""
        with self._lock:
            return [other for other, needed in self._needs.items() if name in needed]

    def dependents(self, name: str) -> list[str]:
        """As the function of that name."""
        return dependents(name, self.needs())

    def needs(self) -> dict[str, list[str]]:
        """A copy of all needs."""
        with self._lock:
            return dict(self._needs)
