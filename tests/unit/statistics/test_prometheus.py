from __future__ import annotations

import math
import platform
import time
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

import shoal
from shoal.errors import InvalidArgument
from shoal.statistics.gpu import GpuReading, Gpus
from shoal.statistics.machine import MachineReading
from shoal.statistics.metrics_settings import MetricsSettings
from shoal.statistics.model import FailureReason, ModelStatistics, Moments, StatisticsOptions
from shoal.statistics.process import ProcessReading, ServerProcess
from shoal.statistics.prometheus import MetricsRenderer
from shoal.statistics.recent_errors import RecentErrors
from shoal.statistics.server import ServerReading

MACHINE = MachineReading(
    cpu_utilization=0.25,
    memory_total_bytes=1000,
    memory_used_bytes=400,
    process_resident_bytes=120,
    process_cpu_secs=1.5,
)
PROCESS = ProcessReading(
    start_secs=1_700_000_000.25,
    cpu_secs=1.5,
    resident_bytes=120,
    virtual_bytes=500,
    open_files=7,
    max_files=1024,
    threads=9,
)
SERVER = ServerReading(
    ready=True,
    warnings=2,
    connections={"http": 3, "grpc": 1},
    connections_refused=4,
    max_connections=100,
    buffered_bytes=10,
    max_buffered_bytes=1000,
)
PROCESS_NAMES = {
    "process_start_time_seconds",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_virtual_memory_bytes",
    "process_open_fds",
    "process_max_fds",
    "process_threads",
}
DURATIONS = {
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
}
CPU = {"nv_cpu_utilization", "nv_cpu_memory_total_bytes", "nv_cpu_memory_used_bytes"}


def renderer(*models, settings=None, gpus=list, **options) -> MetricsRenderer:
    options = {"errors": RecentErrors(), "process": lambda: PROCESS, **options}
    return MetricsRenderer(lambda: models, settings, machine=lambda: MACHINE, gpus=gpus, **options)


def scrape(metrics: MetricsRenderer) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Sample name -> labels -> value, as Prometheus' own parser understands the text."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    text = metrics.render().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # The parser gives every counter the ending `_total`, whether or not it has it.
            written = any(line.startswith(sample.name) for line in text.splitlines())
            series = found.setdefault(sample.name if written else family.name, {})
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in series, "a series may occur once"
            series[labels] = sample.value
    return found


def types(metrics: MetricsRenderer) -> dict[str, str]:
    lines = metrics.render().decode().splitlines()
    return dict(line.split()[2:4] for line in lines if line.startswith("# TYPE"))


@pytest.fixture
def served(make_request) -> ModelStatistics:
    """A model that ran one batch of two requests and failed three."""
    model = ModelStatistics("simple", 2, clock=lambda: 9_000_000)
    requests = [make_request(1_000_000, 2_000_000, 3), make_request(1_000_000, 3_000_000, 1)]
    model.executed(requests, 4, Moments(4_000_000, 4_100_000, 8_000_000, 8_200_000))
    model.failed(requests[0], FailureReason.REJECTED, 2_000_000)
    model.batch_failed(requests, 4, Moments(4_000_000, 4_000_000, 4_000_000, 4_000_000))
    model.load_duration_secs = 0.75
    model.pending = lambda: 6
    return model


AT = (("model", "simple"), ("version", "2"))


def test_tritons_names_labels_and_values(served):
    found = scrape(renderer(served))
    expected = {
        "nv_inference_request_success": 2,
        "nv_inference_count": 4,
        "nv_inference_exec_count": 1,
        "nv_inference_request_duration_us": 16_000,
        "nv_inference_queue_duration_us": 3_000,
        "nv_inference_compute_input_duration_us": 200,
        "nv_inference_compute_infer_duration_us": 7_800,
        "nv_inference_compute_output_duration_us": 400,
        "nv_inference_pending_request_count": 6,
        "nv_model_load_duration_secs": 0.75,
    }
    assert {name: found[name] for name in expected} == {
        name: {AT: value} for name, value in expected.items()
    }
    assert found["nv_inference_request_failure"] == {
        (("model", "simple"), ("reason", reason), ("version", "2")): count
        for reason, count in {"REJECTED": 1, "CANCELED": 0, "BACKEND": 2, "OTHER": 0}.items()
    }
    assert found["nv_cpu_utilization"] == {(): 0.25}
    assert found["nv_cpu_memory_total_bytes"] == {(): 1000}
    assert found["nv_cpu_memory_used_bytes"] == {(): 400}
    assert found["nv_pinned_memory_pool_total_bytes"] == {(): 0}
    assert found["nv_pinned_memory_pool_used_bytes"] == {(): 0}
    assert found["shoal_process_resident_memory_bytes"] == {(): 120}
    assert found["shoal_process_cpu_seconds_total"] == {(): 1.5}


def test_lines_read_as_scripts_expect_them(served):
    lines = renderer(served).render().decode().splitlines()
    assert 'nv_inference_request_success{model="simple",version="2"} 2' in lines
    assert 'nv_inference_request_failure{model="simple",reason="REJECTED",version="2"} 1' in lines
    assert "nv_cpu_utilization 0.25" in lines


def test_every_metric_has_its_type(served):
    kinds = types(renderer(served, gpus=lambda: [GpuReading("GPU-1", energy_joules=3.0)]))
    gauges = {
        "nv_inference_pending_request_count",
        "nv_model_load_duration_secs",
        "shoal_model_memory_bytes",
        "shoal_model_on_loop",
        "nv_pinned_memory_pool_total_bytes",
        "nv_pinned_memory_pool_used_bytes",
        "shoal_process_resident_memory_bytes",
        "shoal_build_info",
        *CPU,
        *PROCESS_NAMES,
    } - {"process_cpu_seconds_total"}
    histograms = {
        "shoal_request_duration_seconds",
        "shoal_queue_duration_seconds",
        "shoal_compute_duration_seconds",
        "shoal_batch_size",
    }
    counters = {
        "nv_inference_request_success",
        "nv_inference_request_failure",
        "nv_inference_count",
        "nv_inference_exec_count",
        "nv_energy_consumption",
        "shoal_process_cpu_seconds_total",
        "process_cpu_seconds_total",
        "shoal_error_responses_total",
        *DURATIONS,
    }
    assert kinds == (
        dict.fromkeys(gauges, "gauge")
        | dict.fromkeys(histograms, "histogram")
        | dict.fromkeys(counters, "counter")
    )


def test_histograms_are_cumulative_and_in_seconds(served):
    found = scrape(renderer(served))

    def bucket(name: str, bound: str) -> float:
        return found[f"{name}_bucket"][(("le", bound), *AT)]

    assert bucket("shoal_request_duration_seconds", "0.005") == 0
    assert bucket("shoal_request_duration_seconds", "0.01") == 2
    assert bucket("shoal_request_duration_seconds", "+Inf") == 2
    assert found["shoal_request_duration_seconds_sum"][AT] == 0.016
    assert found["shoal_request_duration_seconds_count"][AT] == 2
    assert bucket("shoal_queue_duration_seconds", "0.001") == 1
    assert bucket("shoal_queue_duration_seconds", "0.0025") == 2
    assert bucket("shoal_queue_duration_seconds", "0.00005") == 0
    assert bucket("shoal_compute_duration_seconds", "0.005") == 2
    assert found["shoal_compute_duration_seconds_sum"][AT] == 0.0084
    assert bucket("shoal_batch_size", "2") == 0
    assert bucket("shoal_batch_size", "4") == 1
    assert found["shoal_batch_size_sum"][AT] == 4
    for name in ("request_duration_seconds", "queue_duration_seconds", "compute_duration_seconds"):
        buckets = list(found[f"shoal_{name}_bucket"].values())
        assert buckets == sorted(buckets)
        assert buckets[-1] == found[f"shoal_{name}_count"][AT]


def test_a_model_without_histograms_has_none():
    assert not any(
        "_bucket" in name for name in scrape(renderer(ModelStatistics("m", 1, histograms=False)))
    )


def test_without_models_only_the_machine_and_the_process_are_left():
    assert set(scrape(renderer())) == CPU | PROCESS_NAMES | {
        "shoal_build_info",
        "shoal_error_responses_total",
        "nv_pinned_memory_pool_total_bytes",
        "nv_pinned_memory_pool_used_bytes",
        "shoal_process_resident_memory_bytes",
        "shoal_process_cpu_seconds_total",
    }


def test_the_process_has_the_names_of_prometheus_libraries():
    found = scrape(renderer())
    assert {name: found[name][()] for name in PROCESS_NAMES} == {
        "process_start_time_seconds": 1_700_000_000.25,
        "process_cpu_seconds_total": 1.5,
        "process_resident_memory_bytes": 120,
        "process_virtual_memory_bytes": 500,
        "process_open_fds": 7,
        "process_max_fds": 1024,
        "process_threads": 9,
    }


def test_the_process_itself_is_read():
    reading = ServerProcess().read()
    assert reading.start_secs < time.time()
    assert reading.virtual_bytes > reading.resident_bytes > 0
    assert 0 < reading.open_files < reading.max_files
    assert reading.threads >= 1
    assert reading.cpu_secs > 0


def test_what_was_built():
    ((labels, value),) = scrape(renderer())["shoal_build_info"].items()
    assert value == 1
    assert dict(labels)["version"] == shoal.__version__
    assert dict(labels)["python"] == platform.python_version()
    assert {name for name, _ in labels} == {"version", "python", "system", "machine"}


def test_the_server_itself():
    found = scrape(renderer(server=lambda: SERVER))
    assert found["shoal_connections"] == {(("protocol", "grpc"),): 1, (("protocol", "http"),): 3}
    assert [
        found[name][()]
        for name in (
            "shoal_ready",
            "shoal_readiness_warnings",
            "shoal_connections_refused_total",
            "shoal_connections_limit",
            "shoal_buffered_bytes",
            "shoal_buffered_bytes_limit",
        )
    ] == [1, 2, 4, 100, 10, 1000]
    unlimited = scrape(renderer(server=lambda: replace(SERVER, ready=False, max_connections=0)))
    assert unlimited["shoal_ready"] == {(): 0}
    assert "shoal_connections_limit" not in unlimited


def test_errors_by_protocol_and_status():
    errors = RecentErrors()
    for _ in range(2):
        errors.note("HTTP", "GET /v2", "404", "not found")
    errors.note("gRPC", "ModelInfer", "UNAVAILABLE", "queue is full")
    errors.count("HTTP", "503")
    assert scrape(renderer(errors=errors))["shoal_error_responses_total"] == {
        (("protocol", "http"), ("status", "404")): 2,
        (("protocol", "http"), ("status", "503")): 1,
        (("protocol", "http"), ("status", "429")): 0,  # refusals are there from the start
        (("protocol", "grpc"), ("status", "UNAVAILABLE")): 1,
        (("protocol", "grpc"), ("status", "RESOURCE_EXHAUSTED")): 0,
    }


def test_instances_and_restarts_of_their_processes(served):
    served.instances = lambda: 3
    served.process_restarts = lambda: 2
    found = scrape(renderer(served, ModelStatistics("other", 1)))
    assert found["shoal_model_instances"] == {AT: 3}
    assert found["shoal_process_restarts_total"] == {AT: 2}


def test_tags_and_namespace_become_labels():
    model = ModelStatistics("m", 1, labels={"namespace": "/models", "_cost-center": "7"})
    found = scrape(renderer(model))
    assert list(found["nv_inference_count"]) == [
        (("_cost_center", "7"), ("model", "m"), ("namespace", "/models"), ("version", "1"))
    ]


def test_models_and_versions_are_series_of_one_family():
    metrics = renderer(ModelStatistics("a", 1), ModelStatistics("a", 2), ModelStatistics("b", 1))
    assert len(scrape(metrics)["nv_inference_count"]) == 3
    assert metrics.render().count(b"# TYPE nv_inference_count counter\n") == 1


def test_of_two_equal_versions_the_newer_is_shown(make_request):
    old, new = ModelStatistics("m", 1), ModelStatistics("m", 1)
    old.executed([make_request(0, 1)], 1, Moments(1, 2, 3, 4))
    assert scrape(renderer(old, new))["nv_inference_count"] == {
        (("model", "m"), ("version", "1")): 0
    }


def test_each_scrape_reads_anew(make_request):
    model = ModelStatistics("m", 1)
    metrics = renderer(model)
    at = (("model", "m"), ("version", "1"))
    assert scrape(metrics)["nv_inference_count"][at] == 0
    model.executed([make_request(0, 1)], 1, Moments(1, 2, 3, 4))
    assert scrape(metrics)["nv_inference_count"][at] == 1


def test_machine_figures_are_read_once_per_interval():
    now_ns = 0
    utilizations = iter([0.1, 0.2])
    metrics = MetricsRenderer(
        list,
        MetricsSettings(interval_ms=10),
        machine=lambda: MachineReading(cpu_utilization=next(utilizations)),
        gpus=list,
        clock=lambda: now_ns,
    )
    assert scrape(metrics)["nv_cpu_utilization"] == {(): 0.1}
    now_ns = 9_999_999
    assert scrape(metrics)["nv_cpu_utilization"] == {(): 0.1}
    now_ns = 10_000_000
    assert scrape(metrics)["nv_cpu_utilization"] == {(): 0.2}


def test_cpu_gauges_can_be_hidden(served):
    found = scrape(renderer(served, settings=MetricsSettings(cpu=False)))
    assert not CPU & set(found)
    assert "shoal_process_resident_memory_bytes" in found


def test_duration_counters_can_be_hidden(served):
    found = scrape(renderer(served, settings=MetricsSettings(counter_latencies=False)))
    assert not DURATIONS & set(found)
    assert found["nv_inference_count"] == {AT: 4}


def test_gpu_gauges():
    readings = [
        GpuReading("GPU-a", 0.5, 100, 60, 250.5, 700.0, 12.25),
        GpuReading("GPU-b", memory_total_bytes=100, memory_used_bytes=1),
    ]
    found = scrape(renderer(gpus=lambda: readings))
    a, b = (("gpu_uuid", "GPU-a"),), (("gpu_uuid", "GPU-b"),)
    assert found["nv_gpu_utilization"] == {a: 0.5}
    assert found["nv_gpu_memory_total_bytes"] == {a: 100, b: 100}
    assert found["nv_gpu_memory_used_bytes"] == {a: 60, b: 1}
    assert found["nv_gpu_power_usage"] == {a: 250.5}
    assert found["nv_gpu_power_limit"] == {a: 700}
    assert found["nv_energy_consumption"] == {a: 12.25}


def test_gpu_gauges_can_be_hidden():
    metrics = renderer(settings=MetricsSettings(gpu=False), gpus=lambda: [GpuReading("GPU-a", 0.5)])
    assert not any(name.startswith("nv_gpu") for name in scrape(metrics))


def test_hidden_gpus_are_not_even_looked_for(monkeypatch):
    def find():
        raise AssertionError("NVML was started for nothing")

    monkeypatch.setattr(Gpus, "find", find)
    MetricsRenderer(list, MetricsSettings(gpu=False)).render()


def test_by_default_the_machine_itself_is_read(monkeypatch):
    monkeypatch.setattr(Gpus, "find", lambda: None)
    found = scrape(MetricsRenderer(list))
    assert found["nv_cpu_memory_total_bytes"][()] > found["nv_cpu_memory_used_bytes"][()] > 0


@pytest.mark.parametrize("value", ["false", "0", "False"])
def test_config_turns_duration_counters_off(value):
    settings = MetricsSettings(cpu=False).configured([f"counter_latencies={value}"])
    assert settings == MetricsSettings(cpu=False, counter_latencies=False)


def test_the_last_of_two_entries_counts():
    entries = ["counter_latencies=false", "counter_latencies=true"]
    assert MetricsSettings().configured(entries) == MetricsSettings()


def test_config_turns_more_latencies_on():
    settings = MetricsSettings().configured(
        ["summary_latencies=true", "summary_quantiles=0.5:0.05, 1:0", "histogram_latencies=1"]
    )
    assert settings == MetricsSettings(
        summary_latencies=True, summary_quantiles=(0.5, 1.0), histogram_latencies=True
    )
    assert (settings.counted.summaries, settings.counted.first_response) == (True, True)
    assert MetricsSettings().counted == StatisticsOptions()


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("counter_latencies", "not of the form <setting>=<value>"),
        ("=true", "not of the form <setting>=<value>"),
        ("counter_latencies=", "not of the form <setting>=<value>"),
        ("counter_latencies=maybe", "write counter_latencies=true or counter_latencies=false"),
        ("latencies=true", "has no setting 'latencies'; its settings are counter_latencies"),
        ("summary_latencies=often", "write summary_latencies=true or summary_latencies=false"),
    ],
)
def test_wrong_settings_are_refused_with_a_sentence(entry, sentence):
    with pytest.raises(InvalidArgument, match=sentence):
        MetricsSettings().configured([entry])


@pytest.mark.parametrize(
    ("value", "quantiles"),
    [
        ("0.5abc:0.05x, 9e-1:.01", (0.5, 0.9)),
        ("0.5,x:0.1,0.9:y,1.5:0.1,0.99:0.001", (0.99,)),
        ("nothing", MetricsSettings().summary_quantiles),
    ],
)
def test_quantiles_are_read_leniently(value, quantiles, caplog):
    settings = MetricsSettings().configured([f"summary_quantiles={value}"])
    assert settings.summary_quantiles == quantiles
    assert ("left out" in caplog.text) == (value != "0.5abc:0.05x, 9e-1:.01")


SUMMARIES = {
    "nv_inference_request_summary_us": (8_000, 16_000),
    "nv_inference_queue_summary_us": (1_000, 3_000),
    "nv_inference_compute_input_summary_us": (100, 200),
    "nv_inference_compute_infer_summary_us": (3_900, 7_800),
    "nv_inference_compute_output_summary_us": (200, 400),
}


@pytest.fixture
def clock():
    class Clock:
        now_ns = 9_000_000

        def __call__(self):
            return self.now_ns

    return Clock()


@pytest.fixture
def detailed(make_request, clock):
    """As `served`, with all that can be counted, and tags."""
    model = ModelStatistics(
        "simple",
        2,
        clock=clock,
        summaries=True,
        first_response_edges_ms=(5, 0.5, 10),
        labels={"_team": "eel", "_cost centre": "7"},
    )
    requests = [make_request(1_000_000, 2_000_000, 3), make_request(1_000_000, 3_000_000, 1)]
    model.executed(requests, 4, Moments(4_000_000, 4_100_000, 8_000_000, 8_200_000))
    return model


LABELS = (("_cost_centre", "7"), ("_team", "eel"), ("model", "simple"), ("version", "2"))


def test_tags_are_labels_of_every_metric(detailed):
    found = scrape(renderer(detailed))
    assert found["nv_inference_count"] == {LABELS: 4.0}
    assert found["nv_model_load_duration_secs"] == {LABELS: 0.0}


def test_summaries(detailed):
    settings = MetricsSettings(summary_quantiles=(0, 1))
    metrics = renderer(detailed, settings=settings)
    found = scrape(metrics)
    assert {name for name, kind in types(metrics).items() if kind == "summary"} == set(SUMMARIES)
    for name, (least, total) in SUMMARIES.items():
        low, high = (found[name][(*LABELS[:3], ("quantile", q), LABELS[3])] for q in "01")
        assert low == pytest.approx(least, rel=0.01)
        assert high == pytest.approx(total - least, rel=0.01)
        assert found[f"{name}_sum"] == {LABELS: total}
        assert found[f"{name}_count"] == {LABELS: 2}


def test_summaries_forget_and_sums_do_not(detailed, clock):
    clock.now_ns += 120_000_000_000
    found = scrape(renderer(detailed))
    assert all(math.isnan(value) for value in found["nv_inference_queue_summary_us"].values())
    assert found["nv_inference_queue_summary_us_count"] == {LABELS: 2}
    assert len(found["nv_inference_queue_summary_us"]) == 5  # Triton's quantiles


def test_no_summaries_unless_asked_for(served):
    assert "summary" not in types(renderer(served)).values()
    assert "nv_inference_first_response_histogram_ms" not in types(renderer(served))


def test_time_to_the_first_response(detailed, make_request, clock):
    """Two after 8 ms by an ordinary execution, one after 0.4 ms that told so itself; in whole ms."""
    early = make_request(clock.now_ns - 400_000, clock.now_ns)
    detailed.first_response(early)
    moments = Moments(clock.now_ns, clock.now_ns, clock.now_ns, clock.now_ns)
    detailed.executed([early], 1, moments, answered_before=True)
    name = "nv_inference_first_response_histogram_ms"
    found = scrape(renderer(detailed))
    buckets = {dict(labels)["le"]: value for labels, value in found[f"{name}_bucket"].items()}
    assert buckets == {"0.5": 1, "5": 1, "10": 3, "+Inf": 3}
    assert found[f"{name}_sum"] == {LABELS: 16}


def test_first_responses_are_not_counted_unless_asked_for(served, make_request):
    served.first_response(make_request(1, 2))
    assert served.read().first_response_ms is None
