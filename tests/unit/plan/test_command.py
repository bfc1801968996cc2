"""`shoal plan`: reports of perf and perf_analyzer in, a plan or one line of error out."""

from __future__ import annotations

import json

import pytest

from shoal.cli.main import main

TABLE = """\
Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,p50 latency,p99 latency,Avg latency,Max GPU Memory Usage
1,200,5,10,1,4000,9000,5000,GPU-a:1048576;GPU-b:2097152;
4,400,5,10,1,5000,16000,9000,GPU-a:4194304;GPU-b:2097152;
8,500,5,10,1,9000,46000,19000,
"""


@pytest.fixture
def run(tmp_path, capsys):
    def call(text, *words):
        report = tmp_path / "report"
        report.write_text(text, encoding="utf-8")
        code = main(["plan", str(report), *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def export(*experiments):
    """What --profile-export-file writes: `(mode, requests a second, latencies in ms)`."""
    made = []
    for mode, value, latencies in experiments:
        starts = [int(index / value * 1e9) for index in range(len(latencies) + 1)]
        made.append(
            {
                "experiment": {"mode": mode, "value": value},
                "requests": [
                    {"timestamp": start, "response_timestamps": [start + int(ms * 1e6), 10**15]}
                    for start, ms in zip(starts, latencies, strict=False)
                ],
                "window_boundaries": [0, starts[-1] // 2, starts[-1]],
            }
        )
    return json.dumps({"experiments": made, "version": "0", "service_kind": "triton"})


def test_a_table_becomes_a_plan(run):
    words = ("--rate", "1000", "--p99-ms", "31", "--headroom", "0", "--price-per-hour", "0.5")
    code, out, err = run(TABLE, *words, "--memory-mb", "100")
    assert (code, err) == (0, "")
    assert "replicas      4: 3 for the load, 1 spare" in out
    assert "450 inferences/s within the target, between concurrency 4 and concurrency 8" in out
    assert "memory        400 MB: 4 x 100 MB" in out
    assert "GPU memory    24 MB: 4 x 6 MB" in out
    assert "2.00 per hour, 1,460 per month" in out
    assert "0% of a replica's capacity stays unused" in out
    assert "Independent clients see a higher p99" in out


def test_json_has_the_same_figures(run):
    words = ("--rate", "1000", "--p99-ms", "31", "--headroom", "0", "--price-per-hour", "0.5")
    code, out, _ = run(TABLE, *words, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["replicas"] == 4
    assert document["replica"]["capacity"] == pytest.approx(450)
    assert document["total"]["cost_per_month"] == pytest.approx(1460)
    assert document["total"]["memory_mb"] is None
    assert document["levels"][0]["name"] == "concurrency 1"


def test_an_export_becomes_a_plan(run):
    slow = [2.0] * 990 + [30.0] * 10
    text = export(("request_rate", 100, [2.0] * 100), ("request_rate", 1000.0, slow))
    code, out, _ = run(text, "--rate", "900", "--p99-ms", "50")
    assert code == 0
    assert "1,000 requests/s within the target, as measured at request rate 1000" in out
    assert "Only 100 requests were measured at request rate 100" in out
    assert "Independent clients" not in out


def test_memory_comes_from_a_page_of_metrics(run, tmp_path):
    page = tmp_path / "metrics"
    page.write_text(
        "# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes 209715200\n"
        'nv_gpu_memory_used_bytes{gpu_uuid="a"} 1048576\n'
    )
    code, out, _ = run(
        TABLE.replace("Max GPU", "Other"), "--rate", "1", "--p99-ms", "31", "--metrics", str(page)
    )
    assert code == 0
    assert "400 MB: 2 x 200 MB" in out
    assert "GPU memory    2 MB: 2 x 1 MB" in out


def test_a_target_that_is_missed_has_its_own_exit_code(run):
    code, out, err = run(TABLE, "--rate", "1", "--p99-ms", "5")
    assert (code, out) == (2, "")
    assert "more replicas do not help" in err


@pytest.mark.parametrize(
    ("text", "words", "error"),
    [
        ("a,b\n1,2\n", (), "is no table of measurements: it needs the columns"),
        ("", (), "is no table of measurements"),
        ("Concurrency,Inferences/Second\n1,2\n", (), "has no column 'p99 latency'"),
        ("Concurrency,Inferences/Second,p99 latency\n", (), "has no rows"),
        (
            "Concurrency,Inferences/Second,p99 latency\n1,0,5\n",
            (),
            "line 2: 'Inferences/Second' must be a number above 0, found '0'",
        ),
        ("Concurrency,Inferences/Second,p99 latency\n1,5\n", (), "found 'None'"),
        ('{"experiments": 3}', (), "is JSON, but no export of measurements"),
        ('{"experiments": []}', (), "has no level with requests"),
        (export(("concurrency", 1, [])), (), "has no level with requests"),
        (TABLE, ("--headroom", "1"), "expected a number from 0 to 0.95, found '1'"),
        (TABLE, ("--rate", "nan"), "expected a number above 0, found 'nan'"),
        (TABLE, ("--metrics", "x", "--memory-mb", "1"), "are alternatives"),
        (TABLE, ("--metrics", "/no/such/file"), "--metrics=/no/such/file cannot be read"),
        (TABLE, ("--metrics", "README.md"), "has no process_resident_memory_bytes"),
    ],
)
def test_what_cannot_be_planned_is_one_line(run, text, words, error, monkeypatch, root):
    monkeypatch.chdir(root)
    code, out, err = run(text, "--rate", "1", "--p99-ms", "100", *words)
    assert (code, out) == (1, "")
    assert error in err
    assert err.count("\n") == 1


def test_a_missing_report_names_the_command_that_writes_one(capsys):
    assert main(["plan", "nothing.csv", "--rate", "1", "--p99-ms", "1"]) == 1
    assert "write it with `shoal perf -f FILE.csv`" in capsys.readouterr().err


def test_help(capsys):
    assert main(["plan"]) == 0
    assert capsys.readouterr().out.startswith("usage: shoal plan REPORT")
