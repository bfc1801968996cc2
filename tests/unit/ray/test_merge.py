from prometheus_client.parser import text_string_to_metric_families

from shoal.ray import merge


def stats(count, last=5, batch=8):
    return {
        "model_stats": [
            {
                "name": "m",
                "version": "1",
                "last_inference": last,
                "inference_count": count,
                "inference_stats": {"success": {"count": count, "ns": 10 * count}},
                "response_stats": {},
                "batch_stats": [{"batch_size": batch, "compute_infer": {"count": 1, "ns": 2}}],
                "memory_usage": [{"type": "CPU", "id": 0, "byte_size": 100}],
                "execution": {"mode": "threads", "reason": "a"},
            }
        ]
    }


def test_statistics_are_added():
    (model,) = merge.statistics([stats(3), stats(4, last=9), stats(0, batch=4)])["model_stats"]
    assert (model["name"], model["version"]) == ("m", "1")
    assert model["last_inference"] == 9
    assert model["inference_count"] == 7
    assert model["inference_stats"]["success"] == {"count": 7, "ns": 70}
    by_size = {one["batch_size"]: one["compute_infer"] for one in model["batch_stats"]}
    assert by_size == {8: {"count": 2, "ns": 4}, 4: {"count": 1, "ns": 2}}
    assert model["memory_usage"] == [{"type": "CPU", "id": 0, "byte_size": 300}]
    assert model["execution"]["mode"] == "threads"


def test_a_version_is_ready_if_it_is_ready_everywhere():
    ready = {"name": "m", "version": "1", "state": "READY"}
    loading = {"name": "m", "version": "1", "state": "LOADING"}
    other = {"name": "n", "version": "1", "state": "READY"}
    assert merge.index([[ready, other], [ready]]) == [ready, other]
    (found, _) = merge.index([[ready, other], [loading], [ready]])
    assert found == {**loading, "reason": "ready on 2 of 3 replicas"}


TEXT = """\
# HELP a Some
# TYPE a counter
a{model="x"} 1
# HELP h Hist
# TYPE h histogram
h_bucket{le="1"} 2
h_bucket{le="+Inf"} 2
h_sum 3
h_count 2
"""


def test_metrics_have_the_replica_as_a_label():
    text = merge.metrics({"r1": TEXT, "r2": TEXT})
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert [s.labels for s in families["a"].samples] == [
        {"replica": "r1", "model": "x"},
        {"replica": "r2", "model": "x"},
    ]
    assert families["h"].type == "histogram"
    assert len(families["h"].samples) == 8
    assert merge.metrics({}) == ""


def test_the_console_has_a_row_for_each_replica():
    def state(count, share, ready):
        return {
            "server": {"name": "triton", "started_ms": count, "ready": ready, "in_flight": 1},
            "time_ns": 5,
            "time_ms": 6,
            "duration_edges_ns": [1, 2],
            "batch_size_edges": [1],
            "models": [
                {"name": "m", "version": "1", "success": count, "histograms": {"q": [1, 2]}}
            ],
            "machine": {"cpu_utilization": share, "process_cpu_secs": 2.0, "cores": 4},
            "gpus": [],
            "errors": [{"time_ms": -count, "text": "e"}],
        }

    found = merge.console({"a": state(3, None, True), "b": state(4, 0.5, False)})
    assert found["models"] == [
        {"name": "m", "version": "1", "success": 7, "histograms": {"q": [2, 4]}}
    ]
    assert found["server"]["ready"] is False
    assert found["server"]["in_flight"] == 2
    assert found["duration_edges_ns"] == [1, 2]
    assert [one["name"] for one in found["machine"]["processes"]] == ["replica-a", "replica-b"]
    assert found["machine"]["cpu_utilization"] == 0.25
    assert [one["time_ms"] for one in found["errors"]] == [-4, -3]
    assert merge.console({}) == {}
