"""When to ping a silent peer, and when a connection has reached its maximum age.

A pure decision: the transport's sweep passes the time and acts on the result.
"""

from __future__ import annotations

import enum
import random

from shoal.frontends.grpc.settings import KeepAlive

_NS_PER_MS = 1_000_000


class Action(enum.Enum):
    """What to do with a connection now."""

    NOTHING = "nothing"
    PING = "ping"
    DRAIN = "drain"  # it is old: let its calls finish, take no new ones
    ABORT = "abort"  # it is dead, or its grace is over


class Lifetime:
    """The clocks of one connection."""

    def __init__(self, keepalive: KeepAlive, now_ns: int, spread: float | None = None) -> None:
        """Start the clocks. `spread` moves the end of life by up to a tenth either way, so that
        clients that connected together do not reconnect together."""
        self._keepalive = keepalive
        self._heard_ns = now_ns
        self._ping_sent_ns: int | None = None
        self._pings_without_data = 0
        self._sent_frames_seen = 0
        self._drain_ns: int | None = None
        self._old_at_ns: int | None = None
        if keepalive.max_connection_age_ms:
            spread = random.uniform(-0.1, 0.1) if spread is None else spread  # noqa: S311
            age_ms = keepalive.max_connection_age_ms * (1 + spread)
            self._old_at_ns = now_ns + int(age_ms * _NS_PER_MS)

    def sweep(self, now_ns: int, *, heard: bool, calls_open: bool, sent_frames: int) -> Action:
        """Decide. `heard`: bytes arrived since the last sweep; `sent_frames`: with headers or
        data, so far."""
        if heard:
            self._heard_ns = now_ns
            self._ping_sent_ns = None
        if sent_frames != self._sent_frames_seen:
            self._sent_frames_seen = sent_frames
            self._pings_without_data = 0
        if self._ping_sent_ns is not None:
            if now_ns - self._ping_sent_ns >= self._keepalive.timeout_ms * _NS_PER_MS:
                return Action.ABORT
        elif self._ping_is_due(now_ns, calls_open):
            self._ping_sent_ns = now_ns
            self._pings_without_data += 1
            return Action.PING
        return self._age(now_ns)

    def _ping_is_due(self, now_ns: int, calls_open: bool) -> bool:
        options = self._keepalive
        if not options.time_ms or now_ns - self._heard_ns < options.time_ms * _NS_PER_MS:
            return False
        if not calls_open and not options.permit_without_calls:
            return False
        most = options.max_pings_without_data
        return not most or self._pings_without_data < most

    def _age(self, now_ns: int) -> Action:
        if self._drain_ns is not None:
            grace_ms = self._keepalive.max_connection_age_grace_ms
            if grace_ms and now_ns - self._drain_ns >= grace_ms * _NS_PER_MS:
                return Action.ABORT
        elif self._old_at_ns is not None and now_ns >= self._old_at_ns:
            self._drain_ns = now_ns
            return Action.DRAIN
        return Action.NOTHING
