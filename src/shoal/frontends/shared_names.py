"""Names that all front-end processes of a server know: regions of shared memory, loaded models.

client --register--> one front end --> the process that keeps the names --> `add` in every front end
                                   <-- when all of them know it <--'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

NO_FILE = -1


class NameTaker(Protocol):
    """What a front end does with the names of one kind."""

    def is_slow(self, value: Any) -> bool:
        """Whether `add` takes long: then it is called on a thread."""

    def add(self, name: str, value: Any, file: int) -> None:
        """Use a name from now on; owns the open file, if there is one. May raise a ShoalError: then
        no front end uses it."""

    def leave(self, name: str, unused: Callable[[], None]) -> bool:
        """A name is to be removed. Whether it is in use; then `unused` is called, from any thread,
        whenever it no longer is, until it is removed."""

    def remove(self, name: str) -> None:
        """Use it no longer."""


class SharedNames(Protocol):
    """The names of all kinds. `register` and `unregister` block, so that they must be called off
    the event loop."""

    def attach(self, kind: str, taker: NameTaker) -> None:
        """Have `taker` called for names of a kind, at once for those that there are."""

    def register(self, kind: str, name: str, value: Any, file: int = NO_FILE) -> bool:
        """Have all front ends use a name; false if it is taken. `value` is plain data; `file` is an
        open file for each of them, and is closed here. Raises what one of them raised."""

    def unregister(self, kind: str, names: list[str]) -> None:
        """Have no front end use these names any more; those in use as soon as they no longer
        are."""
