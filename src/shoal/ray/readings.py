"""How busy a replica is, from its metrics: what the autoscaling policy decides by.

    text of /metrics --parse--> Sample      two Samples --reading--> Reading

Capacity is what runs out first: the instances of one model, or the CPUs of the replica.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_LINE = re.compile(
    r"^(nv_inference_compute_(?:input|infer|output)_duration_us|nv_inference_exec_count"
    r"|nv_inference_request_success|nv_inference_pending_request_count|shoal_model_instances"
    r"|shoal_time_to_drain_seconds|process_cpu_seconds_total)(?:\{([^}]*)\})? (\S+)",
    re.MULTILINE,
)


class Reading(NamedTuple):
    """A replica in the time between two samples."""

    utilisation: float  # of its capacity, 0 to 1
    queue_secs: float  # in which it finishes what waits, if nothing else arrives
    pending: float  # requests that wait
    rate: float  # of requests that were answered, per second

    def as_metrics(self) -> dict[str, float]:
        """For `record_autoscaling_stats`."""
        return dict(self._asdict())


IDLE = Reading(0.0, 0.0, 0.0, 0.0)


@dataclass
class ModelSample:
    """The counters of one version of a model."""

    compute_us: float = 0.0  # summed over requests, so a batch counts once for each of them
    executions: float = 0.0
    requests: float = 0.0
    instances: float = 0.0
    pending: float = 0.0
    drain_secs: float = 0.0


@dataclass
class Sample:
    """The counters of a server at one moment."""

    at_secs: float
    models: dict[str, ModelSample] = field(default_factory=dict)  # by all labels
    cpu_secs: float = 0.0


def parse(text: str, at_secs: float) -> Sample:
    """The counters in the text of /metrics; others are left out."""
    sample = Sample(at_secs)
    for name, labels, value in _LINE.findall(text):
        number = float(value)
        if name == "process_cpu_seconds_total":
            sample.cpu_secs += number
            continue
        model = sample.models.setdefault(labels, ModelSample())
        if name.startswith("nv_inference_compute"):
            model.compute_us += number
        elif name == "nv_inference_exec_count":
            model.executions = number
        elif name == "nv_inference_request_success":
            model.requests = number
        elif name == "nv_inference_pending_request_count":
            model.pending = number
        elif name == "shoal_model_instances":
            model.instances = number
        else:
            model.drain_secs = number
    return sample


def reading(before: Sample, now: Sample, cpus: float) -> Reading:
    """What happened between two samples, of a replica that may use `cpus` CPUs."""
    secs = now.at_secs - before.at_secs
    if secs <= 0:
        return IDLE
    busiest = requests = 0.0
    for labels, model in now.models.items():
        earlier = before.models.get(labels, ModelSample())
        if earlier.requests > model.requests:  # loaded again since
            earlier = ModelSample()
        answered = model.requests - earlier.requests
        requests += answered
        if answered > 0 and model.instances:
            executions = model.executions - earlier.executions
            # Requests of one batch share one execution.
            busy_secs = (model.compute_us - earlier.compute_us) / 1e6 * executions / answered
            busiest = max(busiest, busy_secs / model.instances / secs)
    if cpus:
        busiest = max(busiest, (now.cpu_secs - before.cpu_secs) / cpus / secs)
    return Reading(
        utilisation=min(1.0, max(0.0, busiest)),
        queue_secs=_largest(now.models, "drain_secs"),
        pending=sum(model.pending for model in now.models.values()),
        rate=requests / secs,
    )


def _largest(models: Mapping[str, ModelSample], name: str) -> float:
    return max((getattr(model, name) for model in models.values()), default=0.0)
