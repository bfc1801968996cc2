"""Why batches are as they are, in words: what was seen lately, and the one change that would help.

A pure function of a few facts, so that its advice can be tested as a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_MOST = 0.5  # a reason behind this share of the batches is the reason
_WAITS = 1.0  # queue time beyond this many times the compute time is a queue


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about one model version."""

    max_batch_size: int
    batching: bool  # whether the config has dynamic_batching
    max_delay_us: int
    instances: int
    cores: int
    cuts: Sequence[tuple[str, int]]  # of the last batches: why each was cut, and its rows
    requests: int
    queue_us: float  # means over all requests
    input_us: float
    compute_us: float
    output_us: float
    variable_shapes: bool


def explain(facts: Facts) -> dict[str, Any]:
    """The explanation as JSON: numbers for programs, sentences for people."""
    reasons = Counter(reason for reason, _ in facts.cuts)
    rows = Counter(rows for _, rows in facts.cuts)
    return {
        "requests": facts.requests,
        "batches": {
            "last": len(facts.cuts),
            "mean_rows": round(_mean_rows(facts), 2),
            "rows": {str(size): count for size, count in sorted(rows.items())},
            "cut_because": dict(reasons.most_common()),
        },
        "mean_us": {
            "queue": round(facts.queue_us, 1),
            "compute_input": round(facts.input_us, 1),
            "compute_infer": round(facts.compute_us, 1),
            "compute_output": round(facts.output_us, 1),
        },
        "summary": _summary(facts, reasons),
        "advice": advise(facts),
    }


def _mean_rows(facts: Facts) -> float:
    return sum(rows for _, rows in facts.cuts) / len(facts.cuts) if facts.cuts else 0.0


def _share(facts: Facts, reason: str) -> float:
    if not facts.cuts:
        return 0.0
    return sum(found == reason for found, _ in facts.cuts) / len(facts.cuts)


def _summary(facts: Facts, reasons: Counter[str]) -> str:
    if not facts.cuts:
        return "No batch has been executed yet."
    sentences = [
        f"The last {len(facts.cuts)} batches had {_mean_rows(facts):.1f} rows on average, "
        f"of at most {max(1, facts.max_batch_size)}."
    ]
    for reason, count in reasons.most_common(2):
        sentences.append(f"{count} left because {reason}.")
    total = facts.queue_us + facts.input_us + facts.compute_us + facts.output_us
    if total:
        share = 100 * facts.queue_us / total
        sentences.append(
            f"A request spends {share:.0f} % of its {total:.0f} µs waiting in the queue."
        )
    return " ".join(sentences)


def advise(facts: Facts) -> str:
    """The one change to the config that would help most, or that none would."""
    if not facts.cuts:
        return "Send some requests first; then there is something to say."
    waits = facts.queue_us > _WAITS * facts.compute_us
    full = _mean_rows(facts) >= 0.9 * max(1, facts.max_batch_size)
    if facts.max_batch_size > 1 and not facts.batching:
        if waits:
            return (
                "Requests wait while others run alone: write dynamic_batching { } so that one "
                "execution serves many."
            )
        return "Requests run one by one and do not wait; nothing needs to change."
    if _share(facts, "the next request has other shapes or inputs") > _MOST:
        return (
            "Most batches end because the next request has another shape: send equal shapes, or "
            "pad them on the client."
        )
    if facts.max_delay_us and _mean_rows(facts) < 1.5 and not waits:
        return (
            f"Requests wait up to {facts.max_delay_us} µs for company that does not come: lower "
            f"max_queue_delay_microseconds."
        )
    if waits and full and facts.max_batch_size > 1:
        return (
            f"Batches are full and requests still wait: raise max_batch_size above "
            f"{facts.max_batch_size}, if the model and its memory allow it."
        )
    if waits and facts.max_batch_size <= 1:
        return (
            "Requests wait and the model takes one row at a time: give it a batch dimension and "
            "a max_batch_size, or more instances."
        )
    if waits and facts.instances < facts.cores:
        return (
            f"Requests wait while {facts.instances} of {facts.cores} cores have an instance: "
            f"raise the count of the instance_group."
        )
    if waits:
        return "Requests wait because the machine is busy: use a larger one, or several."
    return "Requests hardly wait; nothing needs to change."
