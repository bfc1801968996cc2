"""Every metric of the server: its name, kind, help text, and where its value comes from.

To add one, add an entry to the table of its source; `shoal.statistics.prometheus` renders all of
them. Metrics that Triton has carry Triton's names and labels (`nv_…`), so that its dashboards work;
others are ours (`shoal_…`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from shoal.statistics.cache import CacheCounts, CacheReading
from shoal.statistics.exposition import Number
from shoal.statistics.gpu import GpuReading
from shoal.statistics.histogram import HistogramReading
from shoal.statistics.keys import KeyCounts
from shoal.statistics.machine import MachineReading
from shoal.statistics.model import (
    FIRST_RESPONSE_FAMILY,
    InstanceHealth,
    ModelHistograms,
    ModelReading,
    ModelStatistics,
    ModelSummaries,
)
from shoal.statistics.process import ProcessReading
from shoal.statistics.server import ServerReading
from shoal.statistics.summary import SummaryReading

COUNTER, GAUGE = "counter", "gauge"
_S = 1_000_000_000

Source = TypeVar("Source")


@dataclass(frozen=True, slots=True)
class ServerMetric(Generic[Source]):
    """A family with one value for each source; None is no sample."""

    name: str
    kind: str
    help_text: str
    value: Callable[[Source], Number | None]
    is_latency: bool = False  # left out with --metrics-config=counter_latencies=false


class HistogramMetric(NamedTuple):
    """A histogram for each model."""

    name: str
    help_text: str
    unit: int  # what the readings are divided by
    reading: Callable[[ModelReading], HistogramReading | None]


class SummaryMetric(NamedTuple):
    """A summary in microseconds for each model."""

    name: str
    help_text: str
    reading: Callable[[ModelSummaries[SummaryReading]], SummaryReading]
    cached: bool | None = None  # only for models whose responses are cached, or only for others


class ModelSource(NamedTuple):
    """One loaded version of a model."""

    statistics: ModelStatistics
    reading: ModelReading


def _read(pick: Callable[[ModelReading], Number]) -> Callable[[ModelSource], Number]:
    return lambda model: pick(model.reading)


def _us(pick: Callable[[ModelReading], int]) -> Callable[[ModelSource], Number]:
    return lambda model: pick(model.reading) // 1000


def _histogram(
    pick: Callable[[ModelHistograms[HistogramReading]], HistogramReading],
) -> Callable[[ModelReading], HistogramReading | None]:
    return lambda reading: pick(reading.histograms) if reading.histograms else None


def _cache(pick: Callable[[CacheCounts], Number]) -> Callable[[ModelSource], Number | None]:
    return lambda model: None if model.reading.cache is None else pick(model.reading.cache)


def _padded(index: int) -> Callable[[ModelSource], Number | None]:
    return lambda model: model.statistics.padded()[index] if model.statistics.padded else None


def _admission(index: int, unit: float = 1) -> Callable[[ModelSource], Number | None]:
    def value(model: ModelSource) -> Number | None:
        reading = model.statistics.admission()
        return None if reading is None else reading[index] * unit

    return value


def _seconds(pick: Callable[[ModelSource], float | None]) -> Callable[[ModelSource], Number | None]:
    def value(model: ModelSource) -> Number | None:
        found_ns = pick(model)
        return None if found_ns is None else found_ns / _S

    return value


def _health(pick: Callable[[InstanceHealth], Number]) -> Callable[[ModelSource], Number | None]:
    return lambda model: pick(model.statistics.health()) if model.statistics.health else None


# One entry for each metric, kept compact.
# fmt: off
MODEL: tuple[ServerMetric[ModelSource], ...] = (
    ServerMetric("nv_inference_request_success", COUNTER, "Successful requests",
                 _read(lambda r: r.success_count)),
    ServerMetric("nv_inference_count", COUNTER,
                 "Inferences: the rows of all successful requests, without cache hits",
                 _read(lambda r: r.inference_count)),
    ServerMetric("nv_inference_exec_count", COUNTER,
                 "Executions of the model; fewer than nv_inference_count if requests are batched",
                 _read(lambda r: r.execution_count)),
    ServerMetric("nv_inference_request_duration_us", COUNTER,
                 "Total time of successful requests from arrival to response, in microseconds",
                 _us(lambda r: r.success_ns), is_latency=True),
    ServerMetric("nv_inference_queue_duration_us", COUNTER,
                 "Total time successful requests waited for an instance, in microseconds",
                 _us(lambda r: r.queue_ns), is_latency=True),
    ServerMetric("nv_inference_compute_input_duration_us", COUNTER,
                 "Total time spent preparing the model's inputs, in microseconds",
                 _us(lambda r: r.compute_input_ns), is_latency=True),
    ServerMetric("nv_inference_compute_infer_duration_us", COUNTER,
                 "Total time spent executing the model, in microseconds",
                 _us(lambda r: r.compute_infer_ns), is_latency=True),
    ServerMetric("nv_inference_compute_output_duration_us", COUNTER,
                 "Total time spent collecting the model's outputs, in microseconds",
                 _us(lambda r: r.compute_output_ns), is_latency=True),
    ServerMetric("shoal_time_to_drain_seconds", GAUGE,
                 "Expected time until what waits and runs now is finished, in seconds",
                 _seconds(lambda model: model.statistics.time_to_drain_ns())),
    ServerMetric("shoal_admission_refused_total", COUNTER,
                 "Requests refused because they could not be answered within the target latency",
                 _admission(0)),
    ServerMetric("shoal_admission_expected_seconds", GAUGE,
                 "Expected latency of a request that arrives now, in seconds",
                 _admission(1, 1e-9)),
    ServerMetric("nv_model_load_duration_secs", GAUGE, "Load time of the model, in seconds",
                 lambda model: model.statistics.load_duration_secs),
    ServerMetric("shoal_model_memory_bytes", GAUGE,
                 "Memory of the model, in bytes, as measured when it was loaded",
                 lambda model: model.statistics.memory_bytes()),
    ServerMetric("shoal_model_gpu_memory_bytes", GAUGE,
                 "Memory of the model on GPUs, in bytes, where its library knows it",
                 lambda model: sum(model.statistics.gpu_memory().values()) or None),
    ServerMetric("shoal_model_on_loop", GAUGE,
                 "1 while the model runs on the event loop, 0 while it runs on threads",
                 lambda model: int(model.statistics.on_loop())),
    ServerMetric("shoal_model_instances", GAUGE, "Instances of the model",
                 lambda model: model.statistics.instances()),
    ServerMetric("shoal_process_restarts_total", COUNTER,
                 "Restarts of processes in which instances of the model run",
                 lambda model: model.statistics.process_restarts()),
    ServerMetric("shoal_execution_timeouts_total", COUNTER,
                 "Executions that took longer than execution_timeout_ms",
                 _health(lambda health: health.timeouts)),
    ServerMetric("shoal_abandoned_threads", GAUGE,
                 "Threads of such executions that have not returned",
                 _health(lambda health: health.abandoned_threads)),
    ServerMetric("shoal_unhealthy_instances", GAUGE,
                 "Instances that take no requests, because an execution has not returned",
                 _health(lambda health: health.unhealthy_instances)),
    ServerMetric("shoal_padded_input_elements_total", COUNTER,
                 "Elements of padded inputs, as passed to the model", _padded(0)),
    ServerMetric("shoal_padding_elements_total", COUNTER,
                 "Those of them that were padding", _padded(1)),
    ServerMetric("nv_cache_num_hits_per_model", COUNTER,
                 "Requests answered from the response cache",
                 _cache(lambda cache: cache.hit_count)),
    ServerMetric("nv_cache_num_misses_per_model", COUNTER,
                 "Requests of models with a response cache that the model answered",
                 _cache(lambda cache: cache.miss_count)),
    ServerMetric("nv_cache_hit_duration_per_model", COUNTER,
                 "Total time of lookups that found a response, in microseconds",
                 _cache(lambda cache: cache.hit_ns // 1000), is_latency=True),
    ServerMetric("nv_cache_miss_duration_per_model", COUNTER,
                 "Total time of lookups without success and of storing responses, in microseconds",
                 _cache(lambda cache: cache.miss_ns // 1000), is_latency=True),
)

HISTOGRAMS: tuple[HistogramMetric, ...] = (
    HistogramMetric("shoal_request_duration_seconds",
                    "Time of successful requests from arrival to response", _S,
                    _histogram(lambda h: h.request_duration_ns)),
    HistogramMetric("shoal_queue_duration_seconds",
                    "Time successful requests waited for an instance", _S,
                    _histogram(lambda h: h.queue_duration_ns)),
    HistogramMetric("shoal_compute_duration_seconds",
                    "Duration of the execution of each successful request, with inputs and outputs",
                    _S, _histogram(lambda h: h.compute_duration_ns)),
    HistogramMetric("shoal_batch_size", "Rows per execution of the model", 1,
                    _histogram(lambda h: h.batch_size)),
    HistogramMetric(FIRST_RESPONSE_FAMILY,
                    "Time from arrival to a request's first response, in milliseconds", 1,
                    lambda r: r.first_response_ms),
)

SUMMARIES: tuple[SummaryMetric, ...] = (
    SummaryMetric("nv_inference_request_summary_us",
                  "Time of successful requests from arrival to response, in microseconds",
                  lambda s: s.request_ns, cached=False),  # as in Triton
    SummaryMetric("nv_inference_queue_summary_us",
                  "Time successful requests waited for an instance, in microseconds",
                  lambda s: s.queue_ns),
    SummaryMetric("nv_inference_compute_input_summary_us",
                  "Time spent preparing the model's inputs, in microseconds",
                  lambda s: s.compute_input_ns),
    SummaryMetric("nv_inference_compute_infer_summary_us",
                  "Time spent executing the model, in microseconds", lambda s: s.compute_infer_ns),
    SummaryMetric("nv_inference_compute_output_summary_us",
                  "Time spent collecting the model's outputs, in microseconds",
                  lambda s: s.compute_output_ns),
    SummaryMetric("nv_cache_hit_summary_per_model",
                  "Time of a lookup that found a response, in microseconds",
                  lambda s: s.cache_hit_ns, cached=True),
    SummaryMetric("nv_cache_miss_summary_per_model",
                  "Time of a lookup without success and of storing the response, in microseconds",
                  lambda s: s.cache_miss_ns, cached=True),
)

# Of a model's task, by what is counted: its number and its time.
TASK: tuple[tuple[str, str, str], ...] = (
    ("success", "Successful calls of the model's task",
     "Total time of those calls, with the model"),
    ("failure", "Failed calls of the model's task", "Total time of those calls"),
    ("preprocess", "Inputs (photos, texts …) that the task converted for the model",
     "Total time of that, on threads of its own"),
    ("postprocess", "Outputs of the model that the task converted for clients",
     "Total time of that, on threads of its own"),
)

# Of the response cache as a whole; None where the cache does not know it.
CACHE: tuple[ServerMetric[CacheReading], ...] = (
    ServerMetric("nv_cache_num_entries", GAUGE,
                 "Responses in the response cache", lambda r: r.entries),
    ServerMetric("nv_cache_num_lookups", COUNTER,
                 "Lookups in the response cache", lambda r: r.lookups),
    ServerMetric("nv_cache_num_hits", COUNTER, "Lookups that found a response", lambda r: r.hits),
    ServerMetric("nv_cache_num_misses", COUNTER, "Lookups without success", lambda r: r.misses),
    ServerMetric("nv_cache_num_evictions", COUNTER, "Responses evicted from the response cache",
                 lambda r: r.evictions),
    ServerMetric("nv_cache_lookup_duration", COUNTER, "Total time of lookups, in microseconds",
                 lambda r: r.lookup_ns // 1000),
    ServerMetric("nv_cache_insertion_duration", COUNTER,
                 "Total time of insertions, in microseconds",
                 lambda r: r.insertion_ns // 1000),
    ServerMetric("nv_cache_util", GAUGE, "Used share of the response cache, 0 to 1",
                 lambda r: r.utilization),
)

# Why a response is not in the cache though it could be.
CACHE_NOT_DONE: tuple[tuple[str, Callable[[CacheReading], int]], ...] = (
    ("too_large", lambda reading: reading.too_large),
    ("failed", lambda reading: reading.failures),
    ("skipped", lambda reading: reading.skipped),
)

# Of each repository, from the reasons why it or models in it cannot be read.
REPOSITORY: tuple[ServerMetric[Sequence[object]], ...] = (
    ServerMetric("shoal_repository_error", GAUGE,
                 "1 while the model repository, or a model's folder in it, cannot be read",
                 lambda problems: int(bool(problems))),
)

KEYS: tuple[ServerMetric[KeyCounts], ...] = (
    ServerMetric("shoal_key_requests_total", COUNTER, "Requests with the key that were served",
                 lambda key: key.requests),
    ServerMetric("shoal_key_received_bytes_total", COUNTER,
                 "Bytes in the bodies and messages of these requests",
                 lambda key: key.received_bytes),
    ServerMetric("shoal_key_sent_bytes_total", COUNTER, "Bytes of the responses to them",
                 lambda key: key.sent_bytes),
    ServerMetric("shoal_key_requests_in_flight", GAUGE, "Those without a response yet",
                 lambda key: key.in_flight),
)

SERVER: tuple[ServerMetric[ServerReading], ...] = (
    ServerMetric("shoal_ready", GAUGE,
                 "1 while the server is ready for traffic, as /v2/health/ready reports it, else 0",
                 lambda r: int(r.ready)),
    ServerMetric("shoal_readiness_warnings", GAUGE,
                 "Problems with which the server is ready: see /v2/health/ready?verbose",
                 lambda r: r.warnings),
    ServerMetric("shoal_connections_refused_total", COUNTER,
                 "Connections refused because there were too many",
                 lambda r: r.connections_refused),
    ServerMetric("shoal_connections_limit", GAUGE, "The most connections that may be open",
                 lambda r: r.max_connections or None),
    ServerMetric("shoal_buffered_bytes", GAUGE,
                 "Memory of large requests and of responses that clients do not read, in bytes",
                 lambda r: r.buffered_bytes),
    ServerMetric("shoal_buffered_bytes_limit", GAUGE, "The most of it, in bytes",
                 lambda r: r.max_buffered_bytes),
)

# By the names that Prometheus' client libraries give them, which dashboards know.
PROCESS: tuple[ServerMetric[ProcessReading], ...] = (
    ServerMetric("process_start_time_seconds", GAUGE,
                 "Start of the server's process, in seconds since the epoch",
                 lambda r: r.start_secs),
    ServerMetric("process_cpu_seconds_total", COUNTER,
                 "CPU time of the server's process, in seconds", lambda r: r.cpu_secs),
    ServerMetric("process_resident_memory_bytes", GAUGE, "Memory of the server's process, in bytes",
                 lambda r: r.resident_bytes),
    ServerMetric("process_virtual_memory_bytes", GAUGE,
                 "Address space of the server's process, in bytes", lambda r: r.virtual_bytes),
    ServerMetric("process_open_fds", GAUGE, "File descriptors that the server's process has open",
                 lambda r: r.open_files),
    ServerMetric("process_max_fds", GAUGE, "File descriptors that it may have open",
                 lambda r: r.max_files),
    ServerMetric("process_threads", GAUGE, "Threads of the server's process",
                 lambda r: r.threads),
)

# Of each process, with --frontend-processes.
PROCESSES: tuple[ServerMetric[ProcessReading], ...] = (
    ServerMetric("shoal_server_process_cpu_seconds_total", COUNTER,
                 "CPU time of each of the server's processes, in seconds", lambda r: r.cpu_secs),
    ServerMetric("shoal_server_process_resident_memory_bytes", GAUGE,
                 "Memory of each of the server's processes, in bytes, with what they share",
                 lambda r: r.resident_bytes),
)

ALWAYS: tuple[ServerMetric[MachineReading], ...] = (
    ServerMetric("nv_pinned_memory_pool_total_bytes", GAUGE,
                 "Always 0: this server has no such pool",
                 lambda _: 0),
    ServerMetric("nv_pinned_memory_pool_used_bytes", GAUGE,
                 "Always 0: this server has no such pool",
                 lambda _: 0),
    ServerMetric("shoal_process_resident_memory_bytes", GAUGE,
                 "The same as process_resident_memory_bytes",
                 lambda r: r.process_resident_bytes),
    ServerMetric("shoal_process_cpu_seconds_total", COUNTER,
                 "The same as process_cpu_seconds_total", lambda r: r.process_cpu_secs),
)

MACHINE: tuple[ServerMetric[MachineReading], ...] = (
    ServerMetric("nv_cpu_utilization", GAUGE, "Busy share of all CPU cores, 0 to 1",
                 lambda r: r.cpu_utilization),
    ServerMetric("nv_cpu_memory_total_bytes", GAUGE, "The machine's memory, in bytes",
                 lambda r: r.memory_total_bytes),
    ServerMetric("nv_cpu_memory_used_bytes", GAUGE, "Memory in use on the machine, in bytes",
                 lambda r: r.memory_used_bytes),
)

GPU: tuple[ServerMetric[GpuReading], ...] = (
    ServerMetric("nv_gpu_utilization", GAUGE,
                 "Busy share of the GPU, 0 to 1", lambda r: r.utilization),
    ServerMetric("nv_gpu_memory_total_bytes", GAUGE, "The GPU's memory, in bytes",
                 lambda r: r.memory_total_bytes),
    ServerMetric("nv_gpu_memory_used_bytes", GAUGE, "Memory in use on the GPU, in bytes",
                 lambda r: r.memory_used_bytes),
    ServerMetric("nv_gpu_power_usage", GAUGE, "Power the GPU draws, in watts",
                 lambda r: r.power_usage_watts),
    ServerMetric("nv_gpu_power_limit", GAUGE, "Power the GPU may draw, in watts",
                 lambda r: r.power_limit_watts),
    ServerMetric("nv_energy_consumption", COUNTER,
                 "Energy the GPU has used since the server started, in joules",
                 lambda r: r.energy_joules),
)
# fmt: on
