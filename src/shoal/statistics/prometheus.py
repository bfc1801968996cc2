"""The text that Prometheus scrapes, made on demand from copies of the counts.

    ModelStatistics.read(), Machine.read(), Gpus.read() --> MetricsRenderer.render() --> bytes

Metrics that Triton has carry Triton's names and labels (`nv_…`), so that its dashboards work;
what it lacks is ours (`shoal_…`): histograms of latency and batch size, and this process's use of
the machine. There is no pool of pinned memory here, and its two gauges say so: zero bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from shoal.statistics import cache_metrics, task_metrics
from shoal.statistics.cache import CacheReading
from shoal.statistics.custom import CustomMetrics
from shoal.statistics.exposition import Exposition, Number, label_name, labels_text
from shoal.statistics.gpu import GpuReading, Gpus
from shoal.statistics.histogram import HistogramReading
from shoal.statistics.machine import Machine, MachineReading
from shoal.statistics.metrics_settings import MetricsSettings
from shoal.statistics.model import (
    FIRST_RESPONSE_FAMILY,
    ModelHistograms,
    ModelReading,
    ModelStatistics,
    ModelSummaries,
)
from shoal.statistics.sampled import Sampled
from shoal.statistics.summary import SummaryReading

_COUNTS: tuple[tuple[str, str, Callable[[ModelReading], int]], ...] = (
    (
        "nv_inference_count",
        "Inferences done: the rows of all successful requests, without those a cache answered",
        lambda reading: reading.inference_count,
    ),
    (
        "nv_inference_exec_count",
        "Times the model was executed; less than nv_inference_count where batching works",
        lambda reading: reading.execution_count,
    ),
)
_DURATIONS: tuple[tuple[str, str, Callable[[ModelReading], int]], ...] = (
    (
        "nv_inference_request_duration_us",
        "Total time of successful requests from arrival to answer, in microseconds",
        lambda reading: reading.success_ns,
    ),
    (
        "nv_inference_queue_duration_us",
        "Total time successful requests waited for an instance, in microseconds",
        lambda reading: reading.queue_ns,
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Total time spent preparing the model's inputs, in microseconds",
        lambda reading: reading.compute_input_ns,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Total time spent executing the model, in microseconds",
        lambda reading: reading.compute_infer_ns,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Total time spent taking over the model's outputs, in microseconds",
        lambda reading: reading.compute_output_ns,
    ),
)
# The last field divides what was counted into the unit of the name.
_HISTOGRAMS: tuple[tuple[str, str, Callable[[ModelHistograms], HistogramReading], int], ...] = (
    (
        "shoal_request_duration_seconds",
        "Time of successful requests from arrival to answer",
        lambda histograms: histograms.request_duration_ns,
        1_000_000_000,
    ),
    (
        "shoal_queue_duration_seconds",
        "Time successful requests waited for an instance",
        lambda histograms: histograms.queue_duration_ns,
        1_000_000_000,
    ),
    (
        "shoal_compute_duration_seconds",
        "Time of the execution that served each successful request, inputs and outputs included",
        lambda histograms: histograms.compute_duration_ns,
        1_000_000_000,
    ),
    (
        "shoal_batch_size",
        "Rows per execution of the model",
        lambda histograms: histograms.batch_size,
        1,
    ),
)
_REQUEST_SUMMARY = "nv_inference_request_summary_us"
_SUMMARIES: tuple[tuple[str, str, Callable[[ModelSummaries], SummaryReading]], ...] = (
    (
        _REQUEST_SUMMARY,
        "Time of successful requests from arrival to answer, in microseconds",
        lambda summaries: summaries.request_ns,
    ),
    (
        "nv_inference_queue_summary_us",
        "Time successful requests waited for an instance, in microseconds",
        lambda summaries: summaries.queue_ns,
    ),
    (
        "nv_inference_compute_input_summary_us",
        "Time spent preparing the model's inputs, in microseconds",
        lambda summaries: summaries.compute_input_ns,
    ),
    (
        "nv_inference_compute_infer_summary_us",
        "Time spent executing the model, in microseconds",
        lambda summaries: summaries.compute_infer_ns,
    ),
    (
        "nv_inference_compute_output_summary_us",
        "Time spent taking over the model's outputs, in microseconds",
        lambda summaries: summaries.compute_output_ns,
    ),
)
_MACHINE: tuple[tuple[str, str, Callable[[MachineReading], Number | None]], ...] = (
    (
        "nv_cpu_utilization",
        "Busy share of all CPU cores, 0 to 1",
        lambda reading: reading.cpu_utilization,
    ),
    (
        "nv_cpu_memory_total_bytes",
        "The machine's memory, in bytes",
        lambda reading: reading.memory_total_bytes,
    ),
    (
        "nv_cpu_memory_used_bytes",
        "Memory in use on the machine, in bytes",
        lambda reading: reading.memory_used_bytes,
    ),
)
_GPU: tuple[tuple[str, str, str, Callable[[GpuReading], Number | None]], ...] = (
    (
        "nv_gpu_utilization",
        "gauge",
        "Busy share of the GPU, 0 to 1",
        lambda reading: reading.utilization,
    ),
    (
        "nv_gpu_memory_total_bytes",
        "gauge",
        "The GPU's memory, in bytes",
        lambda reading: reading.memory_total_bytes,
    ),
    (
        "nv_gpu_memory_used_bytes",
        "gauge",
        "Memory in use on the GPU, in bytes",
        lambda reading: reading.memory_used_bytes,
    ),
    (
        "nv_gpu_power_usage",
        "gauge",
        "Power the GPU draws, in watts",
        lambda reading: reading.power_usage_watts,
    ),
    (
        "nv_gpu_power_limit",
        "gauge",
        "Power the GPU may draw, in watts",
        lambda reading: reading.power_limit_watts,
    ),
    (
        "nv_energy_consumption",
        "counter",
        "Energy the GPU has used since the server started, in joules",
        lambda reading: reading.energy_joules,
    ),
)


class MetricsRenderer:
    """Renders everything there is to scrape. Any thread may ask."""

    def __init__(
        self,
        models: Callable[[], Iterable[ModelStatistics]],
        settings: MetricsSettings | None = None,
        *,
        machine: Callable[[], MachineReading] | None = None,
        gpus: Callable[[], Sequence[GpuReading]] | None = None,
        custom: CustomMetrics | None = None,
        cache: Callable[[], CacheReading] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`models` gives the statistics of all loaded versions, the newer of two equals last;
        `custom` are the metrics that models bring along, `cache` counts for the response cache.

        Without `gpus` the machine's own GPUs are looked for, which starts NVML and can take a
        while on a machine that has some.
        """
        self._models = models
        self._custom = custom
        self._cache = cache
        self._settings = settings or MetricsSettings()
        interval_ns = self._settings.interval_ms * 1_000_000
        self._machine = Sampled(machine or Machine().read, interval_ns, clock)
        if gpus is None and self._settings.gpu:
            found = Gpus.find()
            gpus = found.read if found else None
        shown = gpus if self._settings.gpu else None
        self._gpus = Sampled(shown, interval_ns, clock) if shown else None

    def render(self) -> bytes:
        """The exposition text, in UTF-8. A family without a sample is left out."""
        text = Exposition()
        self._add_models(text)
        if self._cache is not None:
            cache_metrics.add_cache(text, self._cache())
        _add_pinned_memory(text)
        machine = self._machine.value()
        if self._settings.cpu:
            for name, help_text, pick in _MACHINE:
                text.family(name, "gauge", help_text, [("", pick(machine))])
        _add_process(text, machine)
        if self._gpus is not None:
            readings = [(labels_text({"gpu_uuid": gpu.uuid}), gpu) for gpu in self._gpus.value()]
            for name, kind, help_text, choose in _GPU:
                text.family(name, kind, help_text, [(at, choose(gpu)) for at, gpu in readings])
        if self._custom is not None:
            self._custom.render(text)
        return text.encode()

    def _add_models(self, text: Exposition) -> None:
        # While a version is reloaded, two of its kind may be alive. Prometheus refuses a scrape in
        # which a series occurs twice, so the newer one stands for both.
        by_labels: dict[str, tuple[dict[str, str], ModelStatistics]] = {}
        for model in self._models():
            labels = {"model": model.name, "version": str(model.version)} | {
                label_name(name): value for name, value in model.labels.items()
            }
            by_labels[labels_text(labels)] = (labels, model)
        models = [(labels, at, model) for at, (labels, model) in by_labels.items()]
        readings = [(labels, at, model.read()) for labels, at, model in models]

        text.family(
            "nv_inference_request_success",
            "counter",
            "Requests answered with success",
            [(at, reading.success_count) for _, at, reading in readings],
        )
        text.family(
            "nv_inference_request_failure",
            "counter",
            "Requests answered with an error, by reason",
            [
                (labels_text(labels | {"reason": reason.value}), count)
                for labels, _, reading in readings
                for reason, count in reading.failures.items()
            ],
        )
        for name, help_text, pick in _COUNTS:
            text.family(name, "counter", help_text, [(at, pick(r)) for _, at, r in readings])
        if self._settings.counter_latencies:
            for name, help_text, pick in _DURATIONS:
                samples = [(at, pick(reading) // 1000) for _, at, reading in readings]
                text.family(name, "counter", help_text, samples)
        text.family(
            "nv_inference_pending_request_count",
            "gauge",
            "Requests waiting for an instance",
            [(at, model.pending()) for _, at, model in models],
        )
        text.family(
            "nv_model_load_duration_secs",
            "gauge",
            "Time the model took to load, in seconds",
            [(at, model.load_duration_secs) for _, at, model in models],
        )
        text.family(
            "shoal_model_memory_bytes",
            "gauge",
            "Memory the model holds, in bytes, as measured when it was loaded",
            [(at, model.memory_bytes()) for _, at, model in models],
        )
        text.family(
            "shoal_model_on_loop",
            "gauge",
            "Whether the model is quick enough to run on the event loop: 1, or 0 on threads",
            [(at, int(model.on_loop())) for _, at, model in models],
        )
        padded = [(at, model.padded()) for _, at, model in models if model.padded is not None]
        text.family(
            "shoal_padded_input_elements_total",
            "counter",
            "Elements of padded inputs that the model was given",
            [(at, elements) for at, (elements, _) in padded],
        )
        text.family(
            "shoal_padding_elements_total",
            "counter",
            "Those of them that were padding",
            [(at, filled) for at, (_, filled) in padded],
        )
        for name, help_text, choose, unit in _HISTOGRAMS:
            text.histogram(
                name,
                help_text,
                unit,
                [(labels, choose(r.histograms)) for labels, _, r in readings if r.histograms],
            )
        text.histogram(
            FIRST_RESPONSE_FAMILY,
            "Time from arrival to a request's first response, in milliseconds",
            1_000_000,
            [(labels, r.first_response_ns) for labels, _, r in readings if r.first_response_ns],
        )
        for name, help_text, select in _SUMMARIES:
            text.summary(
                name,
                help_text,
                1000,
                self._settings.summary_quantiles,
                [
                    (labels, select(r.summaries))
                    for labels, _, r in readings
                    # As with Triton: what a cached model's requests take is not summed up.
                    if r.summaries and not (r.cache and name == _REQUEST_SUMMARY)
                ],
            )
        task_metrics.add_tasks(
            text, [(labels, model.task) for labels, _, model in models if model.task is not None]
        )
        cache_metrics.add_models(
            text, [(labels, reading) for labels, _, reading in readings], self._settings
        )


def _add_pinned_memory(text: Exposition) -> None:
    for which in ("total", "used"):
        text.family(
            f"nv_pinned_memory_pool_{which}_bytes",
            "gauge",
            "Pinned memory pool, in bytes; this server keeps none",
            [("", 0)],
        )


def _add_process(text: Exposition, machine: MachineReading) -> None:
    text.family(
        "shoal_process_resident_memory_bytes",
        "gauge",
        "Memory this server's process holds, in bytes",
        [("", machine.process_resident_bytes)],
    )
    text.family(
        "shoal_process_cpu_seconds_total",
        "counter",
        "CPU time this server's process has used, in seconds",
        [("", machine.process_cpu_secs)],
    )
