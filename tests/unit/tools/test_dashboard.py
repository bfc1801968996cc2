"""The Grafana dashboard is made from a table."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(scope="module")
def dashboard(tool):
    return tool("dashboard").dashboard()


def test_the_file_is_current(root, dashboard):
    text = (root / "deploy" / "monitoring" / "dashboard.json").read_text()
    assert json.loads(text) == dashboard, "run `make dashboard`"


def test_panels_do_not_overlap_and_have_ids_of_their_own(dashboard):
    taken = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        columns = range(at["x"], at["x"] + at["w"])
        cells = {(x, y) for x in columns for y in range(at["y"], at["y"] + at["h"])}
        assert columns.stop <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_every_series_has_a_legend(dashboard):
    for panel in dashboard["panels"]:
        if panel["type"] in ("timeseries", "heatmap"):
            assert all(target["legendFormat"] != "__auto" for target in panel["targets"]), panel
