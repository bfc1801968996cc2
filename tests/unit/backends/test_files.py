"""Finding a model's file, and saying why there is none."""

from __future__ import annotations

import pytest

from shoal.backends.files import find_model_file, short_name, what_else
from shoal.config.model import ModelConfig
from shoal.errors import ConfigError, NotFound

NAMES = ("model.ubj", "model.json")


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "m" / "1"
    made.mkdir(parents=True)
    return made


def find(folder, name=""):
    config = ModelConfig(name="m", default_model_filename=name)
    return find_model_file(config, folder, NAMES, "XGBoost model", "m/config.pbtxt")


def test_the_first_name_that_is_there(folder):
    (folder / "model.json").touch()
    assert find(folder).name == "model.json"
    (folder / "model.ubj").touch()
    assert find(folder).name == "model.ubj"
    (folder / "other.ubj").touch()
    assert find(folder, "other.ubj").name == "other.ubj"
    assert short_name(find(folder)) == "m/1/model.ubj"


def test_nothing(folder):
    with pytest.raises(NotFound) as raised:
        find(folder)
    assert raised.value.message == (
        "unable to find 'model.ubj' or 'model.json' in 'm/1' for model 'm'. "
        "Put the XGBoost model there"
    )


def test_another_name(folder):
    (folder / "net.json").touch()
    with pytest.raises(NotFound, match=r'write default_model_filename: "net\.json" in m/config'):
        find(folder)


def test_what_is_not_a_file(folder):
    (folder / "model.json").mkdir()
    with pytest.raises(NotFound, match=r"for model 'm': 'model\.json' there is not a file"):
        find(folder)


def test_no_folder(folder):
    folder.rmdir()
    with pytest.raises(NotFound, match="there is no such folder"):
        find(folder)


@pytest.mark.parametrize("name", ["../1/model.ubj", "/etc/passwd"])
def test_a_name_that_leads_elsewhere(folder, name):
    with pytest.raises(ConfigError, match=r"default_model_filename: .*leads out of the version's"):
        find(folder, name)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
        (b"rubbish", "Copy it again, or make it anew"),
    ],
)
def test_what_else(folder, content, text):
    (folder / "model.ubj").write_bytes(content)
    assert text in what_else(folder / "model.ubj", "make it anew")


def test_what_else_of_a_file_that_has_gone(folder):
    assert "cannot be read" in what_else(folder / "model.ubj", "")
