"""How many executions of a model run at the same time: from its scheduler to its backend."""

from __future__ import annotations


class LoneClient:
    """Whether the requests that the event loop runs are those of one client, which sends the next
    one as soon as it has its response."""

    __slots__ = ("is_there",)

    def __init__(self) -> None:
        self.is_there = False  # written by the loop's thread


class ExpectedConcurrency:
    """Written by the scheduler before a batch runs; a backend may read it to choose its threads."""

    __slots__ = ("executions", "lone_client")

    def __init__(self, lone_client: LoneClient | None = None) -> None:
        """`lone_client` is that of the event loop, if there is a loop."""
        self.executions = 0  # under way or about to begin; 0: on the event loop, or not known
        self.lone_client = lone_client or LoneClient()

    def is_lone(self) -> bool:
        """Whether the execution that begins now runs alone: on a thread, or for a lone client on
        the event loop."""
        executions = self.executions
        return executions == 1 or (self.lone_client.is_there and not executions)
