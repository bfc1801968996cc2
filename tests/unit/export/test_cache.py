"""Checkpoints that are served by their folder."""

from __future__ import annotations

import json
from pathlib import Path

from shoal.cli.serve import with_repositories
from shoal.config.options import Options
from shoal.export.cache import is_checkpoint
from tests.support.encoders import encoder_checkpoint


def served(path, cache):
    options = Options(model_repository=(str(path),), checkpoint_cache=str(cache))
    return with_repositories(options, "shoal serve").model_repository


def test_a_checkpoint_is_exported_once_and_again_when_it_changes(tmp_path, capsys):
    checkpoint = encoder_checkpoint(tmp_path / "my encoder")
    (first,) = served(checkpoint, tmp_path / "cache")
    assert "exporting the checkpoint" in capsys.readouterr().err
    assert [entry.name for entry in Path(first).iterdir()] == ["my-encoder"]
    model = Path(first, "my-encoder", "1", "model.onnx")
    written = model.stat().st_mtime_ns
    assert served(checkpoint, tmp_path / "cache") == (first,)
    assert model.stat().st_mtime_ns == written
    assert capsys.readouterr().err == ""
    (checkpoint / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9}))
    (second,) = served(checkpoint, tmp_path / "cache")
    assert second != first
    settings = Path(second, "my-encoder", "task.json").read_text()
    assert json.loads(settings)["max_length"] == 9


def test_other_folders_stay_what_they_are(tmp_path):
    (tmp_path / "config.json").write_text('{"threads": 3}')  # of another program
    assert served(tmp_path, tmp_path / "cache") == (str(tmp_path),)
    model = encoder_checkpoint(tmp_path / "model")
    assert is_checkpoint(model)
    (model / "config.pbtxt").write_text("")
    assert not is_checkpoint(model)
