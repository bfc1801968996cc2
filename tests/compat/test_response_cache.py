"""The response cache with NVIDIA's own clients, over both protocols."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from shoal.config.options import NamedSetting
from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.repositories import add_onnx

CACHED = "max_batch_size: 8 dynamic_batching { } response_cache { enable: true }\n"
LABELLED = """
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" }
"""
_numbers = iter(range(1, 1_000_000))


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    add_onnx(folder, "sum", onnx_models.add_sub("INT32"), CACHED)
    add_onnx(folder, "plain", onnx_models.add_sub("INT32"), "max_batch_size: 8")
    add_onnx(folder, "texts", onnx_models.identity("BYTES"), CACHED)
    labels = {"labels.txt": b"kraken\nwhale\neel\n"}
    scores = onnx_models.identity("FP32", dims=(4,))
    add_onnx(folder, "scores", scores, CACHED + LABELLED, files=labels)
    add_onnx(folder, "large", onnx_models.identity("FP32"), CACHED)
    with running_server(folder, cache_config=(NamedSetting("local", "size", "8M"),)) as running:
        yield running


@pytest.fixture
def row():
    """A row of numbers that no other test has asked for."""
    return np.arange(16, dtype=np.int32).reshape(1, 16) + 1000 * next(_numbers)


def inputs_of(kit, *rows):
    tensors = [kit.InferInput(f"INPUT{n}", list(row.shape), "INT32") for n, row in enumerate(rows)]
    for tensor, row in zip(tensors, rows, strict=True):
        tensor.set_data_from_numpy(row)
    return tensors


class Counts:
    """What a model's statistics said more since this was made."""

    def __init__(self, running, model):
        self._running, self._model = running, model
        self._before = self._read()

    def _read(self):
        entry = self._running.statistics(self._model)
        counts = {name: stat["count"] for name, stat in entry["inference_stats"].items()}
        return counts | {name: entry[name] for name in ("inference_count", "execution_count")}

    def __call__(self, *names):
        now = self._read()
        return tuple(now[name] - self._before[name] for name in names)


def test_a_repeated_request_is_not_executed(running, client, kit, row):
    counts = Counts(running, "sum")
    for _ in range(4):
        answer = client.infer("sum", inputs_of(kit, row, row), request_id="x")
        np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), 2 * row)
        np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), 0 * row)
    assert counts("success", "queue", "cache_hit", "cache_miss") == (4, 4, 3, 1)
    assert counts("compute_input", "compute_infer", "compute_output") == (1, 1, 1)
    assert counts("inference_count", "execution_count") == (1, 1)


def test_protocols_share_cached_responses(running, row):
    with (
        httpclient.InferenceServerClient(running.http_address) as over_http,
        grpcclient.InferenceServerClient(running.grpc_address) as over_grpc,
    ):
        first = over_http.infer("sum", inputs_of(httpclient, row, row))
        counts = Counts(running, "sum")
        second = over_grpc.infer("sum", inputs_of(grpcclient, row, row))
        binary = httpclient.InferRequestedOutput("OUTPUT0", binary_data=False)
        third = over_http.infer("sum", inputs_of(httpclient, row, row), outputs=[binary])
    assert counts("cache_hit", "cache_miss") == (1, 1)  # the third asked for less
    for answer in (second, third):
        np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), first.as_numpy("OUTPUT0"))


def test_the_id_is_the_requests_own(client, kit, row):
    def answered(request_id):
        answer = client.infer("sum", inputs_of(kit, row, row), request_id=request_id)
        response = answer.get_response()
        return response.get("id", "") if kit is httpclient else response.id

    assert [answered(name) for name in ("a", "b", "")] == ["a", "b", ""]


def test_other_outputs_and_parameters_are_another_question(running, client, kit, row):
    counts = Counts(running, "sum")

    def ask(*names, **options):
        wanted = [kit.InferRequestedOutput(name) for name in names] or None
        answer = client.infer("sum", inputs_of(kit, row, row * 2), outputs=wanted, **options)
        return [answer.as_numpy(f"OUTPUT{n}") is not None for n in range(2)]

    assert ask("OUTPUT0") == [True, False]
    assert ask("OUTPUT1") == [False, True]
    assert ask() == [True, True]
    assert ask(parameters={"mode": "fast"}) == [True, True]
    assert counts("cache_hit", "cache_miss") == (0, 4)
    assert ask("OUTPUT1") == [False, True]
    assert ask(parameters={"mode": "fast"}) == [True, True]
    assert ask(priority=1, timeout=10_000_000) == [True, True]
    assert counts("cache_hit", "cache_miss") == (3, 4)


def test_sequences_are_not_cached(running, client, kit, row):
    counts = Counts(running, "sum")
    for _ in range(2):
        client.infer("sum", inputs_of(kit, row, row), sequence_id=5, sequence_start=True)
    assert counts("success", "cache_hit", "cache_miss") == (2, 0, 0)


def test_classes_are_made_from_cached_outputs(running, client, kit):
    scores = np.array([[0.1, 0.7, 0.2, next(_numbers) / 1e6]], np.float32)
    tensor = kit.InferInput("INPUT0", [1, 4], "FP32")
    tensor.set_data_from_numpy(scores)
    counts = Counts(running, "scores")

    def top(count):
        wanted = kit.InferRequestedOutput("OUTPUT0", class_count=count)
        answer = client.infer("scores", [tensor], outputs=[wanted])
        return [text.decode().rpartition(":")[2] for text in answer.as_numpy("OUTPUT0").ravel()]

    assert top(2) == ["whale", "eel"]
    assert top(1) == ["whale"]
    assert counts("cache_hit", "cache_miss") == (1, 1)


def test_texts(running, client, kit):
    texts = np.array([[b"eel", "größer".encode(), b"", b"%d" % next(_numbers)]], object)
    tensor = kit.InferInput("INPUT0", [1, 4], "BYTES")
    tensor.set_data_from_numpy(texts)
    counts = Counts(running, "texts")
    for _ in range(2):
        assert client.infer("texts", [tensor]).as_numpy("OUTPUT0").tolist() == texts.tolist()
    assert counts("cache_hit", "cache_miss") == (1, 1)


def test_large_tensors(running, client, kit):
    many = np.arange(300_000, dtype=np.float32).reshape(1, -1) + next(_numbers)
    tensor = kit.InferInput("INPUT0", list(many.shape), "FP32")
    tensor.set_data_from_numpy(many)
    counts = Counts(running, "large")
    for _ in range(3):
        np.testing.assert_array_equal(client.infer("large", [tensor]).as_numpy("OUTPUT0"), many)
    assert counts("cache_hit", "cache_miss") == (2, 1)


def test_errors_are_not_cached(running, client, kit):
    counts = Counts(running, "sum")
    for _ in range(2):
        with pytest.raises(InferenceServerException):
            client.infer("sum", inputs_of(kit, np.zeros((1, 15), np.int32)))
    assert counts("cache_hit", "cache_miss") == (0, 0)


def test_models_without_the_setting_are_not_cached(running, client, kit, row):
    counts = Counts(running, "plain")
    for _ in range(2):
        client.infer("plain", inputs_of(kit, row, row))
    assert counts("execution_count", "cache_hit", "cache_miss") == (2, 0, 0)
    labels = {"model": "plain", "version": "1"}
    assert running.metric("nv_cache_num_hits_per_model", **labels) is None


@pytest.fixture
def region(client, memory_key):
    made = shm.create_shared_memory_region("cached", memory_key, 1024)
    client.register_system_shared_memory("cached", memory_key, 1024)
    yield made
    client.unregister_system_shared_memory("cached")
    shm.destroy_shared_memory_region(made)


def test_shared_memory_in_and_out(running, client, kit, region, row):
    counts = Counts(running, "sum")

    def ask(rows):
        shm.set_shared_memory_region(region, [rows, rows])
        shm.set_shared_memory_region(region, [np.zeros(16, np.int32)], offset=512)
        tensors = [kit.InferInput(f"INPUT{n}", [1, 16], "INT32") for n in range(2)]
        for n, tensor in enumerate(tensors):
            tensor.set_shared_memory("cached", 64, offset=64 * n)
        wanted = kit.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory("cached", 64, offset=512)
        client.infer("sum", tensors, outputs=[wanted])
        return shm.get_contents_as_numpy(region, np.int32, [1, 16], offset=512).copy()

    other = row + 1
    # What one answer wrote into the region the next one overwrites: the cache has its own copy.
    for rows in (row, other, row, other, row):
        np.testing.assert_array_equal(ask(rows), 2 * rows)
    assert counts("cache_hit", "cache_miss") == (3, 2)
    # Without shared memory it is the same question.
    wanted = kit.InferRequestedOutput("OUTPUT0")
    answer = client.infer("sum", inputs_of(kit, row, row), outputs=[wanted])
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), 2 * row)
    assert counts("cache_hit", "cache_miss") == (4, 2)


def test_statistics_of_both_protocols_agree(running):
    with (
        httpclient.InferenceServerClient(running.http_address) as over_http,
        grpcclient.InferenceServerClient(running.grpc_address) as over_grpc,
    ):
        row = np.arange(16, dtype=np.int32).reshape(1, 16)
        for _ in range(2):
            over_http.infer("sum", inputs_of(httpclient, row, row))
        (plain,) = over_http.get_inference_statistics("sum")["model_stats"]
        (message,) = over_grpc.get_inference_statistics("sum").model_stats
    for name in ("cache_hit", "cache_miss"):
        counted, told = plain["inference_stats"][name], getattr(message.inference_stats, name)
        assert counted == {"count": told.count, "ns": told.ns}
        assert told.count > 0
        assert told.ns > 0


def test_metrics(running, client, kit, row):
    def read():
        labels = {"model": "sum", "version": "1"}
        names = ("num_hits", "num_misses", "hit_duration", "miss_duration")
        return [running.metric(f"nv_cache_{name}_per_model", **labels) for name in names]

    before = read()
    for _ in range(3):
        client.infer("sum", inputs_of(kit, row, row))
    after = read()
    assert [now - then for now, then in zip(after[:2], before[:2], strict=True)] == [2, 1]
    assert after[2] > before[2]
    assert after[3] > before[3]
    hits, misses, lookups = (
        running.metric(f"nv_cache_num_{name}") for name in ("hits", "misses", "lookups")
    )
    assert hits + misses == lookups > 0
    assert running.metric("nv_cache_num_entries") > 0
    assert running.metric("nv_cache_num_evictions") == 0
    assert 0 < running.metric("nv_cache_util") < 1
    assert running.metric("nv_cache_lookup_duration") > 0
    assert running.metric("nv_cache_insertion_duration") > 0
    assert running.metric("shoal_cache_not_done", reason="failed") == 0


@pytest.mark.perf_analyzer
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_finds_the_numbers_in_order(running, perf_analyzer, protocol):
    address = running.http_address if protocol == "http" else running.grpc_address
    done = perf_analyzer("-m", "sum", "-i", protocol, "-u", address, "--concurrency-range", 2)
    assert done.stderr == ""
    hits = re.search(r"Cache hit count: (\d+)", done.stdout)
    assert hits is not None, done.stdout
    assert int(hits[1]) > 10
