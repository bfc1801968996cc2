"""What the load generators print is understood, and what they do not print is not guessed."""

from __future__ import annotations

import pytest
from benchmarks.loads import h2load, perf_analyzer, wrk
from benchmarks.loads.program import LoadFailed

WRK = """Running 1s test @ http://127.0.0.1:47475/v2/models/add_sub/infer
  1 threads and 16 connections
  18571 requests in 1.00s, 9.19MB read
Requests/sec:  18480.23
RESULT requests=18571 micros=1004912 bytes=9638349 connect=0 read=1 write=0 status=2 timeout=0 p50=517 p99=5531 p999=7001 max=9002
"""

H2LOAD = """starting benchmark...
Application protocol: h2c

finished in 1.50s, 2666.67 req/s, 3.28MB/s
requests: {total} total, 4016 started, {total} done, {good} succeeded, {bad} failed, 0 errored, 0 timeout
status codes: {good} 2xx, 0 3xx, 0 4xx, {refused} 5xx
traffic: 3.28MB (3434455) total, 262.99KB (269300) headers (space savings 47.37%), 2.48MB ({data}) data
"""

PERF_ANALYZER = """ Successfully read data for 1 stream/streams with 1 step/steps.
Request concurrency: 16
  Client:
    Request count: 14775
    Throughput: 7387.5 infer/sec
    Avg latency: 2089 usec (standard deviation 2558 usec)
    p50 latency: 1722 usec
    p90 latency: 3187 usec
    p99 latency: 7294 usec
  Server:
    Inference count: 14759
Concurrency: 16, throughput: 7387.5 infer/sec, latency 2089 usec
"""


def h2load_text(total=4000, bad=0, refused=0, data=772_000):
    return H2LOAD.format(total=total, good=total - bad, bad=bad, refused=refused, data=data)


def log(count, *, gap_us=1000, took_us=500):
    return [f"{1_000_000 + place * gap_us}\t200\t{took_us}" for place in range(count)]


def test_wrk_summary():
    load = wrk.parse(WRK)
    assert (load.requests, load.p50_us, load.p99_us) == (18571, 517, 5531)
    assert (load.p999_us, load.max_us) == (7001, 9002)
    assert load.per_second == pytest.approx(18480.2, rel=1e-4)
    assert load.errors == {"read": 1, "status": 2}


def test_wrk_without_a_summary_is_a_failure():
    with pytest.raises(LoadFailed, match="no summary"):
        wrk.parse("unable to connect to 127.0.0.1:1 Connection refused")


def test_wrk_script_posts_the_body_with_its_headers():
    script = wrk.script(["/somewhere/body.bin"], {"content-type": "application/json"})
    assert 'wrk.method = "POST"' in script
    assert 'wrk.body = read("/somewhere/body.bin")' in script
    assert 'wrk.headers["content-type"] = "application/json"' in script
    assert "function request()" not in script  # wrk then sends one prepared request


@pytest.mark.parametrize(
    ("bodies", "paths", "listed"),
    [
        (["one"], ["/a", "/b"], '{"one"}, {"/a", "/b"}'),
        (["one", "two"], [], '{"one", "two"}, {}'),
    ],
)
def test_wrk_script_goes_around_several_paths_and_bodies(bodies, paths, listed):
    script = wrk.script(bodies, {}, paths)
    assert f"local bodies, paths = {listed}" in script
    assert "place % #requests + 1" in script


def test_h2load_for_some_seconds():
    load = h2load.parse(h2load_text(), log(100), answer=193)
    assert (load.requests, load.seconds, load.per_second) == (4000, 1.5, 2666.67)
    assert (load.p50_us, load.p99_us) == (pytest.approx(500), pytest.approx(500))
    assert load.errors == {}


def test_h2load_counting_requests_reports_the_steady_rate():
    load = h2load.parse(h2load_text(total=100, data=100), log(100, gap_us=10_000), counted=True)
    assert load.per_second == pytest.approx(100.0, rel=0.05)


def test_h2load_errors_by_kind():
    load = h2load.parse(h2load_text(bad=30, refused=10, data=193 * 3970), log(10), answer=193)
    assert load.errors == {"status": 10, "failed": 20}


def test_h2load_sees_answers_without_a_message():
    """gRPC errors have status 200 and no data."""
    load = h2load.parse(h2load_text(data=193 * 3000), log(10), answer=193)
    assert load.errors == {"wrong size": 1000}


def test_h2load_sees_lost_requests():
    text = h2load_text(total=100, data=0).replace("100 succeeded", "90 succeeded")
    assert h2load.parse(text, log(90), counted=True).errors == {"lost": 10}


def test_h2load_without_a_summary_is_a_failure():
    with pytest.raises(LoadFailed, match="no summary"):
        h2load.parse("invalid URI: http://127.0.0.1:/", [])


def test_h2load_log_lines_that_say_nothing_are_passed_over():
    load = h2load.parse(h2load_text(), ["", "1000000\t200\t-1", *log(4, took_us=40)])
    assert load.p99_us == pytest.approx(40)


def test_a_response_that_was_too_quick_for_perf_analyzer_is_no_failure():
    word = "Failed to update context stat: Timer not set correctly. Send time from 2 to 1.\n"
    assert perf_analyzer.parse(word + PERF_ANALYZER) == perf_analyzer.parse(PERF_ANALYZER)


def test_perf_analyzer_result():
    load = perf_analyzer.parse(PERF_ANALYZER)
    assert (load.requests, load.per_second) == (14775, 7387.5)
    assert (load.p50_us, load.p99_us) == (1722, 7294)
    assert load.seconds == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Thread [0] had error: Output doesn't match expected output", "doesn't match"),
        ("error: Failed to init manager inputs: no such model", "Failed to init"),
        ("", "no result"),
    ],
)
def test_perf_analyzer_failures_say_why(text, words):
    with pytest.raises(LoadFailed, match=words):
        perf_analyzer.parse(text)
