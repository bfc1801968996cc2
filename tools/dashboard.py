"""Write the Grafana dashboard: `tools/dashboard.py [--check]`.

    PANELS: title, queries, unit --> panels in rows --> deploy/monitoring/dashboard.json

Change the table below, not the file: --check fails where the two differ.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "deploy" / "monitoring" / "dashboard.json"

_COLUMNS = 24  # of Grafana's grid
_DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

SERVER = 'job=~"$job",instance=~"$instance"'
MODEL = SERVER + ',model=~"$model"'


class Query(NamedTuple):
    """A PromQL expression and the legend of its series."""

    expression: str
    legend: str = ""


class Panel(NamedTuple):
    """One panel; `kind` is the name of a panel of Grafana."""

    title: str
    queries: Sequence[Query]
    unit: str = "short"
    help_text: str = ""
    kind: str = "timeseries"
    columns: int = 8
    rows: int = 8
    max_one: bool = False  # whether the axis ends at 1


def _rate(metric: str, labels: str = MODEL) -> str:
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def _sum_rate(metric: str, by: str = "model", labels: str = MODEL) -> str:
    return f"sum by ({by}) ({_rate(metric, labels)})"


def _server(metric: str, by: str = "instance", how: str = "sum") -> str:
    """The current value of a metric of servers."""
    return f"{how} by ({by}) ({metric}{{{SERVER}}})"


def _model(metric: str, by: str = "model, version", how: str = "sum") -> str:
    """The current value of a metric of models."""
    return f"{how} by ({by}) ({metric}{{{MODEL}}})"


def _share(part: str, whole: str, by: str = "instance") -> str:
    return f"max by ({by}) ({part}{{{SERVER}}} / {whole}{{{SERVER}}})"


def _quantiles(metric: str) -> list[Query]:
    rate = _sum_rate(f"{metric}_bucket", "le, model")
    return [
        Query(f"histogram_quantile({share}, {rate})", f"{{{{model}}}} {share:.0%}")
        for share in (0.5, 0.99)
    ]


def _mean_ms(metric: str) -> str:
    """The mean of a duration in microseconds over the successful requests, in milliseconds."""
    return f"sum({_rate(metric)}) / sum({_rate('nv_inference_request_success')}) / 1000"


def _figure(title: str, expression: str, unit: str = "short", help_text: str = "") -> Panel:
    return Panel(title, [Query(expression)], unit, help_text, kind="stat", columns=4, rows=4)


_FAILED = f"sum({_rate('nv_inference_request_failure')})"
_REQUESTS = f"(sum({_rate('nv_inference_request_success')}) + {_FAILED})"
_REFUSED = SERVER + ',status=~"429|503|RESOURCE_EXHAUSTED|UNAVAILABLE"'
_HITS = _sum_rate("nv_cache_num_hits_per_model")

# The rows of the dashboard; six figures or three charts are side by side. Kept compact.
# fmt: off
PANELS: dict[str, Sequence[Panel]] = {
    "Overview": (
        _figure("Ready", f"min(shoal_ready{{{SERVER}}})", "bool_yes_no",
                "Whether every server is ready. /v2/health/ready?verbose says why one is not."),
        _figure("Requests", _REQUESTS, "reqps"),
        _figure("Failed requests", f"{_FAILED} / {_REQUESTS}", "percentunit",
                "Share of all requests, for any reason."),
        _figure("Latency, 99 %", "histogram_quantile(0.99, "
                f"{_sum_rate('shoal_request_duration_seconds_bucket', 'le')})", "s"),
        _figure("Waiting requests", f"sum(nv_inference_pending_request_count{{{MODEL}}})"),
        _figure("Uptime", f"min(time() - process_start_time_seconds{{{SERVER}}})", "s",
                "Of the server that was started last."),
    ),
    "Requests": (
        Panel("Successful requests by model",
              [Query(_sum_rate("nv_inference_request_success"), "{{model}}")], "reqps"),
        Panel("Failed requests by reason",
              [Query(_sum_rate("nv_inference_request_failure", "model, reason"),
                     "{{model}} {{reason}}")], "reqps",
              "REJECTED by a queue policy or by admission control, CANCELED by the client, BACKEND "
              "if the model failed, OTHER."),
        Panel("Errors by status",
              [Query(_sum_rate("shoal_error_responses_total", "protocol, status", SERVER),
                     "{{protocol}} {{status}}")], "reqps",
              "All errors that clients received, those of requests without a model included."),
    ),
    "Latency": (
        Panel("Requests", _quantiles("shoal_request_duration_seconds"), "s",
              "From the arrival of a request to its response."),
        Panel("Waiting for an instance", _quantiles("shoal_queue_duration_seconds"), "s"),
        Panel("Computing", _quantiles("shoal_compute_duration_seconds"), "s",
              "Duration of the execution that served a request."),
        Panel("Where the time goes",
              [Query(_mean_ms("nv_inference_queue_duration_us"), "waiting"),
               Query(_mean_ms("nv_inference_compute_input_duration_us"), "inputs"),
               Query(_mean_ms("nv_inference_compute_infer_duration_us"), "computing"),
               Query(_mean_ms("nv_inference_compute_output_duration_us"), "outputs")],
              "ms", "Mean of the successful requests of the chosen models.", columns=24),
    ),
    "Batches and queues": (
        Panel("Mean batch size",
              [Query(f"{_sum_rate('nv_inference_count')} / {_sum_rate('nv_inference_exec_count')}",
                     "{{model}}")], help_text="Rows per execution.", columns=6),
        Panel("Batch sizes", [Query(_sum_rate("shoal_batch_size_bucket", "le"), "{{le}}")],
              help_text="Executions by their rows.", kind="heatmap", columns=6),
        Panel("Waiting requests",
              [Query(_model("nv_inference_pending_request_count", "model"), "{{model}}")],
              columns=6),
        Panel("Time to drain",
              [Query(_model("shoal_time_to_drain_seconds", "model", "max"), "{{model}}")],
              "s", "Until what waits and runs now is finished, on the slowest server.", columns=6),
    ),
    "Models and instances": (
        Panel("Instances", [Query(_model("shoal_model_instances"), "{{model}} {{version}}")]),
        Panel("Restarts of model processes",
              [Query("sum by (model) "
                     f"(increase(shoal_process_restarts_total{{{MODEL}}}[$__rate_interval]))",
                     "{{model}}")],
              help_text="Processes in which instances run and that have crashed."),
        Panel("Executions that hang",
              [Query("sum by (model) "
                     f"(increase(shoal_execution_timeouts_total{{{MODEL}}}[$__rate_interval]))",
                     "{{model}}: timed out"),
               Query(_model("shoal_unhealthy_instances", "model"), "{{model}}: unhealthy"),
               Query(_model("shoal_abandoned_threads", "model"), "{{model}}: abandoned")],
              help_text="Of models with execution_timeout_ms: executions that timed out, unhealthy "
              "instances, abandoned threads."),
        Panel("Memory of models",
              [Query(_model("shoal_model_memory_bytes"), "{{model}} {{version}}")], "bytes",
              "Estimated when the model was loaded, with the processes of its instances."),
        Panel("Load time",
              [Query(_model("nv_model_load_duration_secs", how="max"), "{{model}} {{version}}")],
              "s"),
        Panel("Problems without effect on readiness",
              [Query(_server("shoal_readiness_warnings"), "{{instance}}")],
              help_text="The warnings of /v2/health/ready?verbose."),
        Panel("Repositories that cannot be read",
              [Query(_server("shoal_repository_error", "instance, repository", "max"),
                     "{{instance}} {{repository}}")],
              help_text="1 while a repository, or a model's folder in it, cannot be read. What is "
              "loaded serves on."),
        Panel("Loads and evictions on demand",
              [Query(_sum_rate("shoal_on_demand_loads_total"), "{{model}} loaded"),
               Query(_sum_rate("shoal_model_evictions_total"), "{{model}} evicted")],
              "ops", "With --model-control-mode=lazy."),
    ),
    "Connections and refusals": (
        Panel("Open connections",
              [Query(_server("shoal_connections", "protocol"), "{{protocol}}"),
               Query(f"sum(shoal_connections_limit{{{SERVER}}})", "limit")]),
        Panel("Refused requests and connections",
              [Query(_sum_rate("shoal_error_responses_total", "protocol, status", _REFUSED),
                     "{{protocol}} {{status}}"),
               Query(_sum_rate("nv_inference_request_failure", "model",
                               MODEL + ',reason="REJECTED"'), "{{model}} rejected by its queue"),
               Query(f"sum({_rate('shoal_connections_refused_total', SERVER)})", "connections"),
               Query(_sum_rate("shoal_key_refused_total", "reason", SERVER), "keys: {{reason}}")],
              "reqps"),
        Panel("Admission by target latency",
              [Query(_sum_rate("shoal_admission_refused_total"), "{{model}} refused"),
               Query(_model("shoal_admission_expected_seconds", "model", "max"),
                     "{{model}} expected latency, in seconds")],
              help_text="Of models with a target latency: requests a second that were refused, and "
              "the latency that a request would have now."),
        Panel("Buffered for clients",
              [Query(_server("shoal_buffered_bytes"), "{{instance}}"),
               Query(f"min(shoal_buffered_bytes_limit{{{SERVER}}})", "limit")], "bytes",
              "Large requests, and responses that clients do not read (--max-buffered-bytes)."),
    ),
    "Response cache": (
        Panel("Hit ratio",
              [Query(f"{_HITS} / ({_HITS} + {_sum_rate('nv_cache_num_misses_per_model')})",
                     "{{model}}")], "percentunit", max_one=True),
        Panel("Lookups",
              [Query(f"sum({_rate('nv_cache_num_hits', SERVER)})", "found"),
               Query(f"sum({_rate('nv_cache_num_misses', SERVER)})", "not found"),
               Query(f"sum({_rate('nv_cache_num_evictions', SERVER)})", "evictions"),
               Query(_sum_rate("shoal_cache_not_done", "reason", SERVER), "not done: {{reason}}")],
              "ops"),
        Panel("Used", [Query(_server("nv_cache_util", how="max"), "{{instance}}")],
              "percentunit", max_one=True),
    ),
    "Process and machine": (
        Panel("CPU of the server",
              [Query(_sum_rate("process_cpu_seconds_total", "instance", SERVER), "{{instance}}")],
              help_text="Cores in use. Processes of model instances are not included."),
        Panel("Memory of the server",
              [Query(_server("process_resident_memory_bytes"), "{{instance}}")], "bytes"),
        Panel("File descriptors",
              [Query(_share("process_open_fds", "process_max_fds"), "{{instance}}")],
              "percentunit", "Share of those that the process may open."),
        Panel("Threads", [Query(_server("process_threads"), "{{instance}}")]),
        Panel("CPU and memory of the machine",
              [Query(_server("nv_cpu_utilization", how="max"), "{{instance}} CPU"),
               Query(_share("nv_cpu_memory_used_bytes", "nv_cpu_memory_total_bytes"),
                     "{{instance}} memory")], "percentunit", max_one=True),
        Panel("GPUs",
              [Query(_server("nv_gpu_utilization", "gpu_uuid", "max"), "{{gpu_uuid}} busy"),
               Query(_share("nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes", "gpu_uuid"),
                     "{{gpu_uuid}} memory")], "percentunit", max_one=True),
        Panel("Versions",
              [Query(_server("shoal_build_info", "instance, version, python"),
                     "{{instance}}: Shoal {{version}}, Python {{python}}")], columns=24, rows=6),
    ),
}
# fmt: on


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row, members in PANELS.items():
        at = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": row, "collapsed": False, "gridPos": at}
        )
        top += 1
        left = height = 0
        for panel in members:
            if left + panel.columns > _COLUMNS:
                top, left, height = top + height, 0, 0
            at = {"x": left, "y": top, "w": panel.columns, "h": panel.rows}
            panels.append({"id": len(panels) + 1, "gridPos": at, **_panel(panel)})
            left, height = left + panel.columns, max(height, panel.rows)
        top += height
    return {
        "uid": "shoal-server",
        "title": "Shoal",
        "description": "Inference servers: requests, latency, batches, instances, processes.",
        "tags": ["shoal", "inference"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one cursor in all charts
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": [_restarts()]},
        "panels": panels,
    }


def _panel(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.max_one:
        defaults["max"] = 1
    if panel.kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 10, "lineWidth": 1, "showPoints": "never"}
    made: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "datasource": _DATA_SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _DATA_SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend or "__auto",
                **({"format": "heatmap"} if panel.kind == "heatmap" else {}),
            }
            for number, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[panel.kind],
    }
    if panel.help_text:
        made["description"] = panel.help_text
    return made


_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "none",
        "graphMode": "area",
        "textMode": "value",
    },
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Blues", "steps": 32},
        "yAxis": {"axisPlacement": "left"},
        "tooltip": {"mode": "single"},
        "legend": {"show": True},
    },
}


def _variables() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "refresh": 1,
        }
    ]
    for name, label, query in (
        ("job", "Job", "label_values(shoal_build_info, job)"),
        ("instance", "Server", 'label_values(shoal_build_info{job=~"$job"}, instance)'),
        ("model", "Model", f"label_values(nv_inference_request_success{{{SERVER}}}, model)"),
    ):
        found.append(
            {
                "name": name,
                "label": label,
                "type": "query",
                "datasource": _DATA_SOURCE,
                "query": {"query": query, "refId": name},
                "refresh": 2,  # when the time range changes
                "sort": 1,
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
            }
        )
    return found


def _restarts() -> dict[str, Any]:
    """Lines in all charts where a server was started."""
    return {
        "name": "Starts",
        "datasource": _DATA_SOURCE,
        "enable": True,
        "iconColor": "orange",
        "expr": f"process_start_time_seconds{{{SERVER}}} * 1000",
        "titleFormat": "{{instance}} was started",
        "useValueForTime": "on",
        "step": "60s",
    }


def main(arguments: list[str]) -> int:
    """Write the file, or with --check only compare it; the exit status."""
    text = json.dumps(dashboard(), indent=2) + "\n"
    if arguments == ["--check"]:
        current = FILE.is_file() and FILE.read_text("utf-8") == text
        if not current:
            print(f"{FILE.relative_to(ROOT)} is not current; run `make dashboard`")
        return int(not current)
    FILE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
