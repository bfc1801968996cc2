"""The explanation of a loaded model's batches, from its counters and config.

model --> Facts --> scheduler.explain --> JSON
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from shoal.config import shapes
from shoal.models.served import ServedModel
from shoal.scheduler.explain import Facts, StepFacts, explain, explain_ensemble
from shoal.scheduler.policy import Reason

# Finds a model by name and version, as in the step of an ensemble.
LookUp: TypeAlias = Callable[[str, int], ServedModel | None]

_NS_PER_US = 1000


def explained(model: ServedModel, look_up: LookUp) -> dict[str, Any]:
    """Explains a model's batches; `look_up` finds the models that an ensemble runs."""
    facts = facts_of(model)
    graph = model.spec.ensemble
    if graph is None:
        explanation = explain(facts)
    else:
        wanted = dict.fromkeys((step.model.name, step.model.version) for step in graph.steps)
        parts = [(name, look_up(name, version)) for name, version in wanted]
        explanation = explain_ensemble(
            facts, [StepFacts(name, facts_of(part)) for name, part in parts if part is not None]
        )
    execution = model.execution_report()
    names = {"name": model.name, "version": str(model.version)}
    return {**names, **explanation, "execution": execution}


def facts_of(model: ServedModel) -> Facts:
    """The facts from a model's config and counters."""
    config, counted = model.config, model.statistics.snapshot()
    times = counted["inference_stats"]

    def mean_us(name: str) -> float:
        count: int = times[name]["count"]
        return float(times[name]["ns"] / count / _NS_PER_US) if count else 0.0

    batching, sequences = config.dynamic_batching, config.sequence_batching
    delay_us = 0
    preferred: frozenset[int] = frozenset()
    if batching is not None:
        delay_us = batching.max_queue_delay_microseconds
        preferred = frozenset(batching.preferred_batch_size) - {config.max_batch_size}
    elif sequences is not None:
        strategy = sequences.oldest or sequences.direct
        delay_us = 0 if strategy is None else strategy.max_queue_delay_microseconds
    groups = [group for group in config.instance_group if not group.passive]
    return Facts(
        max_batch_size=config.max_batch_size,
        scheduling=_scheduling(model),
        max_delay_us=delay_us,
        preferred_rows=preferred,
        by_shape=shapes.BY_SHAPE in config.parameters,
        instances=sum(group.count * max(1, len(group.gpus)) for group in groups) or 1,
        kind=groups[0].kind if groups else "KIND_CPU",
        cores=model.spec.cores,
        cuts=_cuts(model, preferred),
        rows={row["batch_size"]: row["compute_infer"]["count"] for row in counted["batch_stats"]},
        requests=times["success"]["count"],
        failed=times["fail"]["count"],
        queue_us=mean_us("queue"),
        input_us=mean_us("compute_input"),
        compute_us=mean_us("compute_infer"),
        output_us=mean_us("compute_output"),
    )


def _cuts(model: ServedModel, preferred: frozenset[int]) -> list[tuple[Reason, int]]:
    """Why the last batches were closed. A batch of a size that is not preferred was full."""
    cuts = model.recent_cuts()
    return [
        (Reason.FULL if why is Reason.PREFERRED and rows not in preferred else why, rows)
        for why, rows in cuts
    ]


def _scheduling(model: ServedModel) -> str:
    if model.config.sequence_batching is not None:
        return "sequence"
    return "none" if model.config.dynamic_batching is None else "dynamic"
