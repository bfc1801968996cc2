"""Models that classify photos themselves: which photos they get, and what stays as it is.

In one process and through a link; the backend does with Pillow what others do on a GPU.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.backends.registry import BackendRegistry
from shoal.config.options import NamedSetting
from shoal.testing.server import HttpCall, running_server
from tests.support.photo_backend import FAILING, PhotoBackend
from tests.support.photos import LABELS, ON_CPU, ON_GPU, WRONG, encode, photo

CONFIG = """
backend: "photos" max_batch_size: 8
input { name: "image" data_type: TYPE_FP32 dims: [ 3, 48, 48 ] }
output { name: "scores" data_type: TYPE_FP32 dims: [ 3 ] }
parameters { key: "task" value { string_value: "image-classification" } }
%s
"""
BATCHES = "dynamic_batching { max_queue_delay_microseconds: 2000 }"
JPEG = {"Content-Type": "image/jpeg"}


@pytest.fixture(params=["", "linked"])
def serve(request, tmp_path, monkeypatch):
    """Start a server with the model `colours`."""
    monkeypatch.setenv("SHOAL_SERVERS", request.param)
    folder = tmp_path / "colours"
    (folder / "1").mkdir(parents=True)
    (folder / "labels.txt").write_text("\n".join(LABELS))

    def start(backend, config=BATCHES, options=None, **task):
        (folder / "config.pbtxt").write_text(CONFIG % config)
        (folder / "task.json").write_text(json.dumps({"scale": 1, "scores": "as-is", **task}))
        registry = BackendRegistry({"photos": lambda: backend})
        return running_server(tmp_path, backends=registry, **(options or {}))

    return start


@pytest.fixture
def backend():
    return PhotoBackend()


def classify(server, data, query="", headers=JPEG):
    return server.post(f"/v2/models/colours/classify{query}", data, headers)


def labels(response):
    assert response.status == 200, response
    return [image["labels"] for image in response.json["images"]]


def same(one, other):
    """Whether two answers have the same labels, with nearly the same scores."""
    return all(
        a["label"] == b["label"] and abs(a["score"] - b["score"]) < 1.5
        for first, second in zip(labels(one), labels(other), strict=True)
        for a, b in zip(first, second, strict=True)
    )


def test_the_same_answers_as_without(serve, backend):
    """All kinds of photos, at once, beside the same server that prepares them on the CPU."""
    sent = {**ON_GPU, **ON_CPU, **WRONG}
    limits = {"max_pixels": 500_000, "max_bytes": 180_000}
    with serve(backend, **limits) as server, ThreadPoolExecutor(8) as threads:
        answers = dict(
            zip(sent, threads.map(lambda data: classify(server, data), sent.values()), strict=True)
        )
        counted = server.statistics("colours")
    assert sum(backend.batches) == len(ON_GPU) + 1  # the undecodable one was tried
    assert sum(backend.tensors) == len(ON_CPU)
    assert counted["inference_count"] == len(ON_GPU) + 1 + len(ON_CPU)
    assert counted["execution_count"] == len(backend.batches) + len(backend.tensors)
    assert (
        counted["task"]["preprocess"]["count"] == len(ON_CPU) + len(WRONG) - 1
    )  # not the empty one
    with serve(PhotoBackend(offers=False), **limits) as server:
        expected = {name: classify(server, data) for name, data in sent.items()}
    for name, answer in answers.items():
        assert answer.status == expected[name].status, (name, answer)
        if name in WRONG:
            assert answer.body == expected[name].body
        else:
            assert same(answer, expected[name]), name


def test_several_photos_in_a_call(serve, backend):
    """Of any kind, in their order; one that is invalid is named."""
    sent = [ON_GPU["4:2:2"], ON_CPU["PNG"], ON_GPU["4:4:4"], ON_CPU["undecodable"]]
    with serve(backend) as server:

        def form(*files):
            parts = [
                b'--x\r\nContent-Disposition: form-data; name="image"; filename="%d.jpg"\r\n\r\n'
                b"%b\r\n" % (number, data)
                for number, data in enumerate(files)
            ]
            headers = {"Content-Type": "multipart/form-data; boundary=x"}
            return classify(server, b"".join(parts) + b"--x--\r\n", "?top=1", headers)

        found = labels(form(*sent))
        assert [best["label"] for (best,) in found] == ["green", "blue", "blue", "green"]
        wrong = form(sent[0], b"%PDF-1.4", sent[1])
        assert wrong.status == 400
        assert "the image '1.jpg' is a PDF document" in wrong.error


def test_more_labels_than_the_model_ranks(serve, backend):
    with serve(backend) as server:
        assert len(labels(classify(server, ON_GPU["4:2:0"], "?top=3"))[0]) == 3
        assert classify(server, ON_GPU["4:2:0"], "?top=4").status == 400


def test_photos_share_batches(serve, backend):
    """While one is being classified, those that arrive wait, and become a batch."""
    backend.go_on.clear()
    with serve(backend) as server:
        port = server.server.http_port
        path = "/v2/models/colours/classify"
        calls = [HttpCall(port, "POST", path, ON_GPU["4:2:0"], JPEG)]
        assert backend.running.wait(10)
        calls += [HttpCall(port, "POST", path, ON_GPU["turned"], JPEG) for _ in range(8)]
        server.wait_for_pending("colours", 8)
        backend.go_on.set()
        best = [labels(call.response())[0][0]["label"] for call in calls]
        assert best == ["red"] + 8 * ["green"]
        assert backend.batches == [1, 8]


def test_a_client_that_leaves_cancels_its_photo(serve, backend):
    backend.go_on.clear()
    with serve(backend) as server:
        port = server.server.http_port
        path = "/v2/models/colours/classify"
        first = HttpCall(port, "POST", path, ON_GPU["4:2:0"], JPEG)
        assert backend.running.wait(10)
        second = HttpCall(port, "POST", path, ON_GPU["4:2:0"], JPEG)
        server.wait_for_pending("colours", 1)
        second.disconnect()
        server.wait_for_pending("colours", 0)
        backend.go_on.set()
        assert first.response().status == 200
        assert backend.batches == [1]


def test_a_full_queue_refuses_photos(serve, backend):
    limit = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    backend.go_on.clear()
    with serve(backend, limit) as server:
        port = server.server.http_port
        path = "/v2/models/colours/classify"
        calls = [HttpCall(port, "POST", path, ON_GPU["4:2:0"], JPEG)]
        assert backend.running.wait(10)
        calls.append(HttpCall(port, "POST", path, ON_GPU["4:2:0"], JPEG))
        server.wait_for_pending("colours", 1)
        refused = classify(server, ON_GPU["4:2:0"])
        tensor = classify(server, ON_CPU["PNG"])
        assert (refused.status, refused.body) == (tensor.status, tensor.body)
        assert refused.status == 503
        backend.go_on.set()
        assert [call.response().status for call in calls] == [200, 200]


def test_a_photo_that_fails_fails_alone(serve, backend):
    """Its batch is run again, one by one."""
    bad = encode(photo(), comment=FAILING)
    backend.go_on.clear()
    with serve(backend) as server:
        port = server.server.http_port
        path = "/v2/models/colours/classify"
        calls = [HttpCall(port, "POST", path, ON_GPU["4:2:0"], JPEG)]
        assert backend.running.wait(10)
        calls += [HttpCall(port, "POST", path, data, JPEG) for data in (ON_GPU["large"], bad)]
        server.wait_for_pending("colours", 2)
        backend.go_on.set()
        first, second, third = (call.response() for call in calls)
        assert (first.status, second.status, third.status) == (200, 200, 500)
        assert "the GPU is on fire" in third.error


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ("response_cache { enable: true }", {}),
        ("dynamic_batching { preserve_ordering: true }", {}),
        (BATCHES, {"decoder": "pillow"}),
        (BATCHES, {"interpolation": "lanczos"}),
    ],
)
def test_photos_are_prepared_on_the_cpu(serve, backend, config, task):
    cached = {"cache_config": (NamedSetting("local", "size", "100000"),)}
    with serve(backend, config, cached, **task) as server:
        assert labels(classify(server, ON_GPU["4:4:4"]))[0][0]["label"] == "blue"
        assert not server.model("colours").classifies_photos
    assert backend.batches == []
