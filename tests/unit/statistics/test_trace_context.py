"""W3C trace context: what counts, and what is as good as nothing."""

from __future__ import annotations

import pytest

from shoal.statistics import trace_context
from shoal.statistics.trace_context import SpanContext

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("parent", "recorded"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-ff", True),
        (f" 00-{TRACE}-{SPAN}-01 ", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-has", True),
    ],
)
def test_a_callers_span(parent, recorded):
    assert trace_context.read(parent, " vendor=1 ") == SpanContext(
        TRACE, SPAN, recorded, "vendor=1"
    )


@pytest.mark.parametrize(
    "parent",
    [
        None,
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
    ],
)
def test_what_breaks_the_rules_is_ignored(parent):
    assert trace_context.read(parent, "vendor=1") is None


def test_a_state_that_is_too_long_is_dropped():
    context = trace_context.read(f"00-{TRACE}-{SPAN}-01", "v" * 513)
    assert context is not None
    assert context.state == ""


def test_a_span_can_be_handed_on():
    made = SpanContext(TRACE, trace_context.new_span_id())
    assert trace_context.read(made.traceparent(), None) == made


def test_new_names_are_new():
    assert trace_context.new_trace() != trace_context.new_trace()
    assert len(trace_context.new_trace().trace_id) == 32
    assert len(trace_context.new_span_id()) == 16
