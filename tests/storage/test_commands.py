"""`shoal push`, `pull`, `check`, `config`, `tune` and `export` with addresses, on a real server."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from shoal.cli.main import main
from shoal.storage.listing import MARKER
from shoal.storage.mirrors import Mirrors, StorageSettings
from tests.support import onnx_models

ENSEMBLE = """
platform: "ensemble"
input { name: "INPUT" data_type: TYPE_FP32 dims: 1 }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling {
  step {
    model_name: "plus"
    model_version: -1
    input_map { key: "INPUT0" value: "INPUT" }
    output_map { key: "OUTPUT0" value: "OUTPUT" }
  }
}
"""


@pytest.fixture
def models(tmp_path):
    """A repository with two models, one with two versions, and an ensemble."""
    folder = tmp_path / "models"
    for path in ("plus/1", "plus/2", "other/3", "ensemble/1"):
        (folder / path).mkdir(parents=True)
        if not path.startswith("ensemble"):
            onnx_models.save(onnx_models.plus(1.0), folder / path / "model.onnx")
    (folder / "ensemble" / "config.pbtxt").write_text(ENSEMBLE)
    (folder / "other" / "labels.txt").write_text("a\nb\n")
    (folder / "plus" / "__pycache__").mkdir()
    (folder / "plus" / "__pycache__" / "x.pyc").write_bytes(b"")
    return folder


@pytest.fixture
def bucket(moto, monkeypatch, tmp_path):
    """The address of an empty bucket; the cache is a folder of the test."""
    for name, value in moto.environment.items():
        if name != "AWS_ENDPOINT_URL":
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return moto.s3_address(moto.bucket(), "models")


@pytest.fixture
def stored(moto, bucket):
    """A function: the keys and contents in the bucket."""
    name = bucket.split("/")[3]

    def read():
        rows = moto.client().list_objects_v2(Bucket=name).get("Contents", [])
        return {
            row["Key"].removeprefix("models/"): moto.client()
            .get_object(Bucket=name, Key=row["Key"])["Body"]
            .read()
            for row in rows
        }

    return read


def test_push_and_serve_from_it(models, bucket, stored, tmp_path, capsys):
    assert main(["push", str(models), bucket]) == 0
    printed = capsys.readouterr().out
    assert "plus: 2 files stored" in printed
    assert f"shoal serve {bucket}" in printed
    expected = {
        "plus/1/model.onnx",
        "plus/2/model.onnx",
        "other/3/model.onnx",
        "other/labels.txt",
        "ensemble/config.pbtxt",
        "ensemble/1/.keep",
    }
    markers = {f"{name}/{MARKER}" for name in ("plus", "other", "ensemble")}
    assert {*stored()} == expected | markers
    assert all(json.loads(stored()[marker])["files"] for marker in markers)
    assert main(["check", bucket]) == 0
    assert "3 models checked, no problems" in capsys.readouterr().out


def test_only_what_changed_is_sent_again(models, bucket, stored, capsys):
    main(["push", str(models), bucket])
    before = stored()
    capsys.readouterr()
    assert main(["push", str(models), bucket]) == 0
    assert "plus: 0 files stored (0.0 MB), 2 unchanged" in capsys.readouterr().out
    assert stored() == before
    (models / "other" / "labels.txt").write_text("c\nd\n")  # as long as it was
    assert main(["push", str(models / "other"), bucket]) == 0
    assert "other: 1 file stored (0.0 MB), 1 unchanged" in capsys.readouterr().out
    assert stored()["other/labels.txt"] == b"c\nd\n"


def test_what_is_broken_is_refused(models, bucket, stored, capsys):
    (models / "other" / "3" / "model.onnx").write_bytes(b"broken")
    assert main(["push", str(models), bucket]) == 1
    printed = capsys.readouterr().err
    assert "FAIL  other" in printed
    assert "nothing was stored; --no-check" in printed
    assert stored() == {}
    assert main(["push", str(models), bucket, "--no-check"]) == 0
    assert stored()["other/3/model.onnx"] == b"broken"
    assert main(["check", bucket]) == 1
    printed = capsys.readouterr().out
    assert f"FAIL  other     {bucket}/other\n" in printed  # and not a folder of the cache
    assert "caches" not in printed


def test_wrong_words(models, bucket, capsys):
    for words, sentence in [
        (["push", str(models)], "name a folder and an address"),
        (["push", bucket, str(models)], "the first argument is a folder"),
        (
            ["push", str(models / "plus"), f"{bucket}/plus"],
            f"name the repository, in which 'plus' becomes a folder: {bucket}",
        ),
        (["push", str(models / "plus" / "1"), bucket], "has no models"),
        (["push", "nowhere", bucket], "there is no folder 'nowhere'"),
        (["push", str(models), "https://host/models.zip"], "it can only be read"),
        (["pull", str(models)], "there is nothing to download"),
        (["pull", bucket], "there are no models in"),
    ]:
        assert main(words) == 1
        assert sentence in capsys.readouterr().err


def test_an_interrupted_push_changes_nothing_for_servers(
    models, bucket, stored, tmp_path, monkeypatch, capsys
):
    main(["push", str(models), bucket])
    settings = StorageSettings(cache=str(tmp_path / "cache"))
    with Mirrors(settings) as mirrors:
        mirror = mirrors.open(bucket)
        mirror.refresh()
        before = mirror.models["plus"]
        onnx_models.save(onnx_models.plus(2.0), models / "plus" / "3" / "model.onnx")
        (models / "plus" / "labels.txt").write_text("new")
        put, paths = type(mirror.source).put, []

        def broken(self, path, content):
            paths.append(path)
            if path.endswith("model.onnx"):
                raise OSError("the network is gone")
            return put(self, path, content)

        with monkeypatch.context() as changed:
            changed.setattr(type(mirror.source), "put", broken)
            assert main(["push", str(models), bucket]) == 1
        assert paths == [f"plus/{MARKER}", "plus/labels.txt", "plus/3/model.onnx"]
        assert stored()[f"plus/{MARKER}"] == b""
        mirror.refresh()
        assert mirror.models["plus"] == before
    with Mirrors(settings) as mirrors:  # a server that starts now has the earlier listing
        mirror = mirrors.open(bucket)
        mirror.refresh()
        assert mirror.models["plus"] == before
    capsys.readouterr()
    assert main(["push", str(models), bucket]) == 0
    assert "plus: 1 file stored (0.0 MB), 3 unchanged" in capsys.readouterr().out
    with Mirrors(settings) as mirrors:
        mirror = mirrors.open(bucket)
        mirror.refresh()
        assert mirror.models["plus"].versions == [1, 2, 3]


def test_pull_fills_the_cache(models, bucket, tmp_path, monkeypatch, capsys):
    main(["push", str(models), bucket])
    capsys.readouterr()
    cache = f"--repository-cache={tmp_path / 'cache'}"
    assert main(["pull", bucket, cache]) == 0
    printed = capsys.readouterr().out
    assert "ok    plus: 1 file, " in printed  # the newest version
    assert "3 of 3 models" in printed
    assert main(["pull", bucket, cache]) == 0
    assert "0.0 MB were downloaded" in capsys.readouterr().out
    assert main(["pull", bucket, cache, "--all-versions", "--model", "plus"]) == 0
    assert "ok    plus: 2 files, " in capsys.readouterr().out
    assert main(["pull", bucket, cache, "--model", "plsu"]) == 1
    assert "there is no model 'plsu'; models: ensemble, other, plus" in capsys.readouterr().err


def test_pull_into_a_folder(models, bucket, tmp_path, capsys):
    main(["push", str(models), bucket])
    output = tmp_path / "output"
    (output / "ensemble" / "9").mkdir(parents=True)  # is replaced
    assert main(["pull", bucket, "--model", "ensemble", "--output", str(output)]) == 0
    assert sorted(path.name for path in output.iterdir()) == ["ensemble", "plus"]
    assert not (output / "ensemble" / "9").exists()
    capsys.readouterr()
    assert main(["check", str(output)]) == 0


def test_pull_says_what_failed(models, bucket, moto, capsys):
    main(["push", str(models), bucket])
    name = bucket.split("/")[3]
    moto.client().put_object(Bucket=name, Key="models/plus/a\\b", Body=b"x")
    capsys.readouterr()
    assert main(["pull", bucket]) == 1
    printed = capsys.readouterr()
    assert "FAIL  plus: model 'plus'" in printed.err
    assert "backslash" in printed.err
    assert "ok    other" in printed.out


def test_config_of_a_model_and_of_an_address(models, bucket, capsys):
    main(["push", str(models), bucket])
    for words in ([bucket, "ensemble"], [f"{bucket}/ensemble"]):
        capsys.readouterr()
        assert main(["config", *words]) == 0
        assert 'platform: "ensemble"' in capsys.readouterr().out
    for command in ("config", "tune"):
        assert main([command, bucket]) == 1
        message = f"there are 3 models in '{bucket}' (ensemble, other, plus); name one of them"
        assert message in capsys.readouterr().err
    assert main(["config", bucket, "none"]) == 1
    assert "there is no model 'none'" in capsys.readouterr().err


@pytest.mark.parametrize("by_name", [True, False])
def test_tune_writes_back(models, bucket, stored, capsys, monkeypatch, by_name):
    main(["push", str(models), bucket])

    def measured(model, *_):
        return SimpleNamespace(
            finding=SimpleNamespace(met=True), space=None, changes=(), text=f"# {model.name}\n"
        )

    monkeypatch.setattr("shoal.tune.run.run", measured)
    monkeypatch.setattr("shoal.tune.text.verdict", lambda *_: [])
    words = ["other", "--repository", bucket] if by_name else [f"{bucket}/other"]
    assert main(["tune", *words, "--write"]) == 0
    assert f"wrote {bucket}/other/config.pbtxt" in capsys.readouterr().err
    assert stored()["other/config.pbtxt"] == b"# other\n"


def test_export_to_an_address(bucket, stored, monkeypatch, capsys):
    def exported(_source, target, _kind, _options):
        onnx_models.save(onnx_models.plus(1.0), target / "1" / "model.onnx")

    monkeypatch.setattr("shoal.cli.export.export", exported)
    assert main(["export", "checkpoint", f"{bucket}/plus"]) == 0
    assert "plus/1/model.onnx" in stored()
    capsys.readouterr()
    assert main(["export", "checkpoint", f"{bucket}/plus"]) == 1
    assert "there is a model 'plus' in" in capsys.readouterr().err
    assert main(["export", "checkpoint", f"{bucket}/plus", "--force"]) == 0


def test_secrets_are_not_shown(moto, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in moto.environment:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    assert main(["pull", moto.s3_address("nobodys", "models")]) == 1
    printed = capsys.readouterr()
    assert "very-secret" not in printed.err + printed.out
