"""The text and the tables, character for character where scripts read them."""

from __future__ import annotations

import csv
import dataclasses
import json

import pytest

from shoal.cli.perf import parse
from shoal.perf import csv_table, export, text
from shoal.perf.chart import curve
from shoal.perf.profiler import Profile
from shoal.perf.server_side import ServerSide


def options(words=""):
    return parse(["-m", "simple", *words.split()])


def settings(words, facts, asynchronous=False):
    made = options(words)
    return list(text.settings(made, facts, made.levels(), asynchronous=asynchronous))


def test_settings(facts):
    assert settings("--concurrency-range 1:3:2 -p 300", facts()) == [
        "*** Measurement Settings ***",
        "  Batch size: 1",
        "  Service Kind: TRITON",
        '  Using "time_windows" mode for stabilization',
        "  Stabilizing using average latency and throughput",
        "  Measurement window: 300 msec",
        "  Latency limit: 0 msec",
        "  Concurrency limit: 3 concurrent requests",
        "  Using synchronous calls for inference",
        "",
    ]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            "--request-rate-range 100:200:100",
            [
                "  Request Rate limit: 200 requests per seconds",
                "  Using uniform distribution on request generation",
            ],
        ),
        (
            "--request-rate-range 100 --request-distribution poisson",
            ["  Using poisson distribution on request generation"],
        ),
        (
            "--concurrency-range 1:8 -l 2 --binary-search",
            ["  Latency limit: 2 msec", "  Using Binary Search algorithm"],
        ),
        (
            "--measurement-mode count_windows --measurement-request-count 20",
            ["  Minimum number of samples in each window: 20"],
        ),
        ("--request-count 30", ["  Sending 30 benchmark requests"]),
        ("--warmup-request-count 10", ["  Sending 10 warmup requests"]),
        ("--percentile 95", ["  Stabilizing using p95 latency and throughput"]),
    ],
)
def test_settings_of_other_kinds(words, lines, facts):
    said = settings(words, facts())
    assert [line for line in said if line in lines] == lines


def test_settings_of_decoupled_models(facts):
    said = settings("-i grpc --streaming", facts(decoupled=True), asynchronous=True)
    assert "  Stabilizing using average throughput" in said
    assert "  Using asynchronous calls for inference" in said
    assert "  Detected decoupled model, using the first response for measuring latency" in said


def test_a_level(facts, result):
    level = result(1, [100] * 100, send_ns=2_000_000, receive_ns=1_000_000)
    assert list(text.level_block(options(), facts(), level)) == [
        "  Client: ",
        "    Request count: 100",
        "    Throughput: 100 infer/sec",
        "    Avg latency: 100 usec (standard deviation 0 usec)",
        "    p50 latency: 100 usec",
        "    p90 latency: 100 usec",
        "    p95 latency: 100 usec",
        "    p99 latency: 100 usec",
        "    Avg HTTP time: 100 usec (send/recv 30 usec + response wait 70 usec)",
        "  Server: ",
        "    Inference count: 100",
        "    Execution count: 50",
        "    Successful request count: 100",
        (
            "    Avg request latency: 100 usec (overhead 40 usec + queue 20 usec + compute input 5 "
            "usec + compute infer 30 usec + compute output 5 usec)"
        ),
        "",
    ]


def test_a_level_over_grpc_with_a_percentile(facts, result):
    level = result(2, [100] * 10, percentile=75, server=False)
    said = list(text.level_block(options("-i grpc -v --percentile 75"), facts(), level))
    assert not any("Avg latency" in line for line in said)
    assert "    p75 latency: 100 usec" in said
    assert "    Avg client overhead: 99.95%" in said
    assert (
        "    Avg gRPC time: 100 usec (marshal 0 usec + response wait 100 usec + unmarshal 0 usec)"
        in said
    )
    assert "  Server: " not in said


def test_a_rate_that_was_not_kept(facts, result):
    level = result(100.0, [100] * 50, delayed=5)
    said = list(text.level_block(options("--request-rate-range 100"), facts(sequences=True), level))
    assert said[2:5] == [
        "    Sequence count: 0 (0 seq/sec)",
        "    Avg send request rate: 50.00 infer/sec",
        (
            "    [WARNING] Perf Analyzer was not able to keep up with the desired request rate. 10.00% "
            "of the requests were delayed. "
        ),
    ]


def test_a_rate_shows_the_tail(facts, result):
    level = result(100.0, [100] * 999 + [70_000])
    said = list(text.level_block(options("--request-rate-range 100"), facts(), level))
    assert said.index("    Max latency: 70000 usec") == said.index("    p99 latency: 100 usec") + 2
    assert "    p99.9 latency: 169 usec" in said


def test_a_decoupled_level(facts, result):
    level = result(1, [100] * 10, responses=30)
    said = list(text.level_block(options("-i grpc --streaming"), facts(decoupled=True), level))
    assert "    Response Throughput: 30 infer/sec" in said
    assert "    " in said  # in place of the line with the client's times


def test_an_ensemble(facts, result, tally):
    composing = {("a", "1"): tally(100), ("b", "2"): tally(100)}
    level = result(1, [100] * 100, composing=composing)
    said = list(text.level_block(options(), facts(ensemble=True), level))
    at = said.index("  Composing models: ")
    assert said[at - 2] == (
        "    Avg request latency: 100 usec (overhead 0 usec + queue 40 usec + compute 80 usec)"
    )
    assert said[at + 1 :] == [
        "  a, version: 1",
        "      Inference count: 100",
        "      Execution count: 50",
        "      Successful request count: 100",
        (
            "      Avg request latency: 100 usec (overhead 40 usec + queue 20 usec + compute input 5 "
            "usec + compute infer 30 usec + compute output 5 usec)"
        ),
        "",
        "  b, version: 2",
        *said[at + 2 : at + 6],
        "",
    ]


def test_a_cache(facts, result, tally):
    level = result(1, [100] * 100)
    level.server = ServerSide(tally(100, hits=50, misses=50))
    said = list(text.level_block(options(), facts(cached=True), level))
    at = said.index("  Server: ")
    assert said[at + 1 :] == [
        "    Inference count: 100",
        "    Execution count: 50",
        "    Cache hit count: 50",
        "    Cache miss count: 50",
        "    Successful request count: 100",
        "    Avg request latency: 100 usec (overhead 64 usec + queue 10 usec + cache hit/miss 26 usec)",
        "      Average Cache Hit Latency: 4 usec",
        (
            "      Average Cache Miss Latency: 48 usec (cache lookup/insertion 8 usec + compute input 5 "
            "usec + compute infer 30 usec + compute output 5 usec)"
        ),
        "",
    ]


def test_the_last_table(result):
    results = [result(3, [200] * 30), result(1, [100] * 10)]
    assert list(text.final_table(options("--percentile 95"), results)) == [
        "Inferences/Second vs. Client p95 Batch Latency",
        "Concurrency: 1, throughput: 10 infer/sec, latency 100 usec",
        "Concurrency: 3, throughput: 30 infer/sec, latency 200 usec",
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1133.9612, "1133.96"), (98.61, "98.61"), (200.0, "200"), (1.5e6, "1500000")],
)
def test_numbers(value, shown):
    assert text.number(value) == shown


def test_a_window_line(result):
    summary = result(1, [100] * 10).summary
    assert text.window_line(2, summary, None) == (
        "  Pass [2] throughput: 10 infer/sec. Avg latency: 100 usec (std 0 usec). "
    )
    assert text.window_line(2, summary, 90).endswith("p90 latency: 100 usec")


# ---- tables


PLAIN = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,"
    "Server Compute Input,Server Compute Infer,Server Compute Output,Client Recv,"
    "p50 latency,p90 latency,p95 latency,p99 latency"
)


def table(tmp_path, words, facts, results):
    path = tmp_path / "t.csv"
    written = csv_table.write(str(path), options(f"-f {path} {words}"), facts, results)
    return path.read_text().splitlines(), written


def test_the_table_by_rising_throughput(tmp_path, facts, result):
    slow = result(8, [200] * 10, send_ns=100_000, receive_ns=200_000)
    lines, _ = table(tmp_path, "", facts(), [result(1, [100] * 100), slow])
    assert lines == [
        PLAIN,
        "8,10,10,110,20,5,30,5,20,200,200,200,200",
        "1,100,0,40,20,5,30,5,0,100,100,100,100",
    ]


def test_more_columns(tmp_path, facts, result):
    lines, _ = table(tmp_path, "--verbose-csv", facts(), [result(1, [100] * 10)])
    assert lines[0] == PLAIN + ",Avg latency,request/response,response wait"
    assert lines[1].endswith(",100,0,100")
    lines, _ = table(
        tmp_path, "--verbose-csv --percentile 75", facts(), [result(1, [100] * 10, percentile=75)]
    )
    assert lines[0].endswith(
        "p75 latency,p90 latency,p95 latency,p99 latency,request/response,response wait"
    )


def test_devices(tmp_path, facts, result):
    level = result(1, [100] * 10)
    level.windows[0].devices = {"Avg GPU Utilization": {"GPU-1": 0.5, "GPU-2": 0.25}}
    lines, _ = table(tmp_path, "--verbose-csv --collect-metrics", facts(), [level])
    assert lines[0].endswith(
        "Avg GPU Utilization,Avg GPU Power Usage,Max GPU Memory Usage,Total GPU Memory"
    )
    assert lines[1].endswith(",GPU-1:0.5;GPU-2:0.25;,,,")


def test_rates_caches_and_decoupled(tmp_path, facts, result):
    level = result(100.0, [100] * 10, responses=30)
    lines, _ = table(
        tmp_path,
        "-i grpc --streaming --request-rate-range 100",
        facts(cached=True, decoupled=True),
        [level],
    )
    head = lines[0].split(",")
    assert head[:3] == ["Request Rate", "Inferences/Second", "Response Throughput"]
    assert head[9:11] == ["Server Cache Hit", "Server Cache Miss"]
    assert lines[1].split(",")[:3] == ["100", "10", "30"]


def test_a_file_for_each_composing_model(tmp_path, facts, result, tally):
    level = result(1, [100] * 100, composing={("a", "1"): tally(100)})
    _, written = table(tmp_path, "", facts(ensemble=True), [level])
    beside = tmp_path / "a_v1.t.csv"
    assert written == [str(tmp_path / "t.csv"), str(beside)]
    with beside.open() as file:
        (row,) = csv.DictReader(file)
    assert row["Network+Server Send/Recv"] == "40"
    assert "p50 latency" not in row


def test_the_export(tmp_path, result):
    path = tmp_path / "export.json"
    export.write(str(path), [result(2, [100] * 5), result(50.0, [100] * 5)])
    document = json.loads(path.read_text())
    first, second = document["experiments"]
    assert first["experiment"] == {"mode": "concurrency", "value": 2}
    assert second["experiment"] == {"mode": "request_rate", "value": 50.0}
    assert len(first["requests"]) == 5
    begin, end = first["window_boundaries"]
    assert end - begin == 10**9
    for request in first["requests"]:
        assert request["response_timestamps"][0] - request["timestamp"] == 100_000
        assert begin <= request["timestamp"] <= end
    assert document["service_kind"] == "triton"


# ---- the curve


def test_a_curve_has_a_star_for_each_level(result):
    results = [result(1, [100] * 10), result(4, [150] * 40), result(16, [900] * 50)]
    lines = curve(options(), Profile(results), 60)
    assert lines[0].startswith("mean latency over throughput")
    assert sum(line.count("*") for line in lines) == 3
    assert all(len(line) <= 60 for line in lines)
    top = next(index for index, line in enumerate(lines) if "*16" in line)
    bottom = next(index for index, line in enumerate(lines) if "*1" in line and "*16" not in line)
    assert top < bottom
    assert curve(options(), Profile(), 60) == []


def test_a_curve_of_nothing_but_zeros(result):
    empty = dataclasses.replace(result(1, []).summary)
    level = result(1, [])
    level.summary = empty
    assert curve(options(), Profile([level]), 40)
