"""`shoal perf` against a real server: every kind of load, model and report."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from shoal.plan.report import read_report

PROTOCOLS = ("http", "grpc")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_range(measure, protocol, tmp_path):
    table = tmp_path / "t.csv"
    printed = measure(f"-m sum --concurrency-range 1:5:2 -f {table} -v", protocol)
    assert printed.out.count("Request concurrency: ") == 3
    assert printed.out.count("  Pass [") == 9
    assert printed.out.count("  Server: ") == 3
    assert "Inferences/Second vs. Client Average Batch Latency\nConcurrency: 1, " in printed.out
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["Concurrency"] for row in rows} == {"1", "3", "5"}
    rates = [float(row["Inferences/Second"]) for row in rows]
    assert rates == sorted(rates)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_exactly_so_many_requests(measure, running, protocol):
    before = running.statistics("sum")["inference_count"]
    printed = measure(
        "-m sum --request-count 37 --concurrency-range 4 -b 2", protocol, windows=False
    )
    assert printed.number("Request count") == 37
    assert printed.number("Inference count") == 74
    assert running.statistics("sum")["inference_count"] - before == 74


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_several_processes_share_a_load(measure, running, protocol):
    printed = measure(
        "-m sum --request-count 41 --concurrency-range 4 --workers 2", protocol, windows=False
    )
    assert printed.number("Request count") == 41
    assert printed.number("Successful request count") == 41


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("distribution", ["constant", "poisson"])
def test_rates(measure, protocol, distribution, tmp_path):
    table = tmp_path / "t.csv"
    printed = measure(
        f"-m sum --request-rate-range 300:400:100 --request-distribution {distribution} -f {table}",
        protocol,
    )
    assert "Request Rate: 400 inference requests per seconds" in printed.out
    with table.open() as file:
        assert {row["Request Rate"] for row in csv.DictReader(file)} == {"300", "400"}


def test_intervals_of_a_file(measure, tmp_path):
    file = tmp_path / "intervals"
    file.write_text("1000\n3000\n")
    printed = measure(f"-m sum --request-intervals {file}")
    assert "Request Rate: 500, throughput: " in printed.out


def test_a_limit_that_is_never_met(measure):
    printed = measure("-m sum --concurrency-range 1:4 -l 0.001")
    assert "Measured latency went over the set limit of 0.001 msec." in printed.err
    assert "no level met the limit: at a concurrency of 1, the lowest of the range" in printed.err
    assert "Inferences/Second vs." not in printed.out


def test_a_binary_search_up_to_the_end(measure):
    printed = measure("-m sum --concurrency-range 1:4 -l 60000 --binary-search")
    assert "Concurrency: 4, throughput" in printed.out
    assert printed.out.count("Request concurrency: ") == 2


def test_measurements_that_do_not_settle(measure):
    words = "--measurement-mode count_windows --measurement-request-count 5 -s 0 -r 4"
    printed = measure(f"-m sum {words}", code=2, windows=False)
    assert "Failed to obtain stable measurement within 4 measurement windows" in printed.err


def test_the_older_flags(measure):
    printed = measure("-m sum -t 1 -d -c 2 -l 60000 -z")
    assert "Concurrency: 2, throughput" in printed.out
    assert "-t is an older name" in printed.err


# ---- kinds of models


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        ("http", "--concurrency-range 3"),
        ("grpc", "--concurrency-range 3"),
        ("grpc", "--concurrency-range 3 --streaming"),
        ("grpc", "--request-rate-range 500 --num-of-sequences 3"),
        ("http", "--concurrency-range 2 --sequence-id-range 100:102 --workers 2"),
    ],
)
def test_sequences(measure, running, protocol, words):
    printed = measure(f"-m total --sequence-length 5 {words}", protocol)
    assert "Sequence count: " in printed.out
    assert "Stabilizing using average throughput" in printed.out
    failed = running.statistics("total")["inference_stats"]["fail"]["count"]
    assert failed == 0, "a sequence was not started, or its id was used by two"


def test_sequences_end_when_a_run_ends(measure, running):
    measure("-m total --sequence-length 1000 --concurrency-range 4", "grpc")
    # Four slots: were the first four sequences still open, these would wait for the idle timeout.
    printed = measure("-m total --sequence-length 1000 --concurrency-range 4", "grpc")
    assert printed.number("Request count") >= 60


def test_sequences_of_given_data(measure, tmp_path):
    data = tmp_path / "data.json"
    streams = [[{"INPUT": [n]} for n in range(3)], [{"INPUT": [n]} for n in range(5)]]
    data.write_text(json.dumps({"data": streams}))
    printed = measure(f"-m total --input-data {data} --request-count 16", windows=False)
    assert "Successfully read data for 2 stream/streams with 8 step/steps." in printed.out
    assert "Sequence count: 4 " in printed.out


def test_an_ensemble_and_a_cache(measure, tmp_path):
    table = tmp_path / "t.csv"
    printed = measure(f"-m both -f {table}")
    assert "  Composing models: \n  sum, version: 1\n" in printed.out
    assert "Average Cache Hit Latency" in printed.out
    assert (tmp_path / "sum_v1.t.csv").exists()
    assert (tmp_path / "cached_v1.t.csv").exists()
    assert "Server Cache Hit" in table.read_text()


def test_a_decoupled_model(measure):
    printed = measure("-m repeat --streaming --concurrency-range 2", "grpc")
    rates = printed.number("    Throughput"), printed.number("Response Throughput")
    assert rates[1] == pytest.approx(3 * rates[0], rel=0.01)  # printed with few digits
    assert "needs a stream: add -i grpc --streaming" in measure("-m repeat", code=99).err


def test_the_export_has_every_response(measure, tmp_path):
    path = tmp_path / "export.json"
    measure(f"-m repeat --streaming --profile-export-file {path}", "grpc")
    (experiment,) = json.loads(path.read_text())["experiments"]
    for request in experiment["requests"]:
        moments = request["response_timestamps"]
        assert len(moments) == 3
        assert request["timestamp"] < moments[0]
        assert moments == sorted(moments)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shared_memory(measure, running, protocol):
    printed = measure("-m sum --shared-memory system -b 3", protocol)
    assert printed.number("Request count") >= 60
    assert printed.number("Inference count") == 3 * printed.number("Successful request count") > 0
    assert running.get("/v2/systemsharedmemory/status").json == []


# ---- data and requests


def test_data_of_steps_with_the_right_answers(measure, tmp_path):
    data = tmp_path / "data.json"
    one, two = list(range(16)), [2] * 16
    right = {"OUTPUT0": [n + 2 for n in one], "OUTPUT1": [n - 2 for n in one]}
    document = {"data": [{"INPUT0": one, "INPUT1": two}], "validation_data": [right]}
    data.write_text(json.dumps(document))
    measure(f"-m sum --input-data {data}")
    right["OUTPUT1"][3] = 99
    data.write_text(json.dumps(document))
    printed = measure(f"-m sum --input-data {data}", code=99)
    assert "step 0: output 'OUTPUT1' differs from validation_data" in printed.err


def test_a_folder_of_data(measure, tmp_path):
    for name in ("INPUT0", "INPUT1"):
        (tmp_path / name).write_bytes(np.arange(16, dtype=np.int32).tobytes())
    measure(f"-m sum --data-directory {tmp_path}")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shapes_and_texts(measure, protocol):
    measure("-m wide --shape INPUT0:7 -b 2", protocol)
    measure("-m texts --string-length 5", protocol)
    measure("-m texts --string-data hello", protocol)


def test_tensors_in_json(measure):
    measure("-m sum --input-tensor-format json --output-tensor-format json")


@pytest.mark.parametrize("kind", ["gzip", "deflate"])
def test_compressed_requests(measure, kind):
    measure(f"-m sum --grpc-compression-algorithm {kind}", "grpc")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_large_tensors(measure, protocol):
    measure(
        "-m wide --shape INPUT0:200000 --concurrency-range 3 --request-count 12",
        protocol,
        windows=False,
    )


def test_headers_parameters_and_warm_up(measure):
    words = "-m sum -H team:vision --request-parameter depth:3:int --warmup-request-count 15 -x 1"
    assert "Sending 15 warmup requests" in measure(words, "grpc").out


# ---- reports


def test_every_report(measure, tmp_path):
    page, export, table = (tmp_path / name for name in ("p.html", "e.json", "t.csv"))
    measure(
        f"-m sum --concurrency-range 1:2 --report {page} --profile-export-file {export} "
        f"-f {table} --verbose-csv"
    )
    assert "Where the time went" in page.read_text()
    experiments = json.loads(export.read_text())["experiments"]
    assert [each["experiment"]["value"] for each in experiments] == [1, 2]
    assert all(len(each["requests"]) >= 60 for each in experiments)
    assert "response wait" in table.read_text()
    in_export, in_table = (read_report(str(path)).levels for path in (export, table))
    for one, other in zip(in_export, sorted(in_table, key=lambda row: row.name), strict=True):
        assert one.name == other.name
        assert one.rate == pytest.approx(other.rate, rel=0.01)
        assert one.p99_ms == pytest.approx(other.p99_ms, rel=0.01)


def test_metrics_of_the_server(measure, running, tmp_path):
    table = tmp_path / "t.csv"
    words = f"-m sum -f {table} --verbose-csv --collect-metrics --metrics-interval 10"
    measure(f"{words} --metrics-url {running.metrics_address}/metrics")
    assert "Avg GPU Utilization" in table.read_text()
    printed = measure(f"{words} --metrics-url 127.0.0.1:1/metrics", code=99)
    assert "set their address with --metrics-url" in printed.err


# ---- wrong uses


def test_no_server_there(capsys):
    from shoal.cli import perf

    assert perf.run(["-m", "sum", "-u", "127.0.0.1:1"]) == 99
    assert "no server answers at 127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_unknown_model(measure, protocol):
    printed = measure("-m summ", protocol, code=99)
    assert "has no model 'summ' to measure" in printed.err
    assert "models that are ready: both, broken, cached, repeat, sum," in printed.err


def test_the_wrong_port(measure, running, capsys):
    from shoal.cli import perf

    assert perf.run(["-m", "sum", "-u", running.http_address, "-i", "grpc"]) == 99
    assert "does not speak gRPC" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-m wide", "--shape INPUT0:1"),
        ("-m sum -b 9", "takes batches of at most 8, -b asks for 9"),
        ("-m sum -x 7", "model 'sum' version 7"),
        ("-m sum --input-data nowhere.json", "no such file or folder"),
        (
            "-m total --concurrency-range 4 --sequence-id-range 1:3",
            "2 ids for 4 concurrent sequences",
        ),
    ],
)
def test_what_does_not_fit_the_model(measure, words, said):
    assert said in measure(words, code=99).err


@pytest.mark.parametrize(
    ("protocol", "words"), [("http", ""), ("grpc", ""), ("grpc", "--streaming")]
)
def test_requests_that_the_server_refuses(measure, protocol, words):
    printed = measure(f"-m broken --concurrency-range 3 {words}", protocol, code=99)
    assert "the server refused a request" in printed.err
    assert "out of order" in printed.err


def test_windows_before_the_server_stops_answering_are_reported(measure):
    windows = "--measurement-mode count_windows --measurement-request-count 20 -s 0.000001 -r 1000"
    printed = measure(f"-m tired {windows}", code=99, windows=False)
    assert "Before the load ended (" in printed.out
    assert printed.number("Request count") >= 20
    assert "the server refused a request" in printed.err
    assert "tired" in printed.err


@pytest.mark.parametrize("running", ["grpcio"], indirect=True)
@pytest.mark.parametrize(
    "words",
    [
        "-m sum --concurrency-range 8",
        "-m sum --concurrency-range 8 --streaming",
        "-m wide --shape INPUT0:200000 --concurrency-range 3",
        "-m wide --shape INPUT0:200000 --concurrency-range 3 --streaming",
        "-m repeat --streaming",
        "-m sum --shared-memory system",
    ],
)
def test_the_other_grpc_transport(measure, words):
    assert measure(words, "grpc").number("Request count") >= 60
