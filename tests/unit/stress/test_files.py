"""A run as data and as a page."""

from __future__ import annotations

import csv
import io
import json

from shoal.stress import files
from shoal.stress.report import page

RUN = {(1, False, 1): [1.0, 3.0], (1, True, 1): [2.0], (1, True, 5): []}


def test_csv(made):
    rows = list(
        csv.DictReader(io.StringIO(files.csv_text(made(RUN, c5={"failures": {"late": 2}}))))
    )
    assert tuple(rows[0]) == files.COLUMNS
    assert [row["mean_ms"] for row in rows] == ["2.0", "2.0", ""]
    assert [row["batching"] for row in rows] == ["False", "True", "True"]
    assert rows[2]["failed"] == "2"


def test_json(made):
    found = json.loads(files.json_text(made(RUN, c5={"failures": {"late": 2}, "partial": True})))
    assert found["server"] == "model 'faq'"
    assert found["cores"] == 2
    first, _, last = found["cells"]
    assert (first["mean_ms"], first["deviation_ms"], first["per_second"]) == (2.0, 1.0, 4.0)
    assert last["mean_ms"] is None
    assert last["failures"] == {"late": 2}
    assert last["complete"] is False


def test_the_page_needs_nothing_from_elsewhere(made):
    text = page(made(RUN, c1={"mean_batch": 1.5}))
    assert text.startswith("<!doctype html>")
    assert "model &#x27;faq&#x27; on 2 cores, over TCP" in text
    assert text.count("<svg") == 2
    assert "1 batched" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_a_page_of_nothing(made):
    assert "<svg" not in page(made({}))
