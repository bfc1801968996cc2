"""NVIDIA's perf_analyzer over HTTP: it ends well, and finds the server's own numbers in order.

Windows are short and the bounds for a stable result wide: whether a busy machine gives steady
numbers is not what is tested here. A fixed number of requests is asked for with synchronous calls
alone, because its asynchronous ones do not always notice that they are done.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess

import pytest

pytestmark = pytest.mark.perf_analyzer

COUNTED = re.compile(
    r"Server: \n"
    r"    Inference count: (\d+)\n"
    r"    Execution count: (\d+)\n"
    r"    Successful request count: (\d+)\n"
    r"    Avg request latency: (\d+) usec \(overhead (\d+) usec \+ queue (\d+) usec \+ "
    r"compute input (\d+) usec \+ compute infer (\d+) usec \+ compute output (\d+) usec\)"
)
WINDOWS = ("-p", "200", "-s", "999", "-r", "10")  # any three windows, whatever they say


def analyze(address, model, *words):
    """Its output, after checking that it ended well and warned about nothing."""
    done = subprocess.run(
        ["perf_analyzer", "-i", "http", "-u", address, "-m", model, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def counted(output):
    """Inferences, executions and requests of each `Server:` block, with sound times."""
    blocks = [tuple(map(int, found)) for found in COUNTED.findall(output)]
    assert blocks, f"no server-side numbers in:\n{output}"
    for inferences, executions, requests, total, *parts in blocks:
        assert 0 < executions <= requests <= inferences
        assert total > 0
        assert abs(total - sum(parts)) <= len(parts), "the parts do not add up"
    return [block[:3] for block in blocks]


def test_a_stable_result_at_several_levels(web, tmp_path):
    table = tmp_path / "table.csv"
    output = analyze(web.address, "sum", *WINDOWS, "--concurrency-range", "1:5:4", "-f", table)
    assert len(counted(output)) == 2
    assert "Failed to obtain stable measurement" not in output
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["Concurrency"] for row in rows} == {"1", "5"}
    for row in rows:
        assert float(row["Inferences/Second"]) > 0
        for name in ("Queue", "Compute Input", "Compute Infer", "Compute Output"):
            assert int(row[f"Server {name}"]) >= 0


def test_rows_and_data_of_its_own(web, tmp_path):
    data = tmp_path / "data.json"
    steps = [{"INPUT0": [i] * 16, "INPUT1": list(range(16))} for i in range(5)]
    outputs = [
        {"OUTPUT0": [i + j for j in range(16)], "OUTPUT1": [i - j for j in range(16)]}
        for i in range(5)
    ]
    data.write_text(json.dumps({"data": steps, "validation_data": outputs}))
    output = analyze(web.address, "sum", "-b", 1, "--input-data", data, "--request-count", 50)
    assert "5 step/steps" in output
    assert counted(output)
    data.write_text(json.dumps({"data": steps}))
    output = analyze(web.address, "sum", "-b", 4, "--input-data", data, *WINDOWS)
    for inferences, _, requests in counted(output):
        assert inferences == 4 * requests


def test_json_tensors(web):
    output = analyze(
        web.address,
        "sum",
        *("--input-tensor-format", "json", "--output-tensor-format", "json"),
        *WINDOWS,
    )
    assert counted(output)


def test_asynchronous_calls(web):
    output = analyze(web.address, "sum", *WINDOWS, "--async", "--concurrency-range", 8)
    assert "Using asynchronous calls" in output
    assert counted(output)


def test_shapes_of_variable_dimensions(web):
    output = analyze(web.address, "wide", "--shape", "INPUT0:7", *WINDOWS)
    assert counted(output)


def test_strings(web):
    output = analyze(
        web.address,
        "texts",
        *("--shape", "INPUT0:3", "--shape", "INPUT1:3", "--string-length", 20),
        *WINDOWS,
    )
    assert counted(output)


def test_a_request_rate(web):
    output = analyze(web.address, "sum", *WINDOWS, "--request-rate-range", 200)
    assert "Request Rate: 200" in output
    assert counted(output)


def test_metrics_are_collected(web):
    """Of the metrics it knows only those of GPUs, and says so where there are none."""
    done = subprocess.run(
        [
            *("perf_analyzer", "-u", web.address, "-m", "sum", *WINDOWS, "--collect-metrics"),
            *("--metrics-url", f"{web.running.metrics_address}/metrics"),
            *("--metrics-interval", "100"),
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Server Prometheus Metrics" in done.stdout
    warned = [line for line in done.stderr.splitlines() if line]
    expected = re.compile(r"WARNING: (Unable to parse 'nv_gpu_|Triton metrics endpoint latency )")
    assert all(expected.match(line) for line in warned), warned
    assert counted(done.stdout)
