"""shoal export: what it writes, and what it says when it cannot."""

from __future__ import annotations

import json
import shutil
import sys
import warnings

import onnx
import pytest

from shoal.cli import main as command_line
from shoal.errors import Unsupported
from shoal.export.graph import GraphBuilder

pytestmark = pytest.mark.timeout(300)  # the first one waits for PyTorch and transformers


@pytest.fixture
def export(capsys):
    """Run the command: its exit code and what it printed."""

    def run(*words):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the libraries behind it
            code = command_line.main(["export", *map(str, words)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


@pytest.fixture
def blip(checkpoints, tmp_path):
    """A copy of the checkpoint, to be changed."""
    shutil.copytree(checkpoints.folder / "blip", tmp_path / "blip")
    return tmp_path / "blip"


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_model_folder_is_written(export, blip, tmp_path):
    target = tmp_path / "models" / "captions"
    code, printed = export("blip", blip, target, "--max-sequences", 5)
    assert code == 0, printed
    assert f"shoal serve {target.parent}" in printed
    written = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    assert written == [
        "1/decoder.onnx",
        "1/encoder.onnx",
        "config.pbtxt",
        "task.json",
        "tokenizer.json",
    ]
    for name in written[:2]:
        assert name in printed
        onnx.checker.check_model(onnx.load(target / name), full_check=True)
    assert 'string_value: "5"' in (target / "config.pbtxt").read_text()
    task = json.loads((target / "task.json").read_text())
    assert task["size"] == 32
    assert task["interpolation"] == "bicubic"
    assert (task["start_token"], task["stop_tokens"], task["max_length"]) == (2, [3], 64)
    assert list(target.parent.iterdir()) == [target], "nothing else stays behind"


def test_the_generation_config_is_taken_over(export, blip, tmp_path):
    change(blip / "generation_config.json", max_new_tokens=33, num_beams=3, length_penalty=0.5)
    assert export("blip", blip, tmp_path / "made")[0] == 0
    task = json.loads((tmp_path / "made" / "task.json").read_text())
    assert (task["max_tokens"], task["num_beams"], task["length_penalty"]) == (33, 3, 0.5)


def test_an_existing_folder_is_kept_by_default(export, blip, tmp_path):
    target = tmp_path / "made"
    target.mkdir()
    (target / "mine.txt").write_text("precious")
    code, printed = export("blip", blip, target)
    assert (code, (target / "mine.txt").read_text()) == (1, "precious")
    assert "is there already" in printed
    assert "--force" in printed
    assert export("blip", blip, target, "--force")[0] == 0
    assert not (target / "mine.txt").exists()


def test_a_checkpoint_without_tokenizer_json_but_with_words(export, blip, tmp_path):
    words = json.loads((blip / "tokenizer.json").read_text())["model"]["vocab"]
    (blip / "tokenizer.json").unlink()
    (blip / "vocab.txt").write_text("\n".join(sorted(words, key=words.get)))
    (blip / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    code, printed = export("blip", blip, tmp_path / "made")
    assert code == 0, printed
    made = json.loads((tmp_path / "made" / "tokenizer.json").read_text())
    assert made["model"]["vocab"]["couch"] == words["couch"]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (shutil.rmtree, "neither a folder, nor a wheel"),
        (lambda blip: (blip / "config.json").unlink(), "there is no config.json"),
        (lambda blip: (blip / "config.json").write_text("{"), "cannot be read"),
        (lambda blip: (blip / "config.json").write_text("[]"), "holds no checkpoint"),
        (
            lambda blip: change(blip / "config.json", architectures=["BertModel"]),
            "holds a BertModel; this export is for BlipForConditionalGeneration",
        ),
        (lambda blip: (blip / "model.safetensors").unlink(), "cannot be loaded"),
        (lambda blip: (blip / "tokenizer.json").unlink(), "there is no tokenizer"),
        (
            lambda blip: change(blip / "preprocessor_config.json", size=384),
            "makes photos 384 pixels large, the model takes 32",
        ),
    ],
)
def test_errors_of_a_checkpoint_are_reported(export, blip, tmp_path, spoil, sentence):
    spoil(blip)
    code, printed = export("blip", blip, tmp_path / "made")
    assert code == 1
    assert sentence in printed
    assert printed.startswith("error: ")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("library", ["transformers", "torch", "onnx"])
def test_a_library_that_is_missing_is_named(export, blip, tmp_path, library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    code, printed = export("blip", blip, tmp_path / "made")
    assert code == 1
    assert f"{library} is not installed" in printed
    assert "pip install 'shoal[export]'" in printed


def test_gpt2_is_no_blip(export, checkpoints, tmp_path):
    code, printed = export("blip", checkpoints.folder / "gpt2", tmp_path / "made")
    assert (code, "holds a GPT2LMHeadModel" in printed) == (1, True)
    code, printed = export("gpt2", checkpoints.folder / "gpt2", tmp_path / "made", "--single-file")
    assert (code, "--single-file is for BLIP" in printed) == (1, True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["bert", "a", "b"], "shoal export --help"),
        (["blip", "a"], "OUTPUT_MODEL_FOLDER"),
        (["blip", "a", "b", "--max-sequences", "0"], "expected a whole number from 1 to 4096"),
        (["blip", "a", "b", "--quick"], "--quick"),
    ],
)
def test_wrong_words(export, words, sentence):
    code, printed = export(*words)
    assert code == 1
    assert sentence in printed


def test_help(export):
    for words in ((), ("--help",)):
        code, printed = export(*words)
        assert code == 0
        assert "shoal export [KIND] CHECKPOINT OUTPUT_MODEL_FOLDER" in printed


def test_an_unknown_activation():
    with pytest.raises(Unsupported, match="'mish' cannot be exported"):
        GraphBuilder("x").activation("mish", "value")


def test_large_weights_lie_beside_the_file(tmp_path, monkeypatch):
    import numpy as np
    import onnxruntime

    from shoal.export import graph as module

    monkeypatch.setattr(module, "_EXTERNAL_FROM_BYTES", 100)
    graph = GraphBuilder("large")
    value = graph.input("x", onnx.TensorProto.FLOAT, ["rows", 64])
    graph.output(graph.linear(value, np.eye(64, dtype=np.float32), None), "y", ["rows", 64])
    graph.save(tmp_path / "large.onnx")
    assert (tmp_path / "large.onnx.data").stat().st_size >= 64 * 64 * 4
    session = onnxruntime.InferenceSession(str(tmp_path / "large.onnx"))
    x = np.random.default_rng(0).random((2, 64), np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x)


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu"])
def test_activations_are_those_of_transformers(checkpoints, tmp_path, name):
    import numpy as np
    import onnxruntime
    import torch
    from transformers.activations import ACT2FN

    graph = GraphBuilder(name)
    value = graph.input("x", onnx.TensorProto.FLOAT, ["rows"])
    graph.output(graph.activation(name, value), "y", ["rows"])
    graph.save(tmp_path / "it.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "it.onnx"))
    x = np.linspace(-5, 5, 101, dtype=np.float32)
    theirs = ACT2FN[name](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(session.run(None, {"x": x})[0], theirs, atol=1e-5)
