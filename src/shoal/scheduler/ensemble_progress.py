"""The progress of one ensemble request: what has been computed and which steps can run now.

    begin(inputs)          --> steps that are ready
    advance(step, outputs) --> more steps that are ready, responses that are complete

Data-driven: a step is ready when all its tensors are there. Each response of a decoupled step is
an iteration of its own; tensors are matched by the number of their iteration, and responses are
sent in that order, however fast later steps are. A tensor is freed when its last reader has it.

Not thread-safe, and without a clock or a model: the run guards it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shoal.scheduler.ensemble_graph import SINK, EnsembleGraph, ExecutionPlan
from shoal.scheduler.ensemble_tensors import TensorValue


class ReadyStep(NamedTuple):
    """A step whose inputs are complete, for one iteration."""

    step: int
    iteration: int
    values: Mapping[str, TensorValue]  # by the ensemble's names


class EnsembleProgress:
    """One request's progress through the graph."""

    __slots__ = ("_graph", "_iterations", "_next_row", "_partial", "_plan", "_rows")

    def __init__(self, graph: EnsembleGraph, plan: ExecutionPlan) -> None:
        self._graph = graph
        self._plan = plan
        self._partial: dict[int, _Partial] = {}  # iterations in which tensors wait for others
        self._iterations: dict[int, int] = {}  # decoupled step -> responses so far
        self._rows: dict[int, Mapping[str, TensorValue]] = {}  # complete, but an earlier one is not
        self._next_row = 0

    def begin(self, inputs: Mapping[str, TensorValue]) -> list[ReadyStep]:
        """Start from the ensemble's inputs; one that was left out has a value without a tensor."""
        ready, _ = self._arrive(0, inputs)
        return ready

    def advance(
        self, step: int, iteration: int, outputs: Mapping[str, TensorValue]
    ) -> tuple[list[ReadyStep], list[Mapping[str, TensorValue]]]:
        """Take one response of `step`, which ran for `iteration`, by the ensemble's names.

        Returns the steps that are ready now, and the ensemble's outputs for every response that is
        complete and next in order.
        """
        if self._graph.steps[step].model.decoupled:
            iteration = self._iterations.get(step, 0)
            self._iterations[step] = iteration + 1
        return self._arrive(iteration, outputs)

    @property
    def tensors_held(self) -> int:
        """How many tensors wait for a reader; for tests."""
        return sum(len(partial.held) for partial in self._partial.values())

    def _arrive(
        self, iteration: int, values: Mapping[str, TensorValue]
    ) -> tuple[list[ReadyStep], list[Mapping[str, TensorValue]]]:
        plan = self._plan
        partial = self._partial.pop(iteration, None) or _Partial()
        held, missing = partial.held, partial.missing
        ready: list[ReadyStep] = []
        for tensor, value in values.items():
            consumers = plan.consumers.get(tensor)
            if consumers is None:
                continue
            held[tensor] = value
            for consumer in consumers:
                left = missing.get(consumer)
                left = (len(plan.wanted[consumer]) if left is None else left) - 1
                missing[consumer] = left
                if not left:
                    taken = {name: partial.take(name, plan) for name in plan.wanted[consumer]}
                    if consumer == SINK:
                        self._rows[iteration] = taken
                    else:
                        ready.append(ReadyStep(consumer, iteration, taken))
        if held:
            self._partial[iteration] = partial
        return ready, self._rows_in_order() if self._rows else []

    def _rows_in_order(self) -> list[Mapping[str, TensorValue]]:
        rows: list[Mapping[str, TensorValue]] = []
        while self._next_row in self._rows:
            rows.append(self._rows.pop(self._next_row))
            self._next_row += 1
        return rows


class _Partial:
    """One iteration whose tensors have not all been taken."""

    __slots__ = ("_uses", "held", "missing")

    def __init__(self) -> None:
        self.held: dict[str, TensorValue] = {}  # by tensor, until the last consumer has it
        self.missing: dict[int, int] = {}  # consumer -> tensors that have not come
        self._uses: dict[str, int] = {}  # tensor of several consumers -> how many have it

    def take(self, tensor: str, plan: ExecutionPlan) -> TensorValue:
        consumers = len(plan.consumers[tensor])
        if consumers > 1:
            uses = self._uses.get(tensor, 0) + 1
            if uses < consumers:
                self._uses[tensor] = uses
                return self.held[tensor]
        return self.held.pop(tensor)
