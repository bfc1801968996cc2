"""NVIDIA's perf_analyzer over HTTP: it ends well, and finds the server's own numbers in order."""

from __future__ import annotations

import csv
import json
import re

import pytest

from shoal.plan.report import read_report

pytestmark = pytest.mark.perf_analyzer

COUNTED = re.compile(
    r"Server: \n"
    r"    Inference count: (\d+)\n"
    r"    Execution count: (\d+)\n"
    r"    Successful request count: (\d+)\n"
    r"    Avg request latency: (\d+) usec \(overhead (\d+) usec \+ queue (\d+) usec \+ "
    r"compute input (\d+) usec \+ compute infer (\d+) usec \+ compute output (\d+) usec\)"
)


@pytest.fixture
def analyze(web, perf_analyzer):
    """Its output for a model, after checking that it ended well and warned about nothing."""

    def run(model, *words):
        done = perf_analyzer("-i", "http", "-u", web.address, "-m", model, *words)
        assert done.stderr == ""
        return done.stdout

    return run


def counted(output):
    """Inferences, executions and requests of each `Server:` block, with sound times."""
    blocks = [tuple(map(int, found)) for found in COUNTED.findall(output)]
    assert blocks, f"no server-side numbers in:\n{output}"
    for inferences, executions, requests, total, *parts in blocks:
        assert 0 < executions <= requests <= inferences
        assert total > 0
        assert abs(total - sum(parts)) <= len(parts), "the parts do not add up"
    return [block[:3] for block in blocks]


def test_a_stable_result_at_several_levels(analyze, tmp_path):
    table = tmp_path / "table.csv"
    output = analyze("sum", "--concurrency-range", "1:5:4", "-f", table)
    assert len(counted(output)) == 2
    assert "Failed to obtain stable measurement" not in output
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["Concurrency"] for row in rows} == {"1", "5"}
    for row in rows:
        assert float(row["Inferences/Second"]) > 0
        for name in ("Queue", "Compute Input", "Compute Infer", "Compute Output"):
            assert int(row[f"Server {name}"]) >= 0
    levels = read_report(str(table)).levels  # of `shoal plan`
    assert {level.name for level in levels} == {"concurrency 1", "concurrency 5"}
    assert all(level.p99_ms > 0 for level in levels)


def test_rows_and_data_of_its_own(analyze, tmp_path):
    data = tmp_path / "data.json"
    steps = [{"INPUT0": [i] * 16, "INPUT1": list(range(16))} for i in range(5)]
    outputs = [
        {"OUTPUT0": [i + j for j in range(16)], "OUTPUT1": [i - j for j in range(16)]}
        for i in range(5)
    ]
    data.write_text(json.dumps({"data": steps, "validation_data": outputs}))
    output = analyze("sum", "-b", 1, "--input-data", data)
    assert "5 step/steps" in output
    assert counted(output)
    data.write_text(json.dumps({"data": steps}))
    output = analyze("sum", "-b", 4, "--input-data", data)
    for inferences, _, requests in counted(output):
        assert inferences == 4 * requests


def test_json_tensors(analyze):
    words = ("--input-tensor-format", "json", "--output-tensor-format", "json")
    output = analyze("sum", *words)
    assert counted(output)


def test_asynchronous_calls(analyze):
    output = analyze("sum", "--async", "--concurrency-range", 8)
    assert "Using asynchronous calls" in output
    assert counted(output)


def test_shapes_of_variable_dimensions(analyze):
    output = analyze("wide", "--shape", "INPUT0:7")
    assert counted(output)


def test_strings(analyze):
    words = ("--shape", "INPUT0:3", "--shape", "INPUT1:3", "--string-length", 20)
    output = analyze("texts", *words)
    assert counted(output)


def test_a_request_rate(analyze):
    output = analyze("sum", "--request-rate-range", 200)
    assert "Request Rate: 200" in output
    assert counted(output)


def test_metrics_are_collected(web, perf_analyzer):
    """Of the metrics it knows only those of GPUs, and says so where there are none."""
    done = perf_analyzer(
        *("-u", web.address, "-m", "sum", "--collect-metrics", "--metrics-interval", 100),
        *("--metrics-url", f"{web.running.metrics_address}/metrics"),
    )
    assert "Server Prometheus Metrics" in done.stdout
    warned = [line for line in done.stderr.splitlines() if line]
    expected = re.compile(r"WARNING: (Unable to parse 'nv_gpu_|Triton metrics endpoint latency )")
    assert all(expected.match(line) for line in warned), warned
    assert counted(done.stdout)
