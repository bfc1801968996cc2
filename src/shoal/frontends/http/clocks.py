"""The time-outs of one HTTP connection: what has not changed since the last look, and for how long.

    sweep, once a second for all connections --check--> nothing, a refusal, CLOSE or CUT

No connection has a timer of its own.
"""

from __future__ import annotations

import enum
import math
from typing import TypeAlias

from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.message import HttpFault
from shoal.frontends.http.reader import Arriving, RequestReader
from shoal.frontends.pace import Pace, is_too_slow


class ConnectionPhase(enum.Enum):
    """What a connection is doing."""

    OPEN = "requests may arrive"
    BUSY = "a request is with the application"
    LINGER = "an error was sent; what still arrives is dropped"
    CLOSING = "the last response is being sent"
    CLOSED = "closed"


class Overdue(enum.Enum):
    """What to do with a connection whose time is over."""

    CLOSE = "it was idle for long enough"
    CUT = "the client does not read, or does not confirm the end"


Verdict: TypeAlias = "HttpFault | Overdue | None"


class ConnectionClocks:
    """What a connection has done by the last sweep. Times are in seconds and only ever grow."""

    __slots__ = ("_drained", "_progress", "_receiving", "_sending", "_since")

    def __init__(self) -> None:
        self._progress = -1  # of requests and responses
        self._drained = -1  # bytes that the client has read
        self._since = 0.0  # when one of them last changed
        self._receiving = Pace()
        self._sending = Pace()

    def expire(self, progress: int) -> None:
        """Let the time be over at the next sweep, unless something happens until then."""
        self._progress = progress
        self._since = -math.inf

    def unread(self, drained: int, now: float, limits: HttpLimits) -> Verdict:
        """The client has read `drained` bytes of what was written, and not all of it."""
        secs, moved = self._sending.measure(self, drained, now)
        if is_too_slow(secs, moved, limits.write_stall_secs, limits.min_rate):
            return Overdue.CUT
        if drained != self._drained:
            self._drained = drained
            self._since = now
        elif limits.write_stall_secs and now - self._since >= limits.write_stall_secs:
            return Overdue.CUT
        return None

    def check(
        self,
        phase: ConnectionPhase,
        reader: RequestReader,
        progress: int,
        now: float,
        limits: HttpLimits,
        draining: bool,
    ) -> Verdict:
        """The client has read everything. `progress` changes with each step of a request."""
        self._sending.end()
        paused = progress == self._progress
        if reader.arriving is not Arriving.BODY:
            self._receiving.end()
        elif phase is ConnectionPhase.OPEN:
            late = self._late_body(reader, now, limits, paused)
            if late is not None:
                return late
        if not paused:
            self._progress = progress
            self._since = now
            return None
        waited = now - self._since
        if phase is ConnectionPhase.OPEN:
            return _silence(reader.arriving, waited, limits)
        secs = 0.0
        if phase is ConnectionPhase.LINGER or (phase is ConnectionPhase.CLOSING and draining):
            secs = limits.linger_secs
        elif phase is ConnectionPhase.CLOSING:  # TLS: the client has not confirmed the end
            secs = limits.write_stall_secs
        return Overdue.CUT if secs and waited >= secs else None

    def _late_body(
        self, reader: RequestReader, now: float, limits: HttpLimits, paused: bool
    ) -> HttpFault | None:
        """The refusal of a body that takes too long; how long a pause may be is `_silence`'s."""
        secs, moved = self._receiving.measure(reader.begun_ns, reader.body_bytes, now)
        if limits.body_total_secs and secs >= limits.body_total_secs:
            return HttpFault(
                408, f"the request body did not arrive within {limits.body_total_secs:g} seconds"
            )
        if not paused and is_too_slow(secs, moved, limits.body_idle_timeout_secs, limits.min_rate):
            return HttpFault(
                408,
                f"the request body arrives too slowly: {moved} bytes in {secs:.0f} seconds; at "
                f"least {limits.min_rate:g} a second are expected (--http-min-rate)",
            )
        return None


def _silence(arriving: Arriving, waited: float, limits: HttpLimits) -> Verdict:
    """The client is expected to send, and has not for `waited` seconds."""
    if arriving is Arriving.NOTHING:
        secs = limits.keepalive_idle_secs
        return Overdue.CLOSE if secs and waited >= secs else None
    if arriving is Arriving.HEAD:
        secs = limits.head_timeout_secs
        text = f"the request head did not arrive within {secs:g} seconds"
    else:
        secs = limits.body_idle_timeout_secs
        text = f"nothing of the request body arrived for {secs:g} seconds"
    return HttpFault(408, text) if secs and waited >= secs else None
