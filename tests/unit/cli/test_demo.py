"""The demo: its folder, and commands that suit the ports it is served on."""

import json
import re
from pathlib import Path

import pytest

from shoal.cli import demo
from shoal.cli.serve import with_repositories
from shoal.config.options import Options


def test_the_demo_repository_is_part_of_the_package():
    models = Path(demo.repository())
    assert {folder.name for folder in models.iterdir()} >= {"add_sub", "digits", "upper"}


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
    assert len(bodies) == 3
    for body in bodies:
        for tensor in json.loads(body)["inputs"]:
            assert tensor["shape"][0] == 1
            assert len(tensor["data"]) == tensor["shape"][1]
