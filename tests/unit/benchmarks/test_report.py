"""Claims are judged by the measurements and by nothing else; the report shows what is there."""

from __future__ import annotations

import json

from benchmarks.claims import Claim, judge
from benchmarks.measures import Measurement
from benchmarks.report import as_json, markdown, merged


def record(peer, per_second, cpu_us, *, workload="W1", tool="wrk", protocol="http", concurrency=16):
    return Measurement(
        workload, peer, tool, protocol, concurrency, 0, 10, per_second, 900.0, 2000.0, cpu_us, 70.0
    ).record()


def verdicts(records):
    return {claim.sentence: claim.verdict for claim in judge(records)}


def workload(name, title, commit="abc"):
    taken = {"when": "then", "commit": commit}
    return {"name": name, "title": title, "compute_bound": False, "taken": taken}


def run_of(records, **more):
    return {
        "machine": {
            "when": "now",
            "cpu": "a CPU",
            "cores": 2,
            "memory_gb": 25,
            "system": "Linux",
            "python": "3.11",
            "load_average": 0.1,
            "commit": "abc",
        },
        "turns": 1,
        "command": "python -m benchmarks",
        "workloads": [workload("W1", "tiny")],
        "peers": {
            name: {"title": name.title(), "settings": "as it is", "versions": {name: "1.0"}}
            for name in ("shoal", "triton")
        },
        "tools": {"wrk": "4.1"},
        "measurements": records,
        "growth": {},
        "left_out": [],
        **more,
    }


def test_workloads_of_an_earlier_run_are_kept_but_never_mixed():
    tiny, large = workload("W1", "tiny"), workload("W4", "large", "old")
    first = [record("shoal", 10, 1.0), record("shoal", 20, 1.0, workload="W4")]
    again = [record("shoal", 30, 1.0)]
    earlier = run_of(
        first,
        workloads=[tiny, large],
        growth={"a": 1},
        left_out=[{"peer": "x", "workload": "W1 wrk", "reason": "old"}],
    )
    both = merged(earlier, run_of(again, workloads=[tiny], command="python -m benchmarks --keep"))
    assert [one["name"] for one in both["workloads"]] == ["W1", "W4"]
    assert [(one["workload"], one["per_second"]) for one in both["measurements"]] == [
        ("W4", 20),
        ("W1", 30),
    ]
    written = markdown({**both, "growth": {}}, [])
    assert written.count("From an earlier run") == 1
    assert "## W4: large\n\nFrom an earlier run: then, commit `old`." in written
    assert both["growth"] == {"a": 1}
    assert both["left_out"] == []
    assert both["command"] == "python -m benchmarks, then python -m benchmarks --keep"


def test_a_claim_holds_fails_or_was_not_measured():
    assert Claim("", 3.0, 2.5).verdict == "yes"
    assert Claim("", 2.0, 2.5).verdict == "no"
    assert Claim("", 0.2, 0.3, at_least=False).verdict == "yes"
    assert Claim("", None, 2.5).verdict == "not measured"


def test_nothing_measured_means_nothing_claimed():
    assert set(verdicts([]).values()) == {"not measured"}


def test_triton_is_compared_under_perf_analyzer():
    said = verdicts(
        [
            record("shoal", 300.0, 20.0, tool="perf_analyzer"),
            record("triton", 100.0, 100.0, tool="perf_analyzer"),
        ]
    )
    where = "W1, http, 16 clients (perf_analyzer)"
    assert said[f"{where}: throughput over Triton's Python backend"] == "yes"
    assert said[f"{where}: CPU per request over Triton's"] == "yes"


def test_the_closest_peer_decides_and_is_named():
    records = [record("shoal", 300.0, 1.0), record("mosec", 200.0, 1.0), record("ray", 1.0, 1.0)]
    claim = next(one for one in judge(records) if "(mosec)" in one.sentence)
    assert (claim.measured, claim.verdict) == (1.5, "no")


def test_the_limit_and_the_best_peer_count_for_compute_bound_models():
    here = {"workload": "W3", "tool": "h2load", "concurrency": 8}
    said = verdicts(
        [
            record("shoal", 96.0, 1.0, **here),
            record("mosec", 90.0, 1.0, **here),
            record("onnxruntime", 100.0, 1.0, workload="W3", tool="loop", protocol="none"),
        ]
    )
    assert said["W3, http: share of the plain loop"] == "yes"
    assert said["W3, http: throughput over the best peer"] == "yes"
    assert said["W3, grpc: share of the plain loop"] == "not measured"


def test_large_tensors_have_a_bar_in_microseconds():
    said = verdicts([record("shoal", 1.0, 301.0, workload="W4")])
    assert said["W4, http (wrk): server CPU us per request"] == "no"


def test_many_models_are_compared_with_one_without_batching():
    records = [
        record("shoal", 10, 45.0, workload="models-1-alone"),
        record("onnxruntime", 10, 5.0, workload="models-1-alone", tool="loop"),
        record("shoal", 10, 52.0, workload="models-100"),
        record("onnxruntime", 10, 6.0, workload="models-100", tool="loop"),
        record("shoal", 10, 80.0, workload="models-1000"),
        record("onnxruntime", 10, 12.0, workload="models-1000", tool="loop"),
    ]
    ours = "server CPU per request without ONNX Runtime's, over that of one model without batching"
    found = verdicts(records)
    assert found[f"models-100: {ours}"] == "yes"  # 46 to 40
    assert found[f"models-1000: {ours}"] == "no"  # 68 to 40
    assert verdicts(records[1:])[f"models-100: {ours}"] == "not measured"


def test_the_report_compares_within_a_table_and_names_what_is_missing():
    records = [record("shoal", 20_000.0, 30.0), record("triton", 5_000.0, 120.0)]
    reason = "pip: no matching\ndistribution"
    left_out = [{"peer": "ray_serve", "workload": "all", "reason": reason}]
    text = markdown(run_of(records, left_out=left_out), ["x-W1.png", "x-growth.png"])
    assert "| **Shoal** | 20,000 | 0.90 | 2.00 | 30.0 | 0 | 70.0 |  |  |" in text
    assert "| Triton | 5,000 | 0.90 | 2.00 | 120 | 0 | 70.0 | 4.00 | 0.25 |" in text
    assert "- **ray_serve**, all: pip: no matching distribution" in text
    assert "![x-W1.png](x-W1.png)" in text
    assert "x-growth.png" not in text  # nothing grew in this run


def test_the_json_has_one_measurement_a_line_and_loses_nothing():
    run = run_of([record("shoal", 1.0, 2.0), record("triton", 3.0, 4.0)])
    text = as_json(run)
    assert json.loads(text) == run
    assert sum('"per_second"' in line for line in text.splitlines()) == 2


def test_the_report_shows_how_cost_grows():
    figures = {"per_second": 9_000.0, "cpu_us": 40.0, "p99_us": 1500.0, "errors": 0.0}
    growth = {
        "connections http 512": figures,
        "models each 100": figures,
        "idle grpc": {"bytes_per_connection": 5_750.0, "connections": 1000.0},
    }
    text = markdown(run_of([], growth=growth), ["x-growth.png"])
    assert "| http, 512 | 9,000 | 40.0 | 1.50 | 0 |" in text
    assert "| 100, one request to each in turn | 9,000 |" in text
    assert "An idle gRPC connection uses **5.8 KB** (over 1,000 connections)." in text
    assert "![x-growth.png](x-growth.png)" in text


def test_a_workload_shows_the_figures_that_it_has():
    slow = {**record("shoal", 30, 1.0), "p999_us": 4000.0, "max_us": 9000.0}
    written = markdown(run_of([slow]), [])
    assert "| p99 ms | p99.9 ms | maximum ms | server CPU" in written
    assert "| 2.00 | 4.00 | 9.00 |" in written
    assert "p99.9 ms" not in markdown(run_of([record("shoal", 30, 1.0)]), [])


def test_goals_against_the_cpp_backend_and_for_tails():
    records = [
        record("shoal", 300, 1.0, workload="JSON", concurrency=64),
        record("triton-onnx", 100, 1.0, workload="JSON", concurrency=64),
        {**record("shoal", 5, 1.0, workload="tails", tool="open_loop"), "p999_us": 6000.0},
    ]
    found = verdicts(records)
    assert found["JSON, http, 64 clients (wrk): throughput over Triton's C++ backend"] == "yes"
    assert found["tails, http, 70 % of the peak rate (open_loop): p99.9 in ms"] == "no"
    assert "the closest Python peer" in "".join(found)  # which the C++ server is not
    assert "triton-onnx" not in "".join(found)


def test_workloads_keep_their_order_when_runs_are_merged():
    earlier = run_of([], workloads=[workload("W1", "tiny")])
    both = merged(earlier, run_of([], workloads=[workload("JSON", "tiny, JSON")]))
    assert [one["name"] for one in both["workloads"]] == ["W1", "JSON"]
