"""Admission of requests to an ensemble, from what its models are expected to take.

    the models of its steps --expectation--> along the longest path --> refused, or all steps run

A request that was admitted is not refused half-way, when others have computed for it: steps pass
the admission control of their models. Their queue limits and time-outs hold all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from shoal.core.reply import DISCARD
from shoal.core.request import Request
from shoal.errors import QueueRejected
from shoal.scheduler.admission import (
    FIRST_SHARE,
    AdmissionReading,
    Expectation,
    late,
    limit_ns,
)
from shoal.scheduler.ensemble_graph import EnsembleGraph, EnsembleStep


class StepModel(Protocol):
    """The model of a step."""

    def expectation(self, request: Request) -> Expectation:
        """Whether such a request would be admitted now, and how long it would take."""

    def time_to_drain_ns(self) -> float | None:
        """How long what waits and runs now is expected to take; None while that is not known."""


class EnsembleAdmission:
    """Which requests an ensemble accepts. Any thread may call any method."""

    def __init__(
        self,
        graph: EnsembleGraph,
        target_ns: int,
        find: Callable[[str, int], StepModel | None] | None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`find` returns the model that serves a name and version. Without a target of its own
        (0), an ensemble accepts what all its models would accept."""
        self._graph = graph
        self._target_ns = target_ns
        self._find = find
        self._clock = clock
        self._order = _in_order(graph)
        self.applies = target_ns > 0 or any(step.model.limits_latency for step in graph.steps)
        self._refused = 0  # a lost race costs a count

    def check(self, request: Request) -> None:
        """Raise QueueRejected if the request cannot be answered in time."""
        if not self.applies:
            return
        if request.correlation_id and not request.flags & Request.SEQUENCE_START:
            return  # its sequence has begun
        expected = self.expectation(request)
        if expected.in_time:
            return
        self._refused += 1
        if not self._target_ns:
            raise QueueRejected(
                f"ensemble '{self._graph.name}' runs a model that is overloaded; try again later",
                prefix=request.log_prefix(),
            )
        raise late(request, self._target_ns, expected.latency_ns, self._clock())

    def expectation(self, request: Request) -> Expectation:
        """Whether such a request would be admitted now, and how long it would take."""
        if self._find is None:
            return Expectation()
        needed = self._graph.plan(request.requested_outputs).wanted
        took_ns: dict[int, float] = {}  # by step
        waits = False
        for step in self._order:
            if step.index not in needed:
                continue
            model = self._find(step.model.name, step.model.version)
            expected = Expectation() if model is None else model.expectation(request)
            if not expected.in_time:
                return expected
            waits = waits or expected.waits
            took_ns[step.index] = expected.latency_ns
        latency_ns = self._longest_ns(took_ns)
        if not self._target_ns or not waits:  # where nothing waits, none can do better
            return Expectation(latency_ns, waits=waits)
        budget_ns = FIRST_SHARE * limit_ns(request, self._target_ns, self._clock())
        return Expectation(latency_ns, latency_ns <= budget_ns, waits)

    def drain_ns(self) -> float | None:
        """How long what waits and runs in its models takes, along the longest path; None while
        nothing is known."""
        if self._find is None:
            return None
        models = [self._find(step.model.name, step.model.version) for step in self._graph.steps]
        drains = [None if model is None else model.time_to_drain_ns() for model in models]
        if all(drain_ns is None for drain_ns in drains):
            return None
        return self._longest_ns(
            {step.index: ns or 0.0 for step, ns in zip(self._graph.steps, drains, strict=True)}
        )

    def _longest_ns(self, took_ns: Mapping[int, float]) -> float:
        """The longest path through the steps that took so long, by their number."""
        done_ns: dict[str, float] = {}  # by tensor
        for step in self._order:
            if step.index in took_ns:
                begun = [done_ns.get(tensor, 0.0) for tensor in step.inputs.values()]
                for tensor in step.outputs.values():
                    done_ns[tensor] = max(begun, default=0.0) + took_ns[step.index]
        return max(done_ns.values(), default=0.0)

    def reading(self) -> AdmissionReading | None:
        """The state of the admission control, for metrics; None without a target latency."""
        if not self._target_ns:
            return None
        row = Request(self._graph.name, {}, DISCARD)
        return AdmissionReading(self._refused, self.expectation(row).latency_ns)


def _in_order(graph: EnsembleGraph) -> list[EnsembleStep]:
    """The steps, each after those that it reads from; the graph has no cycle."""
    order: list[EnsembleStep] = []
    made = set(graph.inputs)
    left = list(graph.steps)
    while left:
        ready = [step for step in left if made.issuperset(step.inputs.values())] or left
        order += ready
        made.update(tensor for step in ready for tensor in step.outputs.values())
        left = [step for step in left if step not in ready]
    return order
