"""Repository agents: a model that is not what it should be is not loaded."""

from __future__ import annotations

import hashlib
from importlib.metadata import EntryPoint

import pytest

from shoal.config.model import ModelConfig, ModelRepositoryAgents
from shoal.errors import ConfigError, Internal, InvalidArgument, Unavailable
from shoal.repository import agents

CONTENT = b"weights " * 1000


@pytest.fixture
def folder(tmp_path):
    model = tmp_path / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.onnx").write_bytes(CONTENT)
    (tmp_path / "secret").write_bytes(CONTENT)
    return model


def run(folder, *entries):
    made = tuple(ModelRepositoryAgents.Agent(name, parameters) for name, parameters in entries)
    config = ModelConfig(name="m", model_repository_agents=ModelRepositoryAgents(made))
    agents.run(config, folder, file="config.pbtxt")


@pytest.mark.parametrize("kind", ["MD5", "md5", "SHA1", "SHA256", "SHA512"])
def test_files_that_are_right(folder, kind):
    digest = hashlib.new(kind.lower(), CONTENT, usedforsecurity=False).hexdigest()
    for text in (digest, digest.upper(), f" {digest} "):
        run(folder, ("checksum", {f"{kind}:1/model.onnx": text}))


def test_a_file_that_is_another(folder):
    with pytest.raises(InvalidArgument) as caught:
        run(folder, ("checksum", {"MD5:1/model.onnx": "invalid_checksum"}))
    found = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
    assert caught.value.message == (
        "repository agent 'checksum' for model 'm': Mismatched MD5 hash for file 1/model.onnx: "
        f"expected invalid_checksum, found {found}"
    )


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("MD5:1/missing", "cannot read file 1/missing: No such file or directory"),
        ("MD5:1", "cannot read file 1: Is a directory"),
        ("MD5:../secret", "file ../secret lies outside the model's folder"),
        ("CRC:1/model.onnx", "unexpected parameter 'CRC:1/model.onnx'"),
        ("1/model.onnx", "unexpected parameter '1/model.onnx'"),
        ("MD5:", "unexpected parameter 'MD5:'"),
    ],
)
def test_what_cannot_be_checked(folder, key, text):
    with pytest.raises(InvalidArgument) as caught:
        run(folder, ("checksum", {key: "0"}))
    assert text in caught.value.message


def test_an_agent_nobody_knows(folder):
    with pytest.raises(ConfigError) as caught:
        run(folder, ("checksum", {}), ("decrypt", {}))
    assert caught.value.field == "model_repository_agents.agents[1].name"
    assert "there is no repository agent 'decrypt'" in caught.value.message
    assert "checksum" in caught.value.fix


def test_no_agents(folder):
    run(folder)
    agents.run(ModelConfig(name="m"), folder, file="config.pbtxt")


seen = []


def looking(folder, parameters):
    seen.append((folder, dict(parameters)))
    if "refuse" in parameters:
        raise Unavailable(parameters["refuse"])
    if "break" in parameters:
        raise KeyError(parameters["break"])


def test_agents_of_other_packages(folder, monkeypatch):
    def load(point):
        assert point.name == "look"
        return looking

    monkeypatch.setattr(EntryPoint, "load", load)
    point = EntryPoint("look", "somewhere:looking", agents.GROUP)
    monkeypatch.setattr(agents, "entry_points", lambda group: [point])
    run(folder, ("look", {"a": "b"}))
    assert seen == [(folder, {"a": "b"})]
    with pytest.raises(Unavailable, match="repository agent 'look' for model 'm': not now"):
        run(folder, ("look", {"refuse": "not now"}))
    with pytest.raises(Internal, match="repository agent 'look' failed for model 'm': KeyError"):
        run(folder, ("look", {"break": "x"}))
