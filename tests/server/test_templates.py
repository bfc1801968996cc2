"""Templates in the running server: the same answers and counts, also while models are replaced."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import threading

import numpy as np
import pytest

from shoal.testing.server import ADDRESS, running_server, wait_until
from tests.support import onnx_models
from tests.support.client import Infer, outputs, read_outputs
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import EXECUTION_MODES, add_onnx, execution

BATCHED = "max_batch_size: 8 dynamic_batching { }"


def count_planned(running):
    """A list that gets an element for each request that takes the fast path."""
    engine, taken = running.server.engine, []
    infer_group = engine.infer_group

    def count(requests, model):
        left = infer_group(requests, model)
        taken.extend(request.id for request in requests if request not in left)
        return left

    engine.infer_group = count
    return taken


def id_first(infer):
    """The request with its id where Triton's clients write it."""
    infer.document = {"id": infer.document.pop("id"), **infer.document}
    return infer


def add_sub(start, **more):
    row = np.arange(16, dtype=np.int32)[None]
    infer = Infer(id=f"from {start}", **more)
    infer.add("INPUT0", row + start, binary=True).add("INPUT1", row, binary=True)
    return id_first(infer.want("OUTPUT0", binary_data=True).want("OUTPUT1", binary_data=True))


def traffic():
    """Requests of all kinds, good and bad, most of them more than once."""
    for number in range(5):
        yield add_sub(number)
        yield add_sub(number, priority=1)
        yield add_sub(number, anything="for the model")
        bad = add_sub(number)
        bad.document["inputs"][0]["shape"] = [1, 17]
        yield bad
        short = add_sub(number)
        short.blobs[1] = short.blobs[1][:-1]
        yield short
        unknown = add_sub(number)
        unknown.document["outputs"][0]["name"] = "NONE"
        yield unknown


@pytest.mark.parametrize("mode", EXECUTION_MODES)
def test_with_and_without_plans_everything_is_answered_and_counted_alike(tmp_path, mode):
    add_onnx(tmp_path, "sum", onnx_models.add_sub(), BATCHED + execution(mode))
    told = []
    for plans in (True, False):
        with running_server(tmp_path, plans=plans) as running:
            taken = count_planned(running)
            answers = [infer.send(running, "sum") for infer in traffic()]
            entry = running.statistics("sum")
            counted = [entry["inference_count"], entry["execution_count"]]
            for key, value in entry["inference_stats"].items():
                counted.append((key, value["count"]))
            seen = []
            for answer in answers:
                answer.headers.pop("date")
                seen.append((answer.status, answer.headers, answer.body))
            told.append((seen, counted))
            assert len(taken) == (12 if plans else 0)  # 4 of each kind that may repeat
    assert told[0] == told[1]


def test_replacing_a_model_under_load_never_gives_a_wrong_answer(tmp_path):
    """Each answer is that of the version that was serving, and says which one it was."""
    folder = add_onnx(tmp_path, "plus", onnx_models.plus(1), BATCHED)
    wrong, counts = [], []
    stop = threading.Event()
    options = {"model_control_mode": "explicit", "load_model": ("plus",), "plans": True}
    with running_server(tmp_path, **options) as running:
        taken = count_planned(running)

        def ask(number):
            asked = 0
            connection = http.client.HTTPConnection(ADDRESS, running.server.http_port)
            while not stop.is_set():
                infer = Infer(id=f"{number}-{asked}").want("OUTPUT0", binary_data=True)
                infer.add("INPUT0", np.array([[asked]], np.float32), binary=True)
                body, headers = id_first(infer).body()
                connection.request("POST", "/v2/models/plus/infer", body, headers)
                response = connection.getresponse()
                content = response.read()
                if response.status != 200:
                    wrong.append((response.status, content))
                    continue
                fields = {name.lower(): value for name, value in response.getheaders()}
                document = json.loads(content[: int(fields["inference-header-content-length"])])
                value = read_outputs(fields, content)["OUTPUT0"][0, 0]
                if value != asked + int(document["model_version"]):
                    wrong.append((asked, document, value))
                if document["id"] != f"{number}-{asked}":
                    wrong.append((asked, document))
                asked += 1
            counts.append(asked)
            connection.close()

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            for version in (2, 3, 4):
                before = len(taken)
                wait_until(lambda before=before: len(taken) > before + 50, "templates are used")
                model = onnx_models.plus(version).SerializeToString()
                (folder / str(version)).mkdir()
                (folder / str(version) / "model.onnx").write_bytes(model)
                assert running.load("plus").status == 200
            before = len(taken)
            wait_until(lambda: len(taken) > before + 50, "templates are used again")
        finally:
            stop.set()
            for thread in threads:
                thread.join(WAIT_SECS)
        answered = running.statistics("plus", 4)["inference_count"]
    assert wrong == []
    assert 0 < answered < sum(counts)


def test_unloading_ends_what_templates_allowed(tmp_path):
    add_onnx(tmp_path, "sum", onnx_models.add_sub(), BATCHED)
    options = {"model_control_mode": "explicit", "load_model": ("sum",), "plans": True}
    with running_server(tmp_path, **options) as running:
        taken = count_planned(running)
        for number in range(3):
            assert outputs(add_sub(number).send(running, "sum"))["OUTPUT0"][0, 0] == number
        assert len(taken) == 2
        assert running.unload("sum").status == 200
        assert add_sub(1).send(running, "sum").status in (400, 404)
        assert running.load("sum").status == 200
        assert outputs(add_sub(1).send(running, "sum"))["OUTPUT0"][0, 0] == 1
        assert len(taken) == 2


@pytest.mark.one_process  # counts calls of the engine
@pytest.mark.perf_analyzer
@pytest.mark.parametrize("plans", [True, False])
def test_perf_analyzer_measures_and_reads_the_statistics(tmp_path, plans):
    """It numbers its requests, so only templates with a variable id serve it; and it reads the whole
    statistics, in which it must not stumble over what is ours."""
    add_onnx(tmp_path, "sum", onnx_models.add_sub(), BATCHED)
    with running_server(tmp_path, plans=plans) as running:
        taken = count_planned(running)
        done = subprocess.run(
            [
                *("perf_analyzer", "-m", "sum", "-u", running.http_address, "-i", "http"),
                *("--concurrency-range", "4"),
                *("--request-count", "400"),
            ],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert "execution" in running.statistics("sum")
        served = running.statistics("sum")["inference_count"]
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    count = re.search(r"Inference count: (\d+)", report)
    assert count, report
    assert int(count[1]) > 0
    if plans:
        assert len(taken) > served * 0.9, report
    else:
        assert taken == []


def test_a_header_length_beyond_the_body_is_refused_on_the_fast_path_too(tmp_path):
    """With empty tensors, all of the JSON is there although the length says more."""
    add_onnx(tmp_path, "free", onnx_models.identity("FP32"), BATCHED)
    infer = Infer().add("INPUT0", np.zeros((1, 0), np.float32), binary=True)
    body, headers = infer.want("OUTPUT0", binary_data=True).body()
    longer = {name: str(int(value) + 1) for name, value in headers.items()}
    with running_server(tmp_path) as running:
        for _ in range(3):
            assert running.post("/v2/models/free/infer", body, headers).status == 200
            assert running.post("/v2/models/free/infer", body, longer).status == 400
