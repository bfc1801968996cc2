"""The example of a Python model: its own tests pass, and it can be served as it is."""

from __future__ import annotations

import subprocess
import sys

from shoal.testing.server import running_server


def test_its_unit_tests_pass(root):
    folder = root / "examples" / "python_model"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_it_is_served(root):
    asked = {"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": ["shoal"]}
    with running_server(root / "examples" / "python_model" / "model_repository") as running:
        answer = running.post("/v2/models/word_lengths/infer", {"inputs": [asked]})
        assert answer.status == 200, answer
        values = {output["name"]: output["data"] for output in answer.json["outputs"]}
        assert values == {"LENGTH": [5], "LIKED": [True]}
        assert running.metric("word_lengths_characters", model="word_lengths") == 5
