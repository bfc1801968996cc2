"""What is said of a run: the table, the sentences and the page."""

from __future__ import annotations

import io
from html.parser import HTMLParser
from pathlib import Path

import pytest

from shoal.config.pbtxt import parse_pbtxt
from shoal.errors import InvalidArgument
from shoal.perf.svg import Dot, front, scatter
from shoal.tune.configs import Bounds, Change, Subject
from shoal.tune.goal import LATENCY, Goal, Measurement
from shoal.tune.report import page
from shoal.tune.run import TunedModel, TuneResult, check_writable, write
from shoal.tune.search import Search
from shoal.tune.space import ConfigPoint
from shoal.tune.text import Table, change_lines, milliseconds, row, verdict

WHOLE = """
name: "net<1>" backend: "onnxruntime" max_batch_size: 8
input { name: "A" data_type: TYPE_FP32 dims: 4 }
output { name: "B" data_type: TYPE_FP32 dims: 4 }
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { }
"""


@pytest.fixture
def outcome(simulated, bench):
    def make(goal=Goal(), levels=(32,), **costs):  # noqa: B008 - it cannot be changed
        subject = Subject(parse_pbtxt(WHOLE, ""), 4)
        model = TunedModel("net<1>", Path("models"), Path("models/net"), subject)
        space = subject.space(Bounds(64), levels, goal.limit_us)
        asked = bench(simulated(**costs))

        def measure(point, clients, careful):
            if point.batch == 16:
                raise InvalidArgument("no more than <12>")
            return asked(point, clients, careful)

        finding = Search(space, goal, measure).run(subject.start())
        point = finding.chosen.point
        return TuneResult(
            model, goal, space, finding, subject.output(point), subject.changes(point)
        )

    return make


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.rows, self.dots, self.addresses = 0, 0, []
        self.open = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "line", "polyline", "circle") or tag == "circle":
            self.open.append(tag)
        self.rows += tag == "tr"
        self.dots += tag == "title" and self.open[-2] == "circle"
        self.addresses += [value for name, value in attributes if name in ("src", "href")]

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_has_everything_that_was_tried(outcome):
    made = outcome(fixed_us=3000, row_us=20)
    found = Page(page(made))
    failed = [each for each in made.finding.tries if each.error]
    assert failed
    assert found.rows == 1 + len(made.finding.tries)
    assert found.dots == len(made.finding.tries) - len(failed)
    assert not found.addresses
    assert not found.open
    text = page(made)
    assert "net&lt;1&gt;" in text
    assert "failed: no more than &lt;12&gt;" in text
    assert "max_queue_delay_microseconds: 1000" in text
    assert "instance_group.count: 1 -&gt; 4" in text
    assert text.count('<tr class="chosen">') == 1
    assert "http://" not in text
    assert "https://" not in text


def test_a_page_without_a_change(outcome):
    made = outcome(fixed_us=3000, row_us=20)
    made.changes.clear()
    assert "None: the config as it was" in page(made)


def test_a_page_of_a_limit_that_was_not_met(outcome):
    made = outcome(Goal(limit_us=100), (1, 8))
    assert not made.finding.met
    text = page(made)
    assert "no config met the limit of 0.1 ms (p99)" in text
    assert 'class="verdict unmet"' in text
    assert 'class="limit"' in text


def test_the_verdict_says_what_is_gained(outcome):
    made = outcome(fixed_us=3000, row_us=20)
    lines = verdict(made.finding, made.goal, made.space)
    assert lines[0].startswith("chosen: batches of up to 8, a delay of 1000 µs, 4 instances")
    assert "throughput is " in lines[2]
    assert lines[2].endswith("% higher")
    assert f"{len(made.finding.tries)} measurements instead of {made.space.size}" in lines[3]
    made = outcome(Goal(LATENCY), (8,), fixed_us=3000, row_us=20)
    lines = verdict(made.finding, made.goal, made.space)
    assert any(line.endswith("% lower") for line in lines)


def test_what_would_help(outcome):
    made = outcome(Goal(limit_us=100), (8,), fixed_us=3000)
    text = "\n".join(verdict(made.finding, made.goal, made.space))
    assert "fewer clients at once (--concurrency 2)" in text
    assert "computing alone takes" in text
    assert "a limit of " in text


def test_the_live_table():
    said, terminal = [], io.StringIO()
    table = Table(Goal(limit_us=2000), said.append, terminal)
    table.head()
    point = ConfigPoint(8, 200, 2, 1)
    table.begins(point, 32, careful=False)
    assert "… measuring" in terminal.getvalue()
    table.measured(Measurement(point, 32, per_second=1234, latency_us=1500), best=True)
    assert terminal.getvalue().endswith("\r\x1b[2K")
    assert said[1].split() == [
        "1",
        "8",
        "200",
        "µs",
        "2",
        "1",
        "32",
        "1,234",
        "1.5",
        "ms",
        "best",
        "so",
        "far",
    ]
    assert len(said[0]) == len(said[1].removesuffix("  best so far"))


def test_rows_of_other_kinds():
    goal = Goal(limit_us=2000)
    slow = Measurement(ConfigPoint(0, 0, 1, 0), 1, per_second=5, latency_us=250_000, careful=True)
    assert row(3, slow, goal).endswith("5    250 ms  measured again, over the limit")
    failed = Measurement(ConfigPoint(0, 0, 1, 0), 1, error="out of memory")
    assert row(4, failed, goal).endswith("failed: out of memory")


def test_a_smaller_batch_comes_with_a_warning():
    lines = change_lines([Change("max_batch_size", "8", "4")])
    assert lines[0] == "  max_batch_size: 8 -> 4"
    assert "requests of more than 4 rows will be refused" in lines[1]


@pytest.mark.parametrize(
    ("value_us", "text"), [(50, "0.05 ms"), (1234, "1.23 ms"), (250_400, "250 ms")]
)
def test_times(value_us, text):
    assert milliseconds(value_us) == text


def test_the_front():
    dots = [Dot(x, y, "tried", "") for x, y in [(1, 1), (2, 2), (3, 1.5), (2.5, 9)]]
    assert [(dot.x, dot.y) for dot in front(dots)] == [(1, 1), (3, 1.5)]
    assert "<svg" in scatter([], {}, 0, "inferences a second", "p99 in ms")


def test_files_are_checked_before(tmp_path):
    file = tmp_path / "config.pbtxt"
    check_writable(file, "--output", overwrite=False)
    write(file, "a", "--output")
    assert [each.name for each in tmp_path.iterdir()] == ["config.pbtxt"]
    with pytest.raises(InvalidArgument, match=r"exists; add --force to write over it"):
        check_writable(file, "--output", overwrite=False)
    check_writable(file, "--output", overwrite=True)
    with pytest.raises(InvalidArgument, match="is a folder; name a file in it"):
        check_writable(tmp_path, "--output", overwrite=True)
    with pytest.raises(InvalidArgument, match="there is no folder"):
        check_writable(tmp_path / "no" / "x", "--report", overwrite=True)
    with pytest.raises(InvalidArgument, match="cannot be written"):
        write(file / "x", "a", "--output")


def test_no_permission_to_write(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may do everything
    with pytest.raises(InvalidArgument, match="permission denied"):
        check_writable(tmp_path / "x", "--write", overwrite=True)
