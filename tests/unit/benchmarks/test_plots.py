from __future__ import annotations

import json

import pytest
from benchmarks.places import RESULTS
from benchmarks.plots import draw

pytest.importorskip("matplotlib")


def test_the_published_run_gets_its_pictures(tmp_path):
    run = json.loads((RESULTS / "published.json").read_text())
    run["workloads"] = run["workloads"][:2]  # each picture takes half a second
    in_the_report = draw(run, tmp_path, "run")
    drawn = {path.name for path in tmp_path.iterdir()}
    assert "run-W1.png" in in_the_report
    assert drawn == {*in_the_report, "run-summary.png", "run-summary-dark.png"}


def test_a_run_of_nothing_has_no_pictures(tmp_path):
    workload = {"name": "W1", "title": "tiny", "compute_bound": False}
    assert draw({"workloads": [workload], "measurements": [], "peers": {}}, tmp_path, "run") == []
    assert list(tmp_path.iterdir()) == []
