"""W3C trace context: the caller's span that a request belongs to.

    traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
                 version, trace, the caller's span, flags (the lowest bit: it is being recorded)

An invalid header is ignored: a request is never refused for it.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

_PARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
    r"(?P<more>-.*)?"
)
_NO_TRACE = "0" * 32
_NO_SPAN = "0" * 16
_LONGEST_STATE = 512  # characters that have to be passed on; longer ones may be dropped
_RECORDED = 1


@dataclass(frozen=True, slots=True)
class SpanContext:
    """One span and the trace it is in."""

    trace_id: str  # 32 hexadecimal digits
    span_id: str  # 16; empty for a trace that begins here
    recorded: bool = True
    state: str = ""  # the tracestate header, which is passed on

    def traceparent(self) -> str:
        """The header that names this span as the caller's."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.recorded else '00'}"


def read(parent: str | None, state: str | None) -> SpanContext | None:
    """The caller's span, from the headers traceparent and tracestate; None without a valid one."""
    match = _PARENT.fullmatch(parent.strip()) if parent else None
    if match is None or match["version"] == "ff":
        return None
    if match["more"] and match["version"] == "00":  # only later versions may have more parts
        return None
    if match["trace"] == _NO_TRACE or match["span"] == _NO_SPAN:
        return None
    passed_on = state.strip() if state and len(state) <= _LONGEST_STATE else ""
    recorded = bool(int(match["flags"], 16) & _RECORDED)
    return SpanContext(match["trace"], match["span"], recorded, passed_on)


def new_trace() -> SpanContext:
    """A trace that begins here."""
    return SpanContext(secrets.token_hex(16), "")


def new_span_id() -> str:
    """A random id for a span."""
    return secrets.token_hex(8)
