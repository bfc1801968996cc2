"""What an honest client does rarely, counted: floods end with ENHANCE_YOUR_CALM.

Every frame costs us time that its sender hardly spends. So frames that move nothing may not
come in long rows, streams may not be opened only to be taken back, and pings keep the pace that
keepalive sets.
"""

from __future__ import annotations

from shoal.frontends.grpc.settings import GrpcLimits, KeepAlive
from shoal.wire.http2_frames import ConnectionFault, H2Error

MAX_CONTINUATIONS = 128  # frames of one header block
_IDLE_PING_INTERVAL_NS = 7_200_000_000_000  # without calls
_LONG_AGO_NS = -(10**18)


class FloodGuard:
    """The counts of one connection. Each method raises ConnectionFault when it is too much."""

    def __init__(self, limits: GrpcLimits, now_ns: int) -> None:
        self._limits = limits
        self._idle_frames = 0
        self._sent_frames_seen = 0
        self._resets_left = float(limits.max_resets)
        self._refilled_ns = now_ns

    def idle_frame(self, sent_frames: int) -> None:
        """A frame that moves nothing: empty data, SETTINGS, PING, PRIORITY, an unknown type.

        `sent_frames` counts the frames with headers or data that were sent: answered calls
        compensate for the frames around them.
        """
        self._idle_frames += 1
        if self._idle_frames > self._limits.max_idle_frames:
            if sent_frames == self._sent_frames_seen:
                raise ConnectionFault(
                    H2Error.ENHANCE_YOUR_CALM, "too many frames that move nothing"
                )
            self._sent_frames_seen = sent_frames
            self._idle_frames = 0

    def reset(self, now_ns: int) -> None:
        """The client has cancelled a stream, or caused its reset."""
        limits = self._limits
        elapsed_secs = (now_ns - self._refilled_ns) / 1e9
        self._refilled_ns = now_ns
        refilled = self._resets_left + elapsed_secs * limits.resets_per_sec
        self._resets_left = min(refilled, float(limits.max_resets)) - 1
        if self._resets_left < 0:
            raise ConnectionFault(H2Error.ENHANCE_YOUR_CALM, "too many streams were reset")


class PingGuard:
    """gRPC's rule for clients' pings: too soon is a strike, and strikes add up until we respond
    some call. One strike more than allowed raises ConnectionFault."""

    def __init__(self, keepalive: KeepAlive) -> None:
        self._interval_ns = keepalive.min_recv_ping_interval_ms * 1_000_000
        self._max_strikes = keepalive.max_ping_strikes
        self._without_calls = keepalive.permit_without_calls
        self._last_ns = _LONG_AGO_NS
        self._strikes = 0
        self._sent_frames_seen = 0

    def ping(self, now_ns: int, *, calls_open: bool, sent_frames: int) -> None:
        """A ping arrived; `sent_frames` counts the frames with headers or data that were sent."""
        if sent_frames != self._sent_frames_seen:
            self._sent_frames_seen = sent_frames
            self._strikes = 0
            self._last_ns = _LONG_AGO_NS
        interval_ns = self._interval_ns
        if not calls_open and not self._without_calls:
            interval_ns = _IDLE_PING_INTERVAL_NS
        too_soon = now_ns < self._last_ns + interval_ns
        self._last_ns = now_ns
        if too_soon and self._max_strikes:
            self._strikes += 1
            if self._strikes > self._max_strikes:
                raise ConnectionFault(H2Error.ENHANCE_YOUR_CALM, "too_many_pings")
