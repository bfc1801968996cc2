"""Explains the batches of a model: recent batch sizes and times, and the change that would help.

    Facts --> explain --> numbers for programs, sentences for people

Pure functions of a few facts, so that their advice can be tested as a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shoal.scheduler.policy import Reason

_MOST = 0.5  # a reason with this share of the batches is the main one
_NEARLY_FULL = 0.9
_FEW_ROWS = 1.5  # with fewer rows on average, requests were hardly batched
_SHORT_US = 100.0  # a shorter wait does not matter
_ENOUGH = 50  # batches; fewer are the beginning of a load, or single tries, and show no pattern
_OWN_DELAY = 1.5  # a wait for a larger batch may take this many times the configured delay

_NO_REQUESTS = "Send some requests first."


class Advice(NamedTuple):
    """The change that would help most, and its lines of the config, if any."""

    sentence: str
    change: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about one model version. Times are means over its requests so far."""

    max_batch_size: int
    scheduling: str = "none"  # none | dynamic | sequence
    max_delay_us: int = 0
    preferred_rows: frozenset[int] = frozenset()
    by_shape: bool = False  # whether requests of equal shape may overtake others
    instances: int = 1
    kind: str = "KIND_CPU"
    cores: int = 1
    cuts: Sequence[tuple[Reason, int]] = ()  # of the last batches: why each was cut, and its rows
    rows: Mapping[int, int] = field(default_factory=dict)  # executions by rows, since the load
    requests: int = 0
    failed: int = 0
    queue_us: float = 0.0
    input_us: float = 0.0
    compute_us: float = 0.0
    output_us: float = 0.0

    @property
    def spent_us(self) -> float:
        """The total time of a request."""
        return self.queue_us + self.input_us + self.compute_us + self.output_us

    @property
    def mean_rows(self) -> float:
        """Mean rows of the last batches."""
        return sum(rows for _, rows in self.cuts) / len(self.cuts) if self.cuts else 0.0

    @property
    def waits(self) -> bool:
        """Whether requests wait for an instance, not for the configured delay."""
        own = max(self.compute_us, _OWN_DELAY * self.max_delay_us)
        return self.queue_us > max(own, _SHORT_US)

    def share(self, reason: Reason) -> float:
        """The share of the last batches that were cut for a reason."""
        return sum(found is reason for found, _ in self.cuts) / len(self.cuts) if self.cuts else 0.0


class StepFacts(NamedTuple):
    """A model of an ensemble, and its facts."""

    name: str
    facts: Facts


def explain(facts: Facts) -> dict[str, Any]:
    """The explanation as JSON: numbers for programs, sentences for people."""
    reasons = Counter(reason.value for reason, _ in facts.cuts)
    lately = Counter(rows for _, rows in facts.cuts)
    advice = advise(facts)
    return {
        "requests": {"succeeded": facts.requests, "failed": facts.failed},
        "last_batches": {
            "count": len(facts.cuts),
            "mean_rows": round(facts.mean_rows, 2),
            "rows": _counts(lately),
            "cut_because": dict(reasons.most_common()),
        },
        "executions_by_rows": _counts(facts.rows),
        **_times(facts),
        "summary": " ".join(_sentences(facts)),
        "advice": advice.sentence,
        "change": advice.change,
    }


def explain_ensemble(facts: Facts, steps: Sequence[StepFacts]) -> dict[str, Any]:
    """As `explain`, for an ensemble, which has no batches of its own."""
    slowest = max(steps, key=lambda step: step.facts.spent_us, default=None)
    total = sum(step.facts.spent_us for step in steps)
    summary = ["An ensemble has no batches of its own; its models have."]
    advice = Advice(_NO_REQUESTS)
    if slowest is not None and total and facts.requests:
        percent = 100 * slowest.facts.spent_us / total
        summary.append(
            f"Its models take {total:.0f} µs for a request, {percent:.0f} % of it in "
            f"'{slowest.name}'."
        )
        inner = advise(slowest.facts)
        advice = Advice(f"For '{slowest.name}': {inner.sentence}", inner.change)
    return {
        "requests": {"succeeded": facts.requests, "failed": facts.failed},
        "steps": [{"model": step.name, **_times(step.facts)} for step in steps],
        **_times(facts),
        "summary": " ".join(summary),
        "advice": advice.sentence,
        "change": advice.change,
    }


def as_text(explanation: Mapping[str, Any]) -> str:
    """An explanation as text."""
    lines = [f"{explanation['name']}, version {explanation['version']}"]
    lines += [f"  {explanation['summary']}", f"  {explanation['advice']}"]
    if explanation["change"]:
        lines.append(f"    {explanation['change']}")
    return "\n".join(lines) + "\n"


def advise(facts: Facts) -> Advice:
    """The change to the config that would help most, or that none is needed."""
    if not facts.cuts:
        return Advice(_NO_REQUESTS)
    if len(facts.cuts) < _ENOUGH:
        return Advice(
            f"Send more requests first: advice needs {_ENOUGH} batches, and there were "
            f"{len(facts.cuts)}."
        )
    if facts.scheduling == "none":
        return _advise_single(facts)
    found = _advise_shapes(facts) or _advise_delay(facts)
    if found is not None:
        return found
    if facts.waits:
        return _advise_sequences(facts) if facts.scheduling == "sequence" else _advise_full(facts)
    return _advise_calm(facts)


def _advise_single(facts: Facts) -> Advice:
    if not facts.waits:
        return _advise_calm(facts)
    if facts.max_batch_size > 1:
        return Advice(
            "Requests wait while others run alone: batch them.",
            "dynamic_batching { }",
        )
    if _has_room(facts):
        return _more_instances(facts)
    return Advice(
        "Requests wait and the model runs one at a time: give it a batch dimension and a "
        "max_batch_size, if possible."
    )


def _advise_shapes(facts: Facts) -> Advice | None:
    if facts.share(Reason.SHAPE) <= _MOST:
        return None
    if facts.by_shape:
        return Advice(
            "Most batches are closed by a request of another shape, even with batch_by_shape: let "
            "the server pad inputs, if the model supports padding.",
            _parameter("padding", "true"),
        )
    return Advice(
        "Most batches are closed by a request of another shape: batch requests of equal shape.",
        _parameter("batch_by_shape", "true"),
    )


def _advise_delay(facts: Facts) -> Advice | None:
    if not facts.max_delay_us or facts.waits or facts.mean_rows >= _FEW_ROWS:
        return None
    if facts.share(Reason.DELAY) <= _MOST:
        return None
    where = "dynamic_batching"
    if facts.scheduling == "sequence":
        where = "sequence_batching"
    return Advice(
        f"Requests wait up to {facts.max_delay_us} µs for others, without success: lower "
        f"max_queue_delay_microseconds in {where}.",
        f"max_queue_delay_microseconds: {facts.max_delay_us // 10}",
    )


def _advise_full(facts: Facts) -> Advice:
    largest = max(facts.preferred_rows, default=facts.max_batch_size)
    full = facts.mean_rows >= _NEARLY_FULL * facts.max_batch_size
    if full or facts.share(Reason.FULL) > _MOST:
        return Advice(
            f"Batches are as large as max_batch_size ({facts.max_batch_size}) allows, and requests "
            "still wait: raise it, if the model and memory allow.",
            f"max_batch_size: {2 * facts.max_batch_size}",
        )
    if facts.share(Reason.PREFERRED) > _MOST and largest < facts.max_batch_size:
        return Advice(
            f"Batches have the preferred {largest} rows while more requests wait: prefer the "
            "largest size.",
            f"preferred_batch_size: [ {facts.max_batch_size} ]",
        )
    if _has_room(facts):
        return _more_instances(facts)
    return Advice("Requests wait because the machine is busy: use a larger one, or several.")


def _advise_sequences(facts: Facts) -> Advice:
    return Advice(
        "Requests wait behind other sequences: give the model more slots (a larger max_batch_size, "
        "or max_candidate_sequences with the oldest strategy), or more instances.",
        _instances(facts),
    )


def _advise_calm(facts: Facts) -> Advice:
    if facts.input_us + facts.output_us > max(facts.compute_us, _SHORT_US):
        return Advice(
            "Moving tensors takes more time than computing: request only the outputs that you "
            "need, and send smaller data types or batches."
        )
    return Advice("Requests hardly wait; no change is needed.")


def _has_room(facts: Facts) -> bool:
    """Whether there is a core or GPU for another instance."""
    return facts.instances < (facts.cores if facts.kind == "KIND_CPU" else 2)


def _more_instances(facts: Facts) -> Advice:
    have = f"{facts.instances} instance{'s' if facts.instances > 1 else ''}"
    room = f" on {facts.cores} cores" if facts.kind == "KIND_CPU" else ""
    return Advice(f"Requests wait for {have}{room}: add another one.", _instances(facts))


def _instances(facts: Facts) -> str:
    return f"instance_group [ {{ count: {facts.instances + 1} kind: {facts.kind} }} ]"


def _parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'


def _sentences(facts: Facts) -> list[str]:
    if not facts.cuts:
        return ["No batch has been executed yet."]
    count = len(facts.cuts)
    most = max(1, facts.max_batch_size)
    found = [
        f"The last {count} batches had {facts.mean_rows:.1f} rows on average, of at most {most}."
        if count > 1
        else f"The only batch had {facts.cuts[0][1]} of at most {most} rows."
    ]
    reasons = Counter(reason.value for reason, _ in facts.cuts)
    shares = [f"{_of(many, count)} because {reason}" for reason, many in reasons.most_common(3)]
    found.append(f"They were closed: {', '.join(shares)}.")
    if facts.spent_us:
        found.append(
            f"A request takes {facts.spent_us:.0f} µs: {_percent(facts, facts.queue_us)} in the "
            f"queue, {_percent(facts, facts.input_us)} for its inputs, "
            f"{_percent(facts, facts.compute_us)} computing, "
            f"{_percent(facts, facts.output_us)} for its outputs."
        )
    return found


def _of(many: int, count: int) -> str:
    return "all" if many == count else str(many)


def _percent(facts: Facts, us: float) -> str:
    return f"{100 * us / facts.spent_us:.0f} %"


def _counts(rows: Mapping[int, int]) -> dict[str, int]:
    return {str(size): count for size, count in sorted(rows.items())}


def _times(facts: Facts) -> dict[str, Any]:
    parts = {
        "queue": facts.queue_us,
        "compute_input": facts.input_us,
        "compute_infer": facts.compute_us,
        "compute_output": facts.output_us,
    }
    total = facts.spent_us
    return {
        "mean_us": {name: round(us, 1) for name, us in parts.items()},
        "percent": {
            name: round(100 * us / total, 1) if total else 0.0 for name, us in parts.items()
        },
    }
