"""NVIDIA's Model Analyzer against Shoal: a quick search, and the reports it makes of it.

    remote  it loads one config after another into a server that runs, in explicit mode
    local   it starts the server itself, once for each config: --triton-server-path names the
            `tritonserver` that Shoal installs

perf_analyzer sends the load. The search is small, because what matters is that it ends well: two
instances and batches of two at most, short windows that need not agree.
"""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Sequence
from pathlib import Path

MODEL = "add_sub"
MOST_CONFIGS = 5  # its own, and those with one or two instances and batches of one or two
# Columns of the results: the name of a config, and what every row must have.
NAME = "Model Config Path"
NUMBERS = ("Throughput (infer/sec)", "p99 Latency (ms)", "Concurrency")
_CONFIG = """\
model_repository: {models}
profile_models: {{ {model}: {{ cpu_only: true }} }}
run_config_search_mode: quick
run_config_search_max_concurrency: 2
run_config_search_max_model_batch_size: 2
run_config_search_max_instance_count: 2
output_model_repository_path: {work}/output_models
override_output_model_repository: true
checkpoint_directory: {work}/checkpoints
export_path: {work}/export
perf_analyzer_path: {perf_analyzer}
client_protocol: {protocol}
always_report_gpu_metrics: false
perf_analyzer_flags: {{ measurement-interval: 300, stability-percentage: 999, max-trials: 10 }}
"""
_REMOTE = """\
triton_launch_mode: remote
"""
_LOCAL = """\
triton_launch_mode: local
triton_server_path: {tritonserver}
triton_output_path: {work}/server.log
"""
_ADDRESSES = """\
triton_http_endpoint: 127.0.0.1:{ports[0]}
triton_grpc_endpoint: 127.0.0.1:{ports[1]}
triton_metrics_url: http://127.0.0.1:{ports[2]}/metrics
"""


class CheckFailed(Exception):
    """What went wrong, with the output of the program."""


def profile(
    program: Path,
    work: Path,
    models: Path,
    ports: Sequence[int],
    perf_analyzer: Path,
    *,
    protocol: str,
    tritonserver: Path | None = None,
) -> str:
    """Profile the model and check the reports; returns a line about them. Raises CheckFailed.

    Without `tritonserver` a server in explicit mode runs on `ports` (HTTP, gRPC, metrics).
    """
    work.mkdir(parents=True)
    mode = _REMOTE if tritonserver is None else _LOCAL
    text = (_CONFIG + mode + _ADDRESSES).format(
        models=models,
        model=MODEL,
        work=work,
        perf_analyzer=perf_analyzer,
        protocol=protocol,
        ports=ports,
        tritonserver=tritonserver,
    )
    config = work / "profile.yaml"
    config.write_text(text, encoding="utf-8")
    for folder in ("checkpoints", "export"):
        (work / folder).mkdir()
    _run([program, "profile", "--config-file", config], work)
    rows = _rows(work / "export" / "results" / "metrics-model-inference.csv")
    configs = {row[NAME] for row in rows}
    if len(configs) < MOST_CONFIGS:
        raise CheckFailed(f"only these configs were measured: {', '.join(sorted(configs))}")
    for row in rows:
        if not all(float(row[name]) > 0 for name in NUMBERS):
            raise CheckFailed(f"a number is missing in {row}")
    best = max(rows, key=lambda row: float(row[NUMBERS[0]]))
    places = ["--export-path", work / "export", "--checkpoint-directory", work / "checkpoints"]
    _run([program, "report", "--report-model-configs", best[NAME], *places], work)
    for report in (f"summaries/{MODEL}/result_summary", f"detailed/{best[NAME]}/detailed_report"):
        if not list((work / "export" / "reports").glob(f"{report}.*")):
            raise CheckFailed(f"there is no report {report}")
    numbers = f"{best[NUMBERS[0]]} infer/sec"
    return f"{len(rows)} measurements of {len(configs)} configs; {best[NAME]} has {numbers}"


def _run(words: Sequence[str | Path], folder: Path) -> None:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise CheckFailed(f"{words[1]} ended with {done.returncode}:\n{done.stdout}")


def _rows(file: Path) -> list[dict[str, str]]:
    if not file.exists():
        raise CheckFailed(f"there is no {file.name}")
    with file.open(encoding="utf-8", newline="") as table:
        return list(csv.DictReader(table))
