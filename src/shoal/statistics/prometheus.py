"""The text that Prometheus scrapes, made on demand from copies of the counts.

ModelStatistics.read(), Machine.read(), Gpus.read() … --> MetricsRenderer.render() --> bytes
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from shoal.core.pauses import Pauses
from shoal.statistics import metrics
from shoal.statistics.cache import CacheReading
from shoal.statistics.custom import CustomMetrics
from shoal.statistics.exposition import Exposition, label_name, labels_text
from shoal.statistics.gpu import GpuReading, Gpus
from shoal.statistics.keys import KeyCounts
from shoal.statistics.machine import Machine, MachineReading
from shoal.statistics.metrics import ModelSource, ServerMetric, Source
from shoal.statistics.metrics_settings import MetricsSettings
from shoal.statistics.model import ModelStatistics
from shoal.statistics.process import (
    ProcessReading,
    ServerProcess,
    ServerProcesses,
    build_labels,
)
from shoal.statistics.recent_errors import RecentErrors, recent_errors
from shoal.statistics.sampled import Sampled
from shoal.statistics.server import ServerReading


class MetricsRenderer:
    """Renders everything there is to scrape. Any thread may call it; it takes 0.2 ms a model."""

    def __init__(
        self,
        models: Callable[[], Iterable[ModelStatistics]],
        settings: MetricsSettings | None = None,
        *,
        machine: Callable[[], MachineReading] | None = None,
        gpus: Callable[[], Sequence[GpuReading]] | None = None,
        custom: CustomMetrics | None = None,
        cache: Callable[[], CacheReading] | None = None,
        keys: Callable[[], Sequence[KeyCounts]] | None = None,
        server: Callable[[], ServerReading] | None = None,
        process: Callable[[], ProcessReading] | None = None,
        processes: ServerProcesses | None = None,
        errors: RecentErrors = recent_errors,
        repositories: Callable[[], Mapping[str, Sequence[object]]] | None = None,
        loading: Callable[[], Iterable[tuple[Mapping[str, str], int]]] = lambda: (),
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`models` returns the statistics of all loaded versions, the newer of two equals last;
        `custom` are metrics that models define, `cache` reads the response cache's counts, `keys`
        those of clients' keys, `server` what the server reports about itself, `repositories` why
        each one cannot be read, `loading` how many requests wait for models to be loaded, after
        the labels of these. `processes` are those of a server that has several.

        Without `gpus`, the machine's own GPUs are used, which starts NVML and can take a while.
        """
        self._models = models
        self._custom = custom
        self._cache = cache
        self._keys = keys
        self._server = server
        self._errors = errors
        self._build = labels_text(build_labels())
        self._repositories = repositories
        self._loading = loading
        self._settings = settings or MetricsSettings()
        interval_ns = self._settings.interval_ms * 1_000_000
        self._machine = Sampled(machine or Machine().read, interval_ns, clock)
        self._process = Sampled(process or ServerProcess().read, interval_ns, clock)
        self._processes = processes
        self._each_process = Sampled(processes.read, interval_ns, clock) if processes else None
        if gpus is None and self._settings.gpu:
            found = Gpus.find()
            gpus = found.read if found else None
        shown = gpus if self._settings.gpu else None
        self._gpus = Sampled(shown, interval_ns, clock) if shown else None

    def render(self) -> bytes:
        """The exposition text, in UTF-8. A family without a sample is left out."""
        pause = Pauses()
        text = Exposition(pause)
        self._add_models(text, pause)
        if self._cache is not None:
            _add_cache(text, self._cache())
        if self._keys is not None:
            _add_keys(text, self._keys())
        if self._server is not None:
            _add_server(text, self._server())
        text.family(
            "shoal_error_responses_total",
            metrics.COUNTER,
            "Errors sent to clients, by protocol and status",
            [
                (labels_text({"protocol": protocol.lower(), "status": status}), count)
                for (protocol, status), count in sorted(self._errors.counts().items())
            ],
        )
        text.family(
            "shoal_build_info",
            metrics.GAUGE,
            "Always 1; the labels are the server's version and what it runs on",
            [(self._build, 1)],
        )
        process, machine = self._process.value(), self._machine.value()
        if self._processes is not None and self._each_process is not None:
            each = self._each_process.value()
            process = self._processes.total(each)
            machine = replace(
                machine,
                process_resident_bytes=process.resident_bytes,
                process_cpu_secs=process.cpu_secs,
            )
            rows = [(labels_text({"process": name}), reading) for name, reading in each.items()]
            _add(text, metrics.PROCESSES, rows)
        _add(text, metrics.PROCESS, [("", process)])
        if self._repositories is not None:
            found = self._repositories().items()
            paths = [(labels_text({"repository": path}), problems) for path, problems in found]
            _add(text, metrics.REPOSITORY, paths)
        if self._settings.cpu:
            _add(text, metrics.MACHINE, [("", machine)])
        _add(text, metrics.ALWAYS, [("", machine)])
        if self._gpus is not None:
            gpus = [(labels_text({"gpu_uuid": gpu.uuid}), gpu) for gpu in self._gpus.value()]
            _add(text, metrics.GPU, gpus)
        if self._custom is not None:
            self._custom.render(text)
        return text.encode()

    def _add_models(self, text: Exposition, pause: Callable[[], None]) -> None:
        models = self._labelled_models(pause)
        readings = [(model.labels, model.source.reading) for model in models]
        shown = [
            metric
            for metric in metrics.MODEL
            if self._settings.counter_latencies or not metric.is_latency
        ]
        _add(text, shown, [(model.text, model.source) for model in models])
        text.family(
            "nv_inference_request_failure",
            metrics.COUNTER,
            "Failed requests, by reason",
            [
                (labels_text({**labels, "reason": reason.value}), count)
                for labels, reading in readings
                for reason, count in reading.failures.items()
            ],
        )
        pending = {model.text: model.source.statistics.pending() for model in models}
        for labels, count in self._loading():
            waiting = labels_text(labels)
            pending[waiting] = pending.get(waiting, 0) + count
        text.family(
            "nv_inference_pending_request_count",
            metrics.GAUGE,
            "Requests waiting for an instance, or for the model to be loaded",
            pending.items(),
        )
        for histogram in metrics.HISTOGRAMS:
            found = [(labels, histogram.reading(reading)) for labels, reading in readings]
            text.histogram(
                histogram.name,
                histogram.help_text,
                histogram.unit,
                [(labels, reading) for labels, reading in found if reading],
            )
        for summary in metrics.SUMMARIES:
            text.summary(
                summary.name,
                summary.help_text,
                1000,
                self._settings.summary_quantiles,
                [
                    (labels, summary.reading(reading.summaries))
                    for labels, reading in readings
                    if reading.summaries and summary.cached in (None, reading.cache is not None)
                ],
            )
        _add_tasks(text, models)

    def _labelled_models(self, pause: Callable[[], None]) -> list[_LabelledModel]:
        """All models by their labels.

        While a version is reloaded, two with equal labels may be alive. Prometheus refuses a scrape
        in which a series occurs twice, so the newer one stands for both.
        """
        by_labels: dict[str, tuple[dict[str, str], ModelStatistics]] = {}
        for model in self._models():
            pause()
            labels = {"model": model.name, "version": str(model.version)} | {
                label_name(name): value for name, value in model.labels.items()
            }
            by_labels[labels_text(labels)] = (labels, model)
        found = []
        for text, (labels, model) in by_labels.items():
            pause()
            found.append(_LabelledModel(labels, ModelSource(model, model.read()), text))
        return found


class _LabelledModel(NamedTuple):
    labels: Mapping[str, str]
    source: ModelSource
    text: str  # of the labels


def _add(
    text: Exposition,
    families: Iterable[ServerMetric[Source]],
    sources: Sequence[tuple[str, Source]],
) -> None:
    """Add families with a sample for each source, after its labels."""
    for metric in families:
        samples = [(labels, metric.value(source)) for labels, source in sources]
        text.family(metric.name, metric.kind, metric.help_text, samples)


def _add_server(text: Exposition, reading: ServerReading) -> None:
    _add(text, metrics.SERVER, [("", reading)])
    text.family(
        "shoal_connections",
        metrics.GAUGE,
        "Open connections of clients, by protocol",
        [
            (labels_text({"protocol": protocol}), count)
            for protocol, count in reading.connections.items()
        ],
    )
    text.family(
        "shoal_server_process_connections",
        metrics.GAUGE,
        "Open connections of clients, by front-end process",
        [
            (labels_text({"process": process}), count)
            for process, count in reading.by_process.items()
        ],
    )


def _add_tasks(text: Exposition, models: Sequence[_LabelledModel]) -> None:
    tasks = [
        (labels_text({**labels, "task": source.statistics.task.task}), source.statistics.task)
        for labels, source, _ in models
        if source.statistics.task is not None
    ]
    counts = [(labels, task.snapshot()) for labels, task in tasks]
    for kind, of_count, of_time in metrics.TASK:
        field = "fail" if kind == "failure" else kind
        name = f"shoal_task_{kind}"
        numbers = [(labels, each[field]["count"]) for labels, each in counts]
        secs = [(labels, each[field]["ns"] / 1e9) for labels, each in counts]
        text.family(f"{name}_total", metrics.COUNTER, of_count, numbers)
        text.family(f"{name}_seconds_total", metrics.COUNTER, of_time, secs)


def _add_cache(text: Exposition, reading: CacheReading) -> None:
    _add(text, metrics.CACHE, [("", reading)])
    text.family(
        "shoal_cache_not_done",
        metrics.COUNTER,
        "Lookups and insertions that the response cache did not do, by reason",
        [
            (labels_text({"reason": reason}), count(reading))
            for reason, count in metrics.CACHE_NOT_DONE
        ],
    )


def _add_keys(text: Exposition, keys: Sequence[KeyCounts]) -> None:
    named = [(labels_text({"key": key.name}), key) for key in keys if key.name]
    _add(text, metrics.KEYS, named)
    text.family(
        "shoal_key_refused_total",
        metrics.COUNTER,
        "Refused requests by key and reason; without a valid key, the name is empty",
        [
            (labels_text({"key": key.name, "reason": reason}), count)
            for key in keys
            for reason, count in list(key.refused.items())
        ],
    )
