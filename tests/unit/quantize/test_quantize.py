"""`shoal quantize`: what is written, what is compared, and what is refused."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from shoal.cli.main import main
from shoal.errors import InvalidArgument, NotFound, Unsupported
from shoal.export.exporting import export
from shoal.quantize import run as module
from shoal.quantize.run import QuantizeOptions, quantize
from tests.support.encoders import encoder_checkpoint

CHANCE = np.random.default_rng(0)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A model of two layers and a convolution, with 10 classes."""
    folder = tmp_path_factory.mktemp("models") / "digits"
    (folder / "1").mkdir(parents=True)

    def weight(name, *shape):
        values = (CHANCE.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        return numpy_helper.from_array(values, name)

    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "kernel"], ["seen"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["seen"], ["active"]),
            helper.make_node("Flatten", ["active"], ["flat"]),
            helper.make_node("MatMul", ["flat", "wide"], ["hidden"]),
            helper.make_node("Relu", ["hidden"], ["positive"]),
            helper.make_node("MatMul", ["positive", "narrow"], ["logits"]),
        ],
        "digits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        [weight("kernel", 4, 3, 3, 3), weight("wide", 256, 64), weight("narrow", 64, 10)],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text("max_batch_size: 8\n")
    (folder / "1" / "notes.txt").write_text("kept")
    return folder


@pytest.fixture
def digits(original, tmp_path):
    return shutil.copytree(original, tmp_path / "models" / "digits")


@pytest.fixture
def arrays(tmp_path):
    np.savez(tmp_path / "data.npz", x=CHANCE.standard_normal((12, 3, 8, 8)).astype(np.float32))
    return tmp_path / "data.npz"


def outputs(path, x):
    session = onnxruntime.InferenceSession(str(path))
    return np.concatenate([session.run(None, {"x": row[None]})[0] for row in x])


@pytest.mark.parametrize("kind", ["dynamic", "static", "fp16"])
def test_a_new_version_beside_the_old_one(digits, arrays, kind):
    before = (digits / "1" / "model.onnx").read_bytes()
    found = quantize(digits, QuantizeOptions(kind, [arrays]))
    assert found.after == digits / "2"
    assert (digits / "1" / "model.onnx").read_bytes() == before
    assert sorted(path.name for path in (digits / "2").iterdir()) == ["model.onnx", "notes.txt"]
    assert found.comparison.after.size_bytes < 0.7 * len(before)
    assert found.comparison.samples == 12
    (agreement,) = found.comparison.agreements
    assert 0.97 < agreement.cosine <= 1
    x = np.load(arrays)["x"]
    one, other = (outputs(digits / version / "model.onnx", x) for version in ("1", "2"))
    assert agreement.largest == pytest.approx(np.abs(one - other).max(), abs=1e-4)
    assert agreement.same_best == np.mean(one.argmax(1) == other.argmax(1))
    assert [path.name for path in digits.parent.iterdir()] == ["digits"]  # no scratch folder


def test_nothing_of_the_new_version_is_seen_before_it_is_whole(digits, monkeypatch):
    seen = []

    def watched(*arguments):
        seen.append(sorted(path.name for path in digits.iterdir()))
        return compare(*arguments)

    compare = module.compare
    monkeypatch.setattr(module, "compare", watched)
    quantize(digits, QuantizeOptions())
    assert seen == [["1", "config.pbtxt"]]


def test_a_model_of_texts_is_compared_on_sentences(tmp_path):
    folder = export(encoder_checkpoint(tmp_path / "c", hidden=32), tmp_path / "models" / "encoder")
    found = quantize(folder, QuantizeOptions(lowest_agreement=0.9))
    names = [one.output for one in found.comparison.agreements]
    assert names == ["last_hidden_state", "sentence_embedding"]
    (tmp_path / "texts.txt").write_text("the red fish\n\nsea\n")
    data = QuantizeOptions(data=[tmp_path / "texts.txt"], version=1)
    found = quantize(folder, data)
    assert (found.comparison.samples, found.after.name) == (2, "3")


def test_recorded_requests_and_those_of_perf(digits, tmp_path):
    values = CHANCE.standard_normal((1, 3, 8, 8)).astype(np.float32)
    tensor = {"name": "x", "dtype": "FP32", "shape": "1,3,8,8"}
    tensor["data"] = ",".join(map(str, values.ravel().tolist()))
    trace = [
        {"id": 1, "model_name": "digits", "model_version": 1},
        {"id": 1, "activity": "TENSOR_QUEUE_INPUT", "tensor": tensor},
        {"id": 1, "activity": "TENSOR_BACKEND_OUTPUT", "tensor": {**tensor, "name": "logits"}},
    ]
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    steps = {"data": [{"x": values.ravel().tolist()}] * 3}
    (tmp_path / "perf.json").write_text(json.dumps(steps))
    data = [tmp_path / "trace.json", tmp_path / "perf.json"]
    found = quantize(digits, QuantizeOptions(data=data, dry_run=True))
    assert (found.comparison.samples, found.after) == (4, None)
    assert not (digits / "2").exists()
    (tmp_path / "trace.json").write_text(json.dumps(trace[:1]))
    with pytest.raises(InvalidArgument, match="has no whole request of this model"):
        quantize(digits, QuantizeOptions(data=data))


def test_photos(digits, tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "photos").mkdir()
    for number in range(3):
        image.new("RGB", (20, 10), (number * 80, 9, 9)).save(tmp_path / "photos" / f"{number}.png")
    data = QuantizeOptions("static", [tmp_path / "photos"])
    assert quantize(digits, data).comparison.samples == 3


def test_below_the_least_agreement_nothing_is_written(digits):
    with pytest.raises(InvalidArgument, match="less than 1: nothing was written"):
        quantize(digits, QuantizeOptions(lowest_agreement=1))
    assert not (digits / "2").exists()
    assert [path.name for path in digits.parent.iterdir()] == ["digits"]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (QuantizeOptions(version=7), NotFound, "has no version 7"),
        (QuantizeOptions("static"), InvalidArgument, "found with real data"),
    ],
)
def test_what_cannot_be_done(digits, options, error, words):
    with pytest.raises(error, match=words):
        quantize(digits, options)


def test_models_that_are_no_onnx_files(tmp_path, digits, monkeypatch):
    with pytest.raises(NotFound, match="there is no folder"):
        quantize(tmp_path / "none", QuantizeOptions())
    with pytest.raises(NotFound, match="has no versions"):
        quantize(tmp_path, QuantizeOptions())
    (tmp_path / "python" / "1").mkdir(parents=True)
    with pytest.raises(Unsupported, match="is not an ONNX file"):
        quantize(tmp_path / "python", QuantizeOptions())
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(Unsupported, match="pip install onnx"):
        quantize(digits, QuantizeOptions())


def test_the_command(digits, arrays, capsys):
    assert main(["quantize", str(digits), "--data", str(arrays), "--samples", "5"]) == 0
    printed = capsys.readouterr().out
    assert "agreement, 5 samples" in printed
    assert "times smaller" in printed
    assert "logits: cosine at least" in printed
    assert f"wrote '{digits / '2'}'; version 1 stays" in printed
    assert main(["quantize", str(digits), "--min-agreement", "2"]) == 1
    assert "expected a number from 0 to 1" in capsys.readouterr().err
    assert main(["quantize", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: shoal quantize MODEL_FOLDER")
