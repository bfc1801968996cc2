"""How many executions of a model run at the same time: from its scheduler to its backend."""

from __future__ import annotations

from collections.abc import Callable


def _never() -> bool:  # a function with a name, because processes of instances get this pickled
    return False


class ExpectedConcurrency:
    """Written by the scheduler before a batch runs; a backend may read it to choose its threads."""

    __slots__ = ("_has_lone_client", "executions")

    def __init__(self, has_lone_client: Callable[[], bool] = _never) -> None:
        """`has_lone_client` says whether the requests that the event loop runs are those of one
        client, which sends the next one as soon as it has its response."""
        self.executions = 0  # under way or about to begin; 0: on the event loop, or not known
        self._has_lone_client = has_lone_client

    def has_lone_client(self) -> bool:
        """Whether the execution that begins now is that of such a client."""
        return not self.executions and self._has_lone_client()
