"""How many executions of a model run at the same time: from its scheduler to its backend."""

from __future__ import annotations


class ExpectedConcurrency:
    """Written by the scheduler before a batch runs; a backend may read it to choose its threads."""

    __slots__ = ("executions",)

    def __init__(self) -> None:
        self.executions = 0  # that are under way or about to begin; 0: not known
