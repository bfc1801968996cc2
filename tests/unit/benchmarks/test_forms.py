"""A request in each form carries the workload's tensors; an answer in each form is read back."""

from __future__ import annotations

import base64
import json
import re
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks import forms
from benchmarks.limit import Setting, settings
from benchmarks.peers import repository
from benchmarks.peers.registry import PEERS
from benchmarks.peers.shoal import v2_targets
from benchmarks.workloads import WORKLOADS, Workload

from shoal.config.pbtxt import parse_pbtxt

TINY = WORKLOADS["W1"]


class Picture(Workload):
    """W2 without OpenCV, which only the benchmark's own environments have."""

    photo = b"\xff\xd8 not really a JPEG"

    @property
    def outputs(self):
        return {"scores": np.zeros((1, 1000), np.float32)}


PICTURE = Picture("W2", "", "classifier", (100,), compute_bound=True, picture=True, batches=(1, 8))


def as_bytes(workload):
    return b"".join(value.tobytes() for value in workload.outputs.values())


def test_the_right_answer_has_no_fault_and_others_do():
    assert TINY.fault(TINY.outputs) == ""
    swapped = {"OUTPUT0": TINY.outputs["OUTPUT1"], "OUTPUT1": TINY.outputs["OUTPUT0"]}
    assert "OUTPUT0" in TINY.fault(swapped)
    assert "no output 'OUTPUT1'" in TINY.fault({"OUTPUT0": TINY.outputs["OUTPUT0"]})
    short = {name: value[:, :3] for name, value in TINY.outputs.items()}
    assert "3 numbers instead of 16" in TINY.fault(short)


def test_plain_is_the_bytes_both_ways():
    exchange = forms.plain(TINY)
    assert len(exchange.body) == 128
    assert TINY.fault(exchange.read(as_bytes(TINY), {})) == ""
    assert forms.plain(PICTURE).body == PICTURE.photo


def test_json_lists_both_ways():
    exchange = forms.as_json(TINY)
    sent = json.loads(exchange.body)
    assert sent["INPUT1"] == TINY.inputs["INPUT1"].tolist()
    answer = json.dumps({name: value.tolist() for name, value in TINY.outputs.items()})
    assert TINY.fault(exchange.read(answer.encode(), {})) == ""


@pytest.mark.parametrize("form", [forms.as_json, forms.v2_json])
def test_json_requests_differ_in_their_numbers_only(form):
    exchange = form(WORKLOADS["JSON"])
    bodies = {exchange.body, *exchange.others}
    assert len(bodies) == 64
    assert len({re.sub(rb"-?\d+", b"0", body) for body in bodies}) == 1
    assert forms.plain_or_json(WORKLOADS["JSON"]) != forms.plain(WORKLOADS["JSON"])


def test_every_copy_of_a_model_is_written_and_requested(tmp_path):
    workload = WORKLOADS["models-10"]
    source = tmp_path / "model.onnx"
    source.touch()
    repository.write_all(tmp_path / "models", workload, "onnxruntime", "model.onnx", source)
    names = sorted(one.name for one in (tmp_path / "models").iterdir())
    assert names == sorted(workload.model_names)
    (target,) = v2_targets(workload, [1, 2, 3])
    assert target.paths == tuple(f"/v2/models/{name}/infer" for name in workload.model_names)


def test_v2_http_puts_the_tensors_behind_its_header():
    exchange = forms.v2_http(TINY)
    length = int(exchange.headers["Inference-Header-Content-Length"])
    header = json.loads(exchange.body[:length])
    assert [one["name"] for one in header["inputs"]] == ["INPUT0", "INPUT1"]
    assert header["inputs"][0]["parameters"] == {"binary_data_size": 64}
    assert exchange.body[length : length + 64] == TINY.inputs["INPUT0"].tobytes()


@pytest.mark.parametrize("binary", [True, False])
def test_v2_http_answers_are_read_whether_binary_or_json(binary):
    outputs = []
    for name, value in TINY.outputs.items():
        output = {"name": name, "datatype": "INT32", "shape": [1, 16]}
        if binary:
            output["parameters"] = {"binary_data_size": 64}
        else:
            output["data"] = value.ravel().tolist()
        outputs.append(output)
    header = json.dumps({"outputs": outputs}).encode()
    fields = {"inference-header-content-length": str(len(header))} if binary else {}
    answer = header + (as_bytes(TINY) if binary else b"")
    assert TINY.fault(forms.read_v2_http(answer, fields)) == ""


def test_v2_json_sends_pictures_as_base64():
    tensor = json.loads(forms.v2_json(PICTURE).body)["inputs"][0]
    assert tensor["datatype"] == "BYTES"
    assert base64.b64decode(tensor["data"][0]) == PICTURE.photo


def test_v2_grpc_is_framed_and_raw():
    from tritonclient.grpc import service_pb2

    exchange = forms.v2_grpc(TINY)
    compressed, length = struct.unpack(">BI", exchange.body[:5])
    assert (compressed, length) == (0, len(exchange.body) - 5)
    request = service_pb2.ModelInferRequest.FromString(exchange.body[5:])
    assert request.model_name == "add_sub"
    assert request.raw_input_contents[1] == TINY.inputs["INPUT1"].tobytes()


@pytest.mark.parametrize("raw", [True, False])
def test_v2_grpc_answers_are_read_raw_or_typed(raw):
    from tritonclient.grpc import service_pb2

    response = service_pb2.ModelInferResponse()
    for name, value in TINY.outputs.items():
        output = response.outputs.add(name=name, datatype="INT32", shape=[1, 16])
        if raw:
            response.raw_output_contents.append(value.tobytes())
        else:
            output.contents.int_contents.extend(value.ravel().tolist())
    assert TINY.fault(forms.read_v2_grpc(response.SerializeToString(), {})) == ""


def test_elements_of_bytes_carry_their_length():
    assert forms.raw_bytes(np.array([b"ab", b""], np.object_)) == b"\x02\0\0\0ab\0\0\0\0"


def test_perf_analyzer_gets_the_right_answer_to_compare_with():
    data = forms.perf_analyzer_data(TINY)
    assert data["data"][0]["INPUT0"]["shape"] == [16]
    right = data["validation_data"][0]["OUTPUT1"]["content"]
    assert right == TINY.outputs["OUTPUT1"].ravel().tolist()


def test_config_names_the_tensors_as_the_server_does():
    text = repository.config(TINY, "copy", "onnxruntime", "instance_group { count: 2 }\n")
    assert 'name: "copy"\nbackend: "onnxruntime"\nmax_batch_size: 64\n' in text
    assert 'input { name: "INPUT1" data_type: TYPE_INT32 dims: [16] }' in text
    assert text.endswith("dynamic_batching { }\ninstance_group { count: 2 }\n")
    assert "TYPE_FP32 dims: [-1]" in repository.config(WORKLOADS["JSON-1k"], "double", "python")
    assert "TYPE_STRING dims: [1]" in repository.config(PICTURE, "classifier", "python")


def test_the_plain_loop_tries_threads_only_where_there_is_something_to_compute():
    assert settings(TINY, cores=4) == [Setting(1, 1, 1), Setting(1, 1, 64)]
    assert settings(PICTURE, cores=2) == [
        Setting(2, 1, 1),
        Setting(2, 1, 8),
        Setting(1, 2, 1),
        Setting(1, 2, 8),
    ]
    assert len(settings(PICTURE, cores=1)) == 2  # both ways are the same on one core


@pytest.mark.parametrize(
    ("told", "right"),
    [
        ([(2, 0.7), (0, 0.2)], True),
        ([(2, 0.701), (0, 0.2)], True),  # within the tolerance
        ([(2, 0.75), (0, 0.2)], False),
        ([(0, 0.2), (2, 0.7)], False),  # in another order
        ([(2, 0.7), (1, 0.2)], False),  # another class
    ],
)
def test_labels_are_compared_with_the_best_classes(told, right):
    workload = Workload("W2", "photos", "classifier", (1,), picture=True, tolerance=0.01)
    workload.__dict__["photo"] = b"jpeg"
    workload.__dict__["outputs"] = {"scores": np.array([[0.2, 0.1, 0.7]], np.float32)}
    exchange = forms.labels(workload)
    assert exchange.body == b"jpeg"
    labels = [{"label": "x", "index": index, "score": score} for index, score in told]
    answer = json.dumps({"images": [{"file": "", "labels": labels}]}).encode()
    assert (workload.fault(exchange.read(answer, {})) == "") is right


@pytest.mark.parametrize("name", ["changing", "tails", "JSON", "models-1000"])
def test_peers_leave_out_what_they_cannot_do(name):
    taking_part = {peer.name for peer in PEERS.values() if not peer.leaves_out(WORKLOADS[name])}
    assert {"shoal", "triton-onnx"} <= taking_part
    assert ("fastapi" in taking_part) == (name == "JSON")


def test_photos_go_through_an_ensemble_where_the_backend_takes_tensors_only(tmp_path, monkeypatch):
    peer = PEERS["triton-onnx"]
    monkeypatch.setattr(peer, "_server", "tritonserver", raising=False)
    monkeypatch.setattr(peer, "_backends", str(tmp_path / "cpp"), raising=False)
    wheel = SimpleNamespace(install=lambda: None, backends=tmp_path / "wheel")
    monkeypatch.setattr(peer, "_wheel", wheel)
    monkeypatch.setattr(Picture, "model_path", tmp_path / "classifier.onnx")
    line = peer.launch(PICTURE, [1, 2, 3], tmp_path)
    assert f"--backend-directory={tmp_path / 'backends'}" in line
    assert sorted(link.name for link in (tmp_path / "backends").iterdir()) == [
        "onnxruntime",
        "python",
    ]
    configs = {path.parent.name: path.read_text() for path in tmp_path.rglob("config.pbtxt")}
    parsed = {name: parse_pbtxt(text, name) for name, text in configs.items()}
    assert parsed["decode"].backend == "python"
    assert parsed["network"].backend == "onnxruntime"
    ensemble = parsed[PICTURE.model].ensemble_scheduling
    assert [step.model_name for step in ensemble.step] == ["decode", "network"]
