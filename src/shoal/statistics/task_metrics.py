"""The tasks' part of what Prometheus scrapes: calls, and the work before and after the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.statistics.exposition import Exposition, labels_text
from shoal.statistics.task import TaskStatistics

# By what is counted: the family of its number, that of its time, and both in words.
_FAMILIES = (
    (
        "success",
        ("shoal_task_success_total", "Calls of the model's task that were answered"),
        ("shoal_task_success_seconds_total", "Total time of those calls, model included"),
    ),
    (
        "fail",
        ("shoal_task_failure_total", "Calls of the model's task that ended with an error"),
        ("shoal_task_failure_seconds_total", "Total time of those calls"),
    ),
    (
        "preprocess",
        ("shoal_task_preprocess_total", "Photos, texts and so on made ready for the model"),
        ("shoal_task_preprocess_seconds_total", "Total time that took, on threads of its own"),
    ),
    (
        "postprocess",
        ("shoal_task_postprocess_total", "Answers of the model made into what people get"),
        ("shoal_task_postprocess_seconds_total", "Total time that took, on threads of its own"),
    ),
)


def add_tasks(text: Exposition, tasks: Sequence[tuple[Mapping[str, str], TaskStatistics]]) -> None:
    """Add the counts of each model's task; the labels are the model's."""
    shown = [
        (labels_text({**labels, "task": task.task}), task.snapshot()) for labels, task in tasks
    ]
    for kind, (count, of_count), (secs, of_secs) in _FAMILIES:
        text.family(count, "counter", of_count, [(at, each[kind]["count"]) for at, each in shown])
        text.family(secs, "counter", of_secs, [(at, each[kind]["ns"] / 1e9) for at, each in shown])
