"""HTML and PNG reports, and the charts in them."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.perf import parse
from shoal.errors import InvalidArgument, Unsupported
from shoal.perf import findings, metrics, report, svg
from shoal.perf.profiler import Profile

OPTIONS = parse(["-m", "simple"])


@given(st.floats(1e-9, 1e12))
def test_ticks_are_few_and_reach_the_top(highest):
    made = svg.ticks(highest)
    assert made[0] == 0
    assert made[-1] >= highest * (1 - 1e-9)
    assert 3 <= len(made) <= 8


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (999, "999"), (1200, "1.2k"), (3e6, "3M")])
def test_numbers_for_axes(value, text):
    assert svg.short(value) == text


def profile(result, tally):
    composing = {("a<b", "1"): tally(10)}
    return Profile([result(1, [100, 200] * 5, composing=composing), result(4, [150, 900] * 20)])


def test_a_page_is_complete_in_itself(result, tally, facts, tmp_path):
    path = tmp_path / "page.html"
    report.write(str(path), OPTIONS, facts(ensemble=True), profile(result, tally))
    page = path.read_text()
    assert not re.search(r"(src|href)=|url\(|@import|<script", page)
    assert "a&lt;b, version 1" in page
    for title in ("Latency over throughput", "Where the time went", "Latency distribution"):
        assert title in page
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 4
    for drawing in drawings:
        ET.fromstring(drawing)


def test_parts_add_up_to_the_mean(result, tally):
    for finding in findings.findings(profile(result, tally)):
        assert sum(finding.parts_us) >= finding.average_us - 1e-6


def test_what_the_numbers_say(result):
    calm, busy = result(1, [100] * 10), result(4, [100] * 20, cpu_ns=(980_000_000,))
    busy.client_bound = True
    said = " ".join(findings.verdict(OPTIONS, Profile([calm, busy], over=result(8, [9000] * 9))))
    assert "highest throughput is 20 inferences a second, at a concurrency of 4" in said
    assert "the client was the bottleneck: it was busy 98% of the time" in said
    assert "At a concurrency of 8 latency exceeded the limit" in said
    assert "Nothing was measured." in findings.verdict(OPTIONS, Profile())
    assert "not the bottleneck" in " ".join(findings.verdict(OPTIONS, Profile([calm])))


def test_a_page_of_nothing(facts):
    assert "Nothing was measured" in report.page(OPTIONS, facts(), Profile())


def test_a_png_image(result, tally, facts, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "run.png"
    report.write(str(path), OPTIONS, facts(), profile(result, tally))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_png_image_without_matplotlib(result, tally, facts, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(Unsupported, match=r"pip install 'shoal\[report\]'"):
        report.write(str(tmp_path / "run.png"), OPTIONS, facts(), profile(result, tally))


def test_a_place_that_cannot_be_written(result, tally, facts, tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be written"):
        report.write(str(tmp_path / "none" / "page.html"), OPTIONS, facts(), profile(result, tally))


# ---- metrics of devices


PAGE = """
# HELP nv_gpu_utilization GPU utilization rate
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5
nv_gpu_utilization{host="a",gpu_uuid="GPU-2"} 0.25
nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 100
nv_gpu_other{gpu_uuid="GPU-1"} 7
nv_inference_count{model="m"} 3
"""


def test_metrics_of_devices():
    first = metrics.parse(PAGE)
    assert first == {
        "Avg GPU Utilization": {"GPU-1": 0.5, "GPU-2": 0.25},
        "Max GPU Memory Usage": {"GPU-1": 100.0},
    }
    second = metrics.parse(PAGE.replace("0.5", "0.7").replace(" 100", " 50"))
    both = metrics.merged([first, second])
    assert both["Avg GPU Utilization"]["GPU-1"] == pytest.approx(0.6)
    assert both["Max GPU Memory Usage"] == {"GPU-1": 100.0}
