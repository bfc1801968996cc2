"""A plan as text and as JSON, with the assumptions that it rests on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shoal.plan.capacity import Capacity, Plan, per_second
from shoal.plan.report import Report

HOURS_PER_MONTH = 730
FEW_REQUESTS = 1000  # the p99 of this number is the tenth highest latency


@dataclass(frozen=True, slots=True)
class Resources:
    """What one replica takes."""

    memory_mb: float | None = None
    gpu_memory_mb: float | None = None
    price_per_hour: float | None = None
    memory_is_measured: bool = False


def lines(plan: Plan, report: Report, resources: Resources) -> list[str]:
    """What `shoal plan` prints."""
    demand, one, unit = plan.demand, plan.capacity, f" {report.unit}"
    peak = f" x {demand.peak_factor:g} at peak" if demand.peak_factor != 1 else ""
    spare = f"{demand.failures:,} spare"
    expected = per_second(plan.peak_rate / plan.serving, unit)
    rows = [
        ("replicas", f"{plan.replicas:,}: {plan.serving:,} for the load, {spare}"),
        ("one replica", f"{per_second(one.rate, unit)} within the target, {_measured(one)}"),
        ("load on each", f"{expected} without the spare ones, p99 at most {plan.p99_ms:.3g} ms"),
    ]
    rows += [
        (name, f"{each * plan.replicas:,.0f} MB: {plan.replicas:,} x {each:,.0f} MB")
        for name, each in (
            ("memory", resources.memory_mb),
            ("GPU memory", resources.gpu_memory_mb),
        )
        if each is not None
    ]
    if resources.price_per_hour is not None:
        hour = plan.replicas * resources.price_per_hour
        rows.append(("cost", f"{hour:,.2f} per hour, {hour * HOURS_PER_MONTH:,.0f} per month"))
    width = max(len(name) for name, _ in rows)
    return [
        f"{demand.rate:,g}{unit}/s{peak}, p99 within {demand.p99_ms:g} ms",
        "",
        *(f"  {name:<{width}}  {value}" for name, value in rows),
        "",
        "Assumptions:",
        *(f"- {sentence}" for sentence in assumptions(plan, report, resources)),
    ]


def document(plan: Plan, report: Report, resources: Resources) -> dict[str, Any]:
    """What `shoal plan --json` prints."""
    price = resources.price_per_hour
    hour = None if price is None else plan.replicas * price
    return {
        "replicas": plan.replicas,
        "serving_replicas": plan.serving,
        "spare_replicas": plan.demand.failures,
        "demand": asdict(plan.demand),
        "unit": f"{report.unit} per second",
        "replica": {
            "capacity": plan.capacity.rate,
            "planned_rate": plan.planned_rate,
            "expected_rate": plan.peak_rate / plan.serving,
            "expected_p99_ms": plan.p99_ms,
            "memory_mb": resources.memory_mb,
            "gpu_memory_mb": resources.gpu_memory_mb,
            "price_per_hour": price,
        },
        "total": {
            "memory_mb": _times(plan.replicas, resources.memory_mb),
            "gpu_memory_mb": _times(plan.replicas, resources.gpu_memory_mb),
            "cost_per_hour": hour,
            "cost_per_month": _times(HOURS_PER_MONTH, hour),
        },
        "levels": [asdict(level) for level in report.levels],
        "assumptions": assumptions(plan, report, resources),
    }


def assumptions(plan: Plan, report: Report, resources: Resources) -> list[str]:
    """What must hold for the plan to be right."""
    demand, one = plan.demand, plan.capacity
    missing = f"{demand.failures:,} replica{'s' * (demand.failures != 1)}"
    found = [
        (
            "The report measured one replica, on the hardware and with the settings that the "
            "others will have, and with requests like the real ones."
        ),
        f"{demand.headroom:.0%} of a replica's capacity stays unused (--headroom).",
        "The load balancer spreads requests evenly.",
        f"{missing} may be missing at a time: failed, or being updated (--failures).",
    ]
    if one.missed is None:
        found.append(
            f"All measured levels meet the target, so that a replica may do more than the "
            f"{per_second(one.rate)} of {one.met.name}; measure higher loads for a smaller plan."
        )
    else:
        found.append(
            f"Between {one.met.name} (p99 {one.met.p99_ms:.3g} ms) and {one.missed.name} (p99 "
            f"{one.missed.p99_ms:.3g} ms), p99 is taken as a straight line over the rate."
        )
    if not report.by_rate:
        found.append(
            "The report is of concurrent requests, which wait for each other. Independent clients "
            "see a higher p99 at the same rate: measure with --request-rate-range and "
            "--request-distribution poisson to be sure."
        )
    few = [level for level in report.levels if (level.requests or FEW_REQUESTS) < FEW_REQUESTS]
    found += [
        f"Only {level.requests:,} requests were measured at {level.name}; the p99 of fewer than "
        f"{FEW_REQUESTS:,} is uncertain."
        for level in few
    ]
    if demand.peak_factor == 1:
        found.append("The rate is the highest one of the day (--peak-factor).")
    if resources.memory_is_measured:
        found.append(
            "Memory is that of the server's own processes at the time of --metrics; processes of "
            "isolated models are not in it."
        )
    if resources.price_per_hour is not None:
        found.append(
            f"The price is that of one replica's machine, and a month has {HOURS_PER_MONTH} hours."
        )
    return found


def _measured(one: Capacity) -> str:
    if one.missed is None:
        return f"as measured at {one.met.name}"
    return f"between {one.met.name} and {one.missed.name}"


def _times(count: int, each: float | None) -> float | None:
    return None if each is None else count * each
